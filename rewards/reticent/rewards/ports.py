"""The protocols between the worker and what computes rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from .encoders.base import Pair, Subject

__all__ = ["PairBackend", "RewardBackend", "RewardDescription"]


class RewardDescription(Protocol):
    """What a server must know of its reward model: the same for a certified head and for any other model."""

    @property
    def reward_max(self) -> float:
        """R."""
        ...

    @property
    def sensitivity(self) -> float:
        """The smallest Δ that is proved, 0 < Δ ≤ R; R where nothing is."""
        ...

    def public_facts(self) -> Mapping[str, object]:
        """JSON facts for the configuration's fingerprint. Nothing in them is computed from D, but N."""
        ...


class RewardBackend(RewardDescription, Protocol):
    """Rewards of candidates, bounded.

    Guaranteed: every reward is finite and in [0, `reward_max`]; one reward a candidate, in order; a candidate that
    cannot be judged (empty, too long) gets a reward by a fixed rule that does not look at D; one person's data moves
    no reward by more than `sensitivity`.

    Not promised: safety for concurrent calls. The worker calls from one thread.
    """

    def score(self, subject: Subject, candidates: Sequence[str]) -> list[float]:
        """The rewards of `candidates` as answers to `subject`, all in one pass."""
        ...


@runtime_checkable
class PairBackend(RewardBackend, Protocol):
    """A backend that can score candidates of several subjects in one pass, so that requests share a batch."""

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        """The rewards of `pairs`, one each, in order; what `score` promises holds for each."""
        ...
