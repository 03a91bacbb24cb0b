"""`vllm`: a pooling server (`vllm serve MODEL --runner pooling`), asked with token ids and without its activation.

vLLM's own default for the activation changed between releases, and a server that does not know the field takes it for
a default. So it is said in every request, and the server is tried once, at the start: with and without the activation
it must give different numbers, of which one is the other's logistic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import httpx

from reticent.rewards.bounds import sigmoid
from reticent.rewards.errors import BackendFailed, BackendUnavailable, ModelUnusable
from reticent.rewards.profile import ModelProfile
from reticent.rewards.rendering import Encoded, Rendering

from .remote import RemoteBackend

__all__ = ["PoolingServerBackend"]

_ROWS = 64
_TRIALS = (("Which pet has Ada?", "Ada has a cat."), ("Which pet has Ada?", "It is not stated."))
_TOLERANCE = 5e-3


class PoolingServerBackend(RemoteBackend[Encoded]):
    """Raw rewards from a vLLM pooling server's `/classify` or `/pooling`.

    Args:
        profile: of backend `vllm`.
        transport: for tests.

    Raises:
        ModelUnusable: as `Rendering`; or the server does not answer, or does not do what the activation field says.
    """

    def __init__(self, profile: ModelProfile, transport: httpx.BaseTransport | None = None) -> None:
        if profile.folder is None or profile.url is None:
            raise ModelUnusable(profile.name, "its profile names no folder or no url")
        self._rendering = Rendering(profile.folder, profile.template, profile.max_length, profile.long_input)
        super().__init__(profile, _ROWS, transport)
        self._url = f"{profile.url.rstrip('/')}/{profile.route}"
        try:
            self._require_pinned()
        except ModelUnusable:
            self.close()
            raise

    def _input(self, prompt: str, answer: str) -> Encoded | None:
        return self._rendering.encode(prompt, answer)

    def _call(self, inputs: Sequence[Encoded]) -> list[float]:
        return self._ask(inputs, activated=False)

    def _ask(self, inputs: Sequence[Encoded], *, activated: bool) -> list[float]:
        body: dict[str, object] = {
            "model": self.profile.name,
            "input": [list(one.ids) for one in inputs],
            "use_activation": activated,
        }
        if self.profile.route == "pooling":
            body |= {"task": "classify", "encoding_format": "float"}
        answer = self._caller.post(self._url, body)
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or len(data) != len(inputs):
            raise BackendFailed("the pooling server did not give one result a candidate")
        field = "probs" if self.profile.route == "classify" else "data"
        return [_one_number(row, place, field) for place, row in enumerate(data)]

    def _require_pinned(self) -> None:
        trials = [one for one in (self._rendering.encode(*trial) for trial in _TRIALS) if one is not None]
        if not trials:
            raise ModelUnusable(self.profile.name, "max_length is too short for any answer")
        try:
            raw, activated = (self._ask(trials, activated=flag) for flag in (False, True))
        except (BackendFailed, BackendUnavailable) as error:
            raise ModelUnusable(self.profile.name, f"the pooling server cannot be used: {error}") from None
        logistic = all(abs(sigmoid(r) - a) < _TOLERANCE for r, a in zip(raw, activated, strict=True))
        if not logistic or all(abs(r - a) < _TOLERANCE for r, a in zip(raw, activated, strict=True)):
            raise ModelUnusable(self.profile.name, "the pooling server does not do what use_activation says")


def _one_number(row: object, place: int, field: str) -> float:
    """The only number of a row; a model of several labels is no reward model."""
    values = row.get(field) if isinstance(row, dict) and row.get("index") == place else None
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not isinstance(values, list) or len(values) != 1:
        raise BackendFailed("the pooling server did not give one number a candidate")
    value = values[0]
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BackendFailed("the pooling server gave a reward that is no number")
    return float(value)
