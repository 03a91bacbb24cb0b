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


class ClassifierBackend(ModelBackend[Encoded]):
    """Raw rewards by forward passes over padded batches of similar length.

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
        """Places of inputs, longest first, as many together as have at most `batch_tokens` tokens with padding."""
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i].ids))
        while order:
            count = max(1, self.profile.batch_tokens // len(inputs[order[0]].ids))
            yield order[:count]
            del order[:count]

    def _forward(self, inputs: Sequence[Encoded]) -> list[float]:
        torch = self._torch
        longest = max(len(one.ids) for one in inputs)

        def padded(rows: Sequence[Sequence[int]]) -> Any:
            table = [[*row, *[0] * (longest - len(row))] for row in rows]
            return torch.tensor(table, device=self.profile.device)

        mask = padded([[1] * len(one.ids) for one in inputs])
        types = None if inputs[0].types is None else padded([one.types or () for one in inputs])
        with torch.inference_mode():
            values: list[float] = self._rewards(padded([one.ids for one in inputs]), mask, types).tolist()
        return values
