"""What the backends share that serve a declared model: empty and too long candidates, bounds, facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from reticent.rewards.encoders.base import Pair, Subject
from reticent.rewards.errors import BackendFailed
from reticent.rewards.profile import ModelProfile

__all__ = ["ModelBackend"]

_Input = TypeVar("_Input")


class ModelBackend(ABC, Generic[_Input]):
    """Bounded rewards of a declared model. See `RewardBackend` for what is guaranteed.

    A candidate that cannot be judged gets 0 by a rule that reads its own text and prompt only; a raw reward that is not
    finite becomes 0 by the bound. The sensitivity is R: what D does to such a model is not known.
    """

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile

    @property
    def reward_max(self) -> float:
        return self.profile.reward_max

    @property
    def sensitivity(self) -> float:
        return self.profile.sensitivity

    def public_facts(self) -> Mapping[str, object]:
        return self.profile.public_facts()

    def score(self, subject: Subject, candidates: Sequence[str]) -> list[float]:
        return self.score_pairs([(subject, answer) for answer in candidates])

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        inputs = [self._input(subject.prompt, answer) for subject, answer in pairs]
        usable = [one for one in inputs if one is not None]
        raw = self._raw(usable) if usable else []
        if len(raw) != len(usable):
            raise BackendFailed("another number of rewards than of candidates")
        rewards = iter(self.profile.bound.apply(one) for one in raw)
        return [0.0 if one is None else next(rewards) for one in inputs]

    def close(self) -> None:
        """Let go of connections, where there are any."""
        return

    @abstractmethod
    def _input(self, prompt: str, answer: str) -> _Input | None:
        """What the model reads, or None where the reward is 0 by rule."""

    @abstractmethod
    def _raw(self, inputs: Sequence[_Input]) -> list[float]:
        """Raw rewards, one an input, in order; they may be NaN or infinite."""
