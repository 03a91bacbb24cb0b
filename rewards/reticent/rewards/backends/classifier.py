"""`transformers`: a sequence classifier in the worker's own process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from reticent.rewards.errors import ModelUnusable
from reticent.rewards.profile import ModelProfile
from reticent.rewards.rendering import Encoded, Rendering

from .architectures import load_raw_rewards
from .model import ModelBackend

__all__ = ["ClassifierBackend"]

_ROWS, _STEP = 8, 64
"""Shape of every half-precision batch: rows, and what its width is a multiple of. Products of other shapes add in
another order, and a half-precision sum shows that in its third digit; in equal shapes a row does not see the others."""


class ClassifierBackend(ModelBackend[Encoded]):
    """Raw rewards by forward passes over padded batches of similar length.

    A raw reward depends on its batch by less than 1e-5 in float32. In half precision every batch has one of a few
    fixed shapes, which costs passes over filler rows and keeps that dependence below 1e-3.

    Args:
        profile: of backend `transformers`.
        threads: torch's threads; None leaves them.

    Raises:
        ModelUnusable: as `load_raw_rewards` and `Rendering`; or `max_length` is more than the model can read.
    """

    def __init__(self, profile: ModelProfile, threads: int | None = None) -> None:
        super().__init__(profile)
        if profile.folder is None:
            raise ModelUnusable(profile.name, "its profile names no folder")
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self._torch: Any = torch
        self._rendering = Rendering(profile.folder, profile.template, profile.max_length, profile.long_input)
        self._rewards, longest = load_raw_rewards(profile.folder, profile.dtype, profile.device)
        if longest is not None and profile.max_length > longest:
            raise ModelUnusable(profile.name, f"it reads {longest} tokens, max_length is {profile.max_length}")

    def _input(self, prompt: str, answer: str) -> Encoded | None:
        return self._rendering.encode(prompt, answer)

    def _raw(self, inputs: Sequence[Encoded]) -> list[float]:
        raw = [0.0] * len(inputs)
        for places in self._batches(inputs):
            for place, value in zip(places, self._forward([inputs[i] for i in places]), strict=True):
                raw[place] = value
        return raw

    def _batches(self, inputs: Sequence[Encoded]) -> Iterator[list[int]]:
        """Places of inputs, longest first, as many together as have at most `batch_tokens` tokens with padding.

        In half precision only inputs of one width go together, and never more than `_ROWS`.
        """
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i].ids))
        while order:
            width = self._width(inputs[order[0]])
            count = max(1, self.profile.batch_tokens // width)
            if self.profile.dtype != "float32":
                count = min(_ROWS, sum(self._width(inputs[i]) == width for i in order))
            yield order[:count]
            del order[:count]

    def _width(self, one: Encoded) -> int:
        """Length with padding: in half precision a multiple of `_STEP`, which the input alone decides."""
        length = len(one.ids)
        return length if self.profile.dtype == "float32" else -(-length // _STEP) * _STEP

    def _forward(self, inputs: Sequence[Encoded]) -> list[float]:
        torch = self._torch
        width = max(self._width(one) for one in inputs)
        # Rows of one token fill a half-precision batch up to its fixed shape.
        filler = 0 if self.profile.dtype == "float32" else _ROWS - len(inputs)

        def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> Any:
            table = [[*row, *[0] * (width - len(row))] for row in [*rows, *[[fill]] * filler]]
            return torch.tensor(table, device=self.profile.device)

        mask = padded([[1] * len(one.ids) for one in inputs], 1)
        types = None if inputs[0].types is None else padded([one.types or () for one in inputs])
        with torch.inference_mode():
            values: list[float] = self._rewards(padded([one.ids for one in inputs]), mask, types).tolist()
        return values[: len(inputs)]
