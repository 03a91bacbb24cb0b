"""A reward model that is not a certified head: what it is, how it is asked, and how its rewards are bounded.

All of it is declared by the operator and none of it is computed from D, so that its public part can stand in a
fingerprint. Nothing here loads a model: the server reads the same profile as the worker and needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from .address import require_private_url
from .bounds import ClipBound, SigmoidBound, bound_from_dict
from .errors import ProfileInvalid

__all__ = ["BACKENDS", "ModelProfile"]

Backend: TypeAlias = Literal["transformers", "vllm", "http"]
LongInput: TypeAlias = Literal["truncate-prompt", "zero"]
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
Route: TypeAlias = Literal["classify", "pooling"]

BACKENDS: tuple[str, ...] = get_args(Backend)
_PLACES = ("{prompt}", "{answer}")


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """One reward model.

    Attributes:
        backend: `transformers` (a sequence classifier in the worker's process), `vllm` (a pooling server) or `http`
            (OpenRLHF's remote protocol).
        name, revision: what it is, stated by the operator; both stand in fingerprints. For `vllm` the name is the one
            that the server serves it by.
        bound: the declared map to [0, R].
        folder: the model's folder (`transformers`), or its tokenizer's (`vllm`); none for `http`.
        url: of the server (`vllm`: without a path; `http`: the whole address of its route); see `require_private_url`.
        key_file: file with the key that the server at `url` wants as a bearer token; none where it wants none.
        template: `chat` (the tokenizer's chat template), `pair` (prompt and answer as two segments), or a text with
            `{prompt}` and `{answer}`, which then has to say every special token itself.
        max_length: most tokens of prompt and answer together; for `http`, which has no tokenizer, characters.
        long_input: what becomes of longer ones: the prompt loses its start, or the reward is 0. An answer is never
            cut: one that does not fit has reward 0 by either rule.
        dtype: of the weights and the forward pass (`transformers`).
        route: of the pooling server (`vllm`).
        device: `cpu`, `cuda`, `cuda:1` (`transformers`).
        batch_tokens: most tokens of one forward pass, with padding (`transformers`).
        timeout_seconds, retries: for one call of a remote server, and how often it is repeated when it gave no answer.

    Raises:
        ProfileInvalid: fields that do not go together, or are out of range.
        UnsafeAddress: `url` would carry prompts and rewards in clear text to another machine.
    """

    backend: Backend
    name: str
    revision: str
    bound: ClipBound | SigmoidBound
    max_length: int
    folder: Path | None = None
    url: str | None = None
    key_file: Path | None = None
    template: str = "chat"
    long_input: LongInput = "truncate-prompt"
    dtype: Dtype = "float32"
    route: Route = "classify"
    device: str = "cpu"
    batch_tokens: int = 8192
    timeout_seconds: float = 20.0
    retries: int = 1

    def __post_init__(self) -> None:
        for field, kind in (("backend", Backend), ("long_input", LongInput), ("dtype", Dtype), ("route", Route)):
            if getattr(self, field) not in get_args(kind):
                raise ProfileInvalid(f"{field} must be one of {', '.join(get_args(kind))}")
        if not self.name or not self.revision:
            raise ProfileInvalid("name and revision must be stated: certificates are bound to them")
        if self.max_length < 1 or self.batch_tokens < 1 or not self.timeout_seconds > 0 or not 0 <= self.retries <= 5:
            raise ProfileInvalid("max_length, batch_tokens and timeout_seconds must be positive, retries 0 to 5")
        if (self.folder is None) != (self.backend == "http"):
            raise ProfileInvalid("transformers and vllm need the folder of the model or its tokenizer, http takes none")
        if (self.url is None) != (self.backend == "transformers"):
            raise ProfileInvalid("vllm and http need the url of the server, transformers takes none")
        if self.url is not None:
            require_private_url(self.url)
        elif self.key_file is not None:
            raise ProfileInvalid("key_file is the key of the server at url")
        self._require_template()

    def _require_template(self) -> None:
        if self.template in ("chat", "pair"):
            if self.backend == "http":
                raise ProfileInvalid("http sends plain text: template must be one with {prompt} and {answer}")
        elif any(self.template.count(place) != 1 for place in _PLACES) or (
            self.template.index(_PLACES[0]) > self.template.index(_PLACES[1])
        ):
            raise ProfileInvalid("template must be chat, pair, or a text with {prompt} once and then {answer} once")
        if self.backend == "vllm" and self.template == "pair":
            raise ProfileInvalid("a pooling server gets token ids without segments: template cannot be pair")

    @property
    def reward_max(self) -> float:
        """R."""
        return self.bound.reward_max

    @property
    def sensitivity(self) -> float:
        """R: nothing smaller is known of such a model. Source: rewards.md, `range`."""
        return self.bound.reward_max

    def public_facts(self) -> dict[str, object]:
        """What may stand in a fingerprint: what the model is and how it is asked, not where."""
        own: dict[str, dict[str, object]] = {
            "transformers": {"dtype": self.dtype},
            "vllm": {"route": self.route},
            "http": {},
        }
        return {
            "backend": self.backend,
            "name": self.name,
            "revision": self.revision,
            "bound": self.bound.to_dict(),
            "template": self.template,
            "max_length": self.max_length,
            "long_input": self.long_input,
            **own[self.backend],
        }

    def to_dict(self) -> dict[str, object]:
        """JSON form, which `from_dict` reads back; it holds no secret."""
        values: dict[str, object] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        paths = {name: None if values[name] is None else str(values[name]) for name in ("folder", "key_file")}
        return {**values, **paths, "bound": self.bound.to_dict()}

    def to_json(self) -> str:
        """The text that the worker takes."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_dict(value: Mapping[str, object]) -> ModelProfile:
        """The profile of a JSON object.

        Raises:
            ProfileInvalid: a missing or unknown field, or one of another type.
        """
        fields = ModelProfile.__dataclass_fields__
        if unknown := sorted(value.keys() - fields.keys()):
            raise ProfileInvalid(f"unknown fields: {', '.join(unknown)}")
        found: dict[str, object] = dict(value)
        for name in ("folder", "key_file"):
            if found.get(name) is not None:
                found[name] = Path(str(found[name]))
        bound = found.get("bound")
        if not isinstance(bound, Mapping):
            raise ProfileInvalid("bound must be an object")
        try:
            found["bound"] = bound_from_dict(bound)
            return ModelProfile(**found)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise ProfileInvalid(str(error)) from None
