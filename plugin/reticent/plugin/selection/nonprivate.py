"""The two rules without privacy: plain best-of-n, and inference-time pessimism (Huang et al. 2025).

They release what the rewards say, so no charge bounds what they tell about the preferences. They run only for a
tenant whose policy allows it, under their own names, with a warning.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from reticent.accounting.charges.privitp import PrivITP as Mechanism
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.noise import bernoulli, uniform_index
from reticent.plugin.selection.base import Selection, SelectionSession, fit_of, one_more
from reticent.plugin.selection.privitp import normalizer_of

__all__ = ["ITP", "BoN"]


class BoN:
    """Best of n: the largest reward; ties are broken at random."""

    name = "bon"
    private = False
    worst_case = 0

    def __init__(self, *, candidates: int) -> None:
        self._candidates = candidates
        self.most_drawn = candidates

    def facts(self) -> dict[str, Any]:
        """Rule and parameters."""
        return {"rule": self.name, "candidates": self._candidates}

    def charging(self) -> dict[str, str | float]:
        """Nothing: no charge bounds what this tells."""
        return {}

    async def select(self, session: SelectionSession) -> Selection:
        """One draw, one batch of rewards, the maximum."""
        drawn = await session.draw(self._candidates)
        candidates = fit_of(drawn)
        if not candidates:
            return Selection(drawn[0], (), charge=0)
        rewards = await session.rewards(candidates)
        best = [i for i, reward in enumerate(rewards) if reward == max(rewards)]
        index = best[uniform_index(len(best))]
        return Selection(candidates[index], (*candidates[:index], *candidates[index + 1 :]), charge=0)


class ITP:
    """Inference-time pessimism: accept a fresh candidate with probability relu(r - λ*)/(R - λ*), at most n of them."""

    name = "itp"
    private = False
    worst_case = 0

    def __init__(self, lattice: RewardLattice, mechanism: Mechanism) -> None:
        self._lattice = lattice
        self._mechanism = mechanism
        self.most_drawn = 3 * mechanism.candidates + 1

    def facts(self) -> dict[str, Any]:
        """Rule and parameters."""
        return {
            "rule": self.name,
            "candidates": self._mechanism.candidates,
            "regularization": self._mechanism.regularization,
        }

    def charging(self) -> dict[str, str | float]:
        """Nothing: no charge bounds what this tells."""
        return {}

    async def select(self, session: SelectionSession) -> Selection:
        """n candidates for λ*, n fresh ones for the answer, drawn together; one more base sample where none passes."""
        n = self._mechanism.candidates
        drawn = await session.draw(2 * n)
        first, second = fit_of(drawn[:n]), fit_of(drawn[n:])
        if not first:
            return Selection(drawn[0], (), charge=0)
        rewards = await session.rewards([*first, *second])
        known = len(first)
        level = normalizer_of(self._mechanism, rewards[:known], self._lattice)
        for t, (candidate, reward) in enumerate(zip(second, rewards[known:], strict=True), start=1):
            weight = max(Fraction(0), (reward - level) / (self._lattice.units_max - level))
            if bernoulli(float(weight)):
                return Selection(candidate, tuple(first), charge=0, halting_time=t)
        fallback = await one_more(session, n)
        return Selection(fallback, tuple(first), charge=0, halting_time=n, fallback=True)
