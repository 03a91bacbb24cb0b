"""The certified linear head on its frozen encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reticent.rewards.encoders import Encoder, Pair, Subject, build_encoder
from reticent.rewards.head import LinearHead

__all__ = ["HeadBackend"]


class HeadBackend:
    """Rewards of a verified head. See `RewardBackend` for what is guaranteed.

    An answer without a character that is not white space gets reward 0: there is nothing to prefer in it.

    Raises:
        EncoderMismatch, WidthMismatch: the encoder is not the one that the head was trained on.
    """

    def __init__(self, head: LinearHead, encoder: Encoder) -> None:
        head.require_encoder(encoder)
        self._head = head
        self._encoder = encoder

    @staticmethod
    def load(path: Path, *, model_folder: Path | None = None, threads: int | None = None) -> HeadBackend:
        """Read and verify a head file and build its encoder.

        Raises:
            FileNotFoundError, HeadInvalid: as `LinearHead.load`.
            UnknownName, EncoderUnavailable: as `build_encoder`.
        """
        head = LinearHead.load(path)
        return HeadBackend(head, build_encoder(head.encoder, model_folder=model_folder, threads=threads))

    @property
    def head(self) -> LinearHead:
        return self._head

    @property
    def reward_max(self) -> float:
        return self._head.reward_max

    @property
    def sensitivity(self) -> float:
        return self._head.sensitivity

    def score(self, subject: Subject, candidates: Sequence[str]) -> list[float]:
        return self.score_pairs([(subject, answer) for answer in candidates])

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        rewards = self._head.reward(self._encoder.encode(pairs))
        return [reward if answer.strip() else 0.0 for (_, answer), reward in zip(pairs, rewards, strict=True)]

    def public_facts(self) -> Mapping[str, object]:
        return self._head.public_facts()
