"""What goes over the wire between server and worker. JSON only; unknown fields and wrong types are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reticent.accounting.fingerprint import sha256_hex

from .encoders.base import Subject

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_CANDIDATES",
    "MAX_CHARACTERS",
    "MAX_EVIDENCE",
    "MAX_PATIENCE",
    "PATIENCE_HEADER",
    "PATIENCE_SHARE",
    "PATIENT_SHARE",
    "SECRET_VARIABLE",
    "OpenRlhfRequest",
    "ScoreRequest",
    "ScoreResponse",
    "SubjectModel",
    "model_digest",
]

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_CANDIDATES = 1024
MAX_CHARACTERS = 200_000
MAX_EVIDENCE = 256
PATIENCE_HEADER = "x-reticent-patience"
"""Header of POST /score: seconds that the batch may wait in the queue. One that has not started by then leaves it and
is answered with 503; one that has started is scored to its end."""
PATIENCE_SHARE = 0.25
"""The part of its timeout that a client gives to the queue; the rest is left for the scoring."""
PATIENT_SHARE = 0.75
"""The same for a later batch of a request, which has more to lose."""
MAX_PATIENCE = 3600.0
SECRET_VARIABLE = "RETICENT_WORKER_SECRET"  # noqa: S105 - the name of a variable
"""Environment variable that carries the shared secret; a command line would show it to every user of the machine."""

_Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


def model_digest(public_facts: Mapping[str, object]) -> str:
    """Digest of a reward model's public facts: says which model answers, and tells nothing about D."""
    return sha256_hex(dict(public_facts))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SubjectModel(_Strict):
    """`Subject` on the wire."""

    prompt: _Text
    question: _Text = ""
    evidence: list[_Text] = Field(default=[], max_length=MAX_EVIDENCE)

    @staticmethod
    def of(subject: Subject) -> SubjectModel:
        return SubjectModel(prompt=subject.prompt, question=subject.question, evidence=list(subject.evidence))

    def value(self) -> Subject:
        return Subject(self.prompt, self.question, tuple(self.evidence))


class ScoreRequest(_Strict):
    """POST /score: the candidates of one subject, scored in one pass."""

    subject: SubjectModel
    candidates: list[_Text] = Field(min_length=1, max_length=MAX_CANDIDATES)


class ScoreResponse(_Strict):
    """Its answer: one bounded reward a candidate, in order, and whose they are (`model_digest`)."""

    rewards: list[float]
    model: str


class OpenRlhfRequest(BaseModel):
    """POST /get_reward, OpenRLHF's remote protocol. Its clients send more fields than these, which are not looked at.

    Raises:
        ValueError: not one prompt a query, or a query that does not begin with its prompt.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    query: list[_Text] = Field(min_length=1, max_length=MAX_CANDIDATES)
    prompts: list[_Text] = Field(min_length=1, max_length=MAX_CANDIDATES)

    @model_validator(mode="after")
    def _begin_with_their_prompts(self) -> OpenRlhfRequest:
        if len(self.query) != len(self.prompts):
            raise ValueError("one prompt a query")
        if not all(query.startswith(prompt) for query, prompt in zip(self.query, self.prompts, strict=True)):
            raise ValueError("a query must begin with its prompt")
        return self

    def by_prompt(self) -> dict[str, dict[int, str]]:
        """The answers of each prompt by their places in the request."""
        found: dict[str, dict[int, str]] = {}
        for place, (query, prompt) in enumerate(zip(self.query, self.prompts, strict=True)):
            found.setdefault(prompt, {})[place] = query[len(prompt) :]
        return found
