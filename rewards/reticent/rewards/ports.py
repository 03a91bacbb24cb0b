"""The one protocol between the worker and what computes rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .encoders.base import Subject

__all__ = ["RewardBackend"]


class RewardBackend(Protocol):
    """Rewards of candidates, bounded.

    Guaranteed: every reward is finite and in [0, `reward_max`]; one reward a candidate, in order; a candidate that
    cannot be judged (empty, too long) gets a reward by a fixed rule that does not look at D; one person's data moves
    no reward by more than `sensitivity`.

    Not promised: safety for concurrent calls. The worker calls from one thread.
    """

    @property
    def reward_max(self) -> float:
        """R."""
        ...

    @property
    def sensitivity(self) -> float:
        """Δ, 0 < Δ ≤ R."""
        ...

    def score(self, subject: Subject, candidates: Sequence[str]) -> list[float]:
        """The rewards of `candidates` as answers to `subject`, all in one pass."""
        ...

    def public_facts(self) -> Mapping[str, object]:
        """JSON facts for the configuration's fingerprint. Nothing in them is computed from D, but N."""
        ...
