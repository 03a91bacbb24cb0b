"""What the handler asks of the parts around it. Each protocol says what it does not promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from reticent.plugin.response_format import ResponseFormat
from reticent.plugin.tools import ToolCall, ToolUse, as_text
from reticent.rewards import Subject

__all__ = [
    "Candidate",
    "CandidateSource",
    "Position",
    "Prompt",
    "RewardSource",
    "SamplingParameters",
    "Token",
    "Verifier",
]

MAX_TOP = 20
"""Most of the largest log-probabilities that a server gives for a position: OpenAI's limit, and vLLM's default."""


@dataclass(frozen=True)
class Prompt:
    """A conversation as the base model gets it, and what it was made of.

    Attributes:
        messages: rendered chat messages (evidence already in place), each with `role` and `content`.
        bare_messages: the same with the evidence removed and nothing else changed; None without evidence.
        subject: what the reward model and the scores judge an answer by.
        form: how the prompt was made: `evidence` for a single question over evidence, `plain` for one without,
            `conversation-with-evidence` and `conversation` where other messages stand before it, and
            `tools-with-evidence` and `tools` where what tools gave stands after it.
        template: hash of the evidence template, "" without evidence.
    """

    messages: tuple[dict[str, Any], ...]
    bare_messages: tuple[dict[str, Any], ...] | None
    subject: Subject
    form: str
    template: str


@dataclass(frozen=True)
class SamplingParameters:
    """How the base model samples; public, the same for every candidate of a request.

    `top_log_probabilities` is how many of the largest log-probabilities of each position are to come with it.
    `shown` is how many of the most probable tokens of each position the client asked to see, None where it asked for no
    log-probabilities at all. Neither changes a sample.
    """

    temperature: float
    top_p: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    top_log_probabilities: int = 0
    shown: int | None = None
    response_format: ResponseFormat | None = None
    tools: ToolUse | None = None

    @property
    def top(self) -> int:
        """How many of the largest log-probabilities of each position a source must ask for."""
        # One more than is read: a sampled token that is not among the largest takes one of the places.
        read = self.top_log_probabilities + 1 if self.top_log_probabilities else 0
        return min(MAX_TOP, max(read, self.shown or 0))

    def facts(self) -> dict[str, Any]:
        """The part that a certificate is bound to (a seed changes no law, so it is left out).

        A form or tools that were asked for stand there only then, so that other requests' facts stay what they were.
        """
        form = self.response_format
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "stop": list(self.stop),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": [list(pair) for pair in self.logit_bias],
            **({} if form is None else {"response_format": dict(form.wire)}),
            **({} if self.tools is None else self.tools.wire()),
        }

    def fits(self, candidate: Candidate) -> bool:
        """Whether a candidate is what the request asks for: its form, its way with tools. Depends on no reward."""
        if self.tools is not None and not self.tools.fits(candidate.tool_calls):
            return False
        # A call stands in the place of an answer, and has a form of its own.
        return self.response_format is None or bool(candidate.tool_calls) or self.response_format.fits(candidate.text)


@dataclass(frozen=True)
class Token:
    """A token as it is shown: its text, its bytes (None where unknown), its log-probability (nats, finite)."""

    text: str
    utf8: tuple[int, ...] | None
    log_probability: float


@dataclass(frozen=True)
class Position:
    """One place of an answer: the token that was drawn, and the most probable ones, descending."""

    chosen: Token
    top: tuple[Token, ...]


@dataclass(frozen=True)
class Candidate:
    """One sampled answer. A failed or empty one is still a candidate: its text is empty.

    Attributes:
        text: the answer; of a reasoning model what it says in the end, "" where it says nothing.
        finish_reason: `stop`, `length`, or `error` for one that the engine could not finish.
        completion_tokens: tokens drawn for it.
        prompt_tokens: tokens of the prompt.
        log_probabilities: base model's log-probability of each token of the answer (nats), empty where unknown.
        tokens: the engine's token ids, empty where the source does not tell.
        top_log_probabilities: the largest log-probabilities at each of those positions, descending (nats), as many as
            the sampling parameters ask for; empty where none were asked for, or the source does not tell.
        positions: the tokens of the text, to be shown where they were asked for; None where they were not, or the
            source does not tell.
        fit: whether it has the form that the request asks for. One that has not is never chosen while another has.
        tool_calls: calls of the request's tools that it makes.
    """

    text: str
    finish_reason: str
    completion_tokens: int
    prompt_tokens: int
    log_probabilities: tuple[float, ...] = field(default=(), repr=False)
    tokens: tuple[int, ...] = field(default=(), repr=False)
    top_log_probabilities: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    positions: tuple[Position, ...] | None = field(default=None, repr=False)
    fit: bool = True
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def judged(self) -> str:
        """What rewards and scores read: the text, and the calls by a declared rule (`tools.py::as_text`)."""
        return as_text(self.text, self.tool_calls)


class CandidateSource(Protocol):
    """Draws candidates from the base model. Sees no reward. May fail; never retries a draw that gave candidates."""

    async def draw(
        self, prompt: Prompt, sampling: SamplingParameters, count: int, *, salt: str, offset: int
    ) -> list[Candidate]:
        """Draw `count` independent candidates, in draw order.

        Args:
            prompt: the conversation.
            sampling: its parameters; with a seed, `offset` makes the draws of later chunks differ from earlier ones.
            count: how many, at least 1.
            salt: separates prefix caches (one per tenant).
            offset: place of the first among all candidates of this request; no two have the same.

        Raises:
            SourceUnavailable: the engine cannot be reached or is dead.
            PromptRefused: the engine refuses the prompt (too long, bad template); the client's fault.
        """

    async def score_without_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        """Log-probability of each token of `answer` when the evidence is removed (one teacher-forced pass)."""

    async def score_with_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        """The same after the prompt as it is: for answers whose log-probabilities did not come with sampling."""

    async def check(self) -> None:
        """Raise `SourceUnavailable` unless candidates could be drawn now."""

    async def close(self) -> None:
        """Let go of connections."""


class RewardSource(Protocol):
    """The reward worker as the handler sees it. Rewards are bounded to [0, R] but not yet integers."""

    async def score(self, subject: Subject, candidates: Sequence[str], *, patient: bool) -> list[float]:
        """One reward a candidate, all scored in one batch.

        `patient` asks to wait longer in the worker's queue, because a refusal would now cost the worst case.

        Raises:
            WorkerUnavailable: nothing was sent, so surely nothing was computed.
            WorkerFailed: the request may have been received.
        """

    async def is_healthy(self) -> bool:
        """Whether the worker is there and its canary scores as it did."""

    async def close(self) -> None:
        """Let go of connections."""


class Verifier(Protocol):
    """A service that judges answers for an `external` score. Sees no reward; must not depend on D."""

    async def score(self, subject: Subject, answer: str) -> float | None:
        """Its number, or None where it gave none."""

    async def close(self) -> None:
        """Let go of connections."""
