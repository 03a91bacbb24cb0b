"""Private inference-time pessimism (paper "Privacy Without Regret", Algorithm 2), lazily.

Phase 1 releases a noisy threshold inside the server; phase 2 draws fresh candidates chunk by chunk and stops at the
first acceptance. The first chunk does not depend on the threshold, so it is drawn together with phase 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from reticent.accounting.charges.acceptance import AcceptanceLaw
from reticent.accounting.charges.privitp import PhaseTwoAccounting
from reticent.accounting.charges.privitp import PrivITP as Mechanism
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.noise import bernoulli_rarer, discrete_gaussian
from reticent.plugin.selection.base import Selection, SelectionSession, fit_of, one_more

__all__ = ["PrivITP", "normalizer_of"]


class PrivITP:
    """Rejection sampling towards the χ²-regularised policy, with a noisy threshold and noisy acceptances.

    Args:
        lattice: reward scale and sensitivity.
        mechanism: parameters and charges; its sensitivity, and its granule if it has one, are the lattice's.
        chunk: phase-2 candidates drawn at a time; doubles from chunk to chunk. Changes speed, not the law.
        order: α of the data set's ledger.
        accounting: how phase 2 is charged; "renyi" builds its table here, at first for a configuration.
    """

    name = "privitp"
    private = True

    def __init__(
        self,
        lattice: RewardLattice,
        mechanism: Mechanism,
        *,
        chunk: int,
        order: float,
        accounting: PhaseTwoAccounting = "renyi",
    ) -> None:
        if mechanism.sensitivity != lattice.sensitivity or mechanism.reward_max != lattice.reward_max:
            raise ValueError("the mechanism's R and Δ must be those of the lattice")
        if mechanism.granule not in (None, float(lattice.granule)):
            raise ValueError("the mechanism's granule must be that of the lattice")
        self._lattice = lattice
        self._mechanism = mechanism
        self._chunk = chunk
        self._accounting: PhaseTwoAccounting = accounting
        self._order = order
        self._phase_one = mechanism.threshold_charge_rounded_up(order)
        self.worst_case = self._phase_one + mechanism.worst_sampling_charge_supremum_rounded_up(accounting, order)
        """Phase 1 and the certified supremum of phase 2 over every threshold (one-stage admission)."""
        self.most_drawn = 3 * mechanism.candidates + 1

    def facts(self) -> dict[str, Any]:
        """Rule and parameters. The chunk is left out: it changes when candidates are drawn, not which law they obey."""
        m = self._mechanism
        return {
            "rule": self.name,
            "candidates": m.candidates,
            "regularization": m.regularization,
            "threshold_noise": m.threshold_noise,
            "reward_noise": m.reward_noise,
            "truncation": m.truncation,
        }

    def charging(self) -> dict[str, str | float]:
        """Method of phase 2, and order. The accounting names: `charges/privitp.py`."""
        return {"accounting": self._accounting, "order": self._order}

    async def select(self, session: SelectionSession) -> Selection:
        """Phase 1 and the first chunk together, then chunk after chunk until one is accepted or n were drawn.

        Candidates that are not fit are passed over in both phases, and are no rounds. λ* of fewer than n moves by Δ at
        most all the same, and fewer rounds cost less, so that the charges bound what is released.
        """
        n = self._mechanism.candidates
        drawn = await session.draw(n + min(self._chunk, n))
        first, pool = fit_of(drawn[:n]), fit_of(drawn[n:])
        if not first:
            return Selection(drawn[0], (), charge=0)
        rewards = await session.rewards([*first, *pool])
        threshold = self._release_threshold(rewards[: len(first)])
        law = self._mechanism.acceptance_law(threshold)
        pool_rewards = rewards[len(first) :]
        looked_at, chunk, begun = 0, self._chunk, len(drawn) - n
        while True:
            for candidate, reward in zip(pool, pool_rewards, strict=True):
                looked_at += 1
                if self._accepts(law, reward):
                    charge = self._charge(threshold, looked_at, fallback=False)
                    return Selection(candidate, tuple(first), charge, halting_time=looked_at)
            if begun == n:
                fallback = await one_more(session, n)
                charge = self._charge(threshold, n, fallback=True)
                return Selection(fallback, tuple(first), charge, halting_time=n, fallback=True)
            chunk = min(2 * chunk, n - begun)
            begun += chunk
            pool = fit_of(await session.draw(chunk))
            pool_rewards = await session.rewards(pool) if pool else []

    def _release_threshold(self, rewards: list[int]) -> float:
        """λ: the exact normaliser rounded down to a granule, plus discrete Gaussian noise, clamped."""
        normalizer = normalizer_of(self._mechanism, rewards, self._lattice)
        noise = discrete_gaussian(self._lattice.to_units(self._mechanism.threshold_noise))
        return self._mechanism.clamp(self._lattice.from_units(math.floor(normalizer) + noise))

    def _accepts(self, law: AcceptanceLaw, reward: int) -> bool:
        q = self._lattice.from_units(reward)
        return bernoulli_rarer(law.log_accept(q), law.log_reject(q))

    def _charge(self, threshold: float, halting_time: int, *, fallback: bool) -> int:
        return self._phase_one + self._mechanism.sampling_charge_rounded_up(
            threshold, halting_time, fallback, self._accounting, self._order
        )


def normalizer_of(mechanism: Mechanism, rewards: Sequence[int], lattice: RewardLattice) -> Fraction:
    """λ* of as many rewards as there are, n or fewer; at least one. It moves by at most Δ however many there are."""
    of_these = replace(mechanism, candidates=len(rewards))
    return of_these.normalizer(rewards, lattice.to_units(mechanism.regularization))
