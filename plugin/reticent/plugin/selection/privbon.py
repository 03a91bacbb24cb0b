"""Private best-of-n (paper "Privacy Without Regret", Algorithm 1): the largest of reward + Gumbel noise."""

from __future__ import annotations

from typing import Any

from reticent.accounting.charges import privbon
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.noise import noisy_argmax
from reticent.plugin.selection.base import Selection, SelectionSession, fit_of

__all__ = ["PrivBoN"]


class PrivBoN:
    """Draw n candidates, release one with probability proportional to exp(reward / σ).

    Args:
        lattice: reward scale and sensitivity.
        candidates: n ≥ 1.
        noise_scale: σ > 0, in reward units.
        order: α of the data set's ledger.
    """

    name = "privbon"
    private = True

    def __init__(self, lattice: RewardLattice, *, candidates: int, noise_scale: float, order: float) -> None:
        self._lattice = lattice
        self._mechanism = privbon.PrivBoN(
            reward_max=lattice.reward_max,
            sensitivity=lattice.sensitivity,
            candidates=candidates,
            noise_scale=noise_scale,
        )
        self._order = order
        self.worst_case = self._mechanism.charge_rounded_up(order)
        """The charge: it is the same for every outcome."""
        self.most_drawn = candidates

    def facts(self) -> dict[str, Any]:
        """Rule and parameters."""
        return {"rule": self.name, "candidates": self._mechanism.candidates, "noise_scale": self._mechanism.noise_scale}

    def charging(self) -> dict[str, str | float]:
        """Bounded range, at the order (`charges/privbon.py`)."""
        return {"accounting": "bounded_range", "order": self._order}

    async def select(self, session: SelectionSession) -> Selection:
        """One draw of n, one batch of rewards, one noisy maximum.

        Over fewer than n candidates, where some are not fit, the charge is that of n: an upper bound.
        """
        drawn = await session.draw(self._mechanism.candidates)
        candidates = fit_of(drawn)
        if not candidates:
            return Selection(drawn[0], (), charge=0)
        rewards = await session.rewards(candidates)
        index = noisy_argmax(rewards, self._lattice.to_units(self._mechanism.noise_scale))
        peers = (*candidates[:index], *candidates[index + 1 :])
        return Selection(candidates[index], peers, self.worst_case)
