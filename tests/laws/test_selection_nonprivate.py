"""The two rules without privacy: the maximum with random ties, and pessimism with its exact relu weights."""

from __future__ import annotations

import pytest

from reticent.accounting.charges.privitp import PrivITP as Mechanism
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.nonprivate import ITP, BoN
from tests.fakes.session import counts_of, rejected, selections

R, BETA, N = 2.0, 0.8, 3
LATTICE = RewardLattice(R, 0.04)
PHASE_ONE, PHASE_TWO = [0.5, 1.0, 1.5], [0.1, 1.1, 1.9]
LEVEL = (sum(PHASE_ONE) - N * BETA) / N


def itp() -> ITP:
    return ITP(LATTICE, Mechanism(R, LATTICE.sensitivity, N, BETA, 0.3, 0.4, 1.5))


def test_bon_takes_the_largest_reward() -> None:
    rewards = [0.1, 1.7, 1.6999, 0.0]
    for selection, session in selections(BoN(candidates=4), LATTICE, lambda i: rewards[i], 30):
        assert selection.chosen.text == "1"
        assert [p.text for p in selection.peers] == ["0", "2", "3"]
        assert (session.drawn, session.scored) == ([4], [4])
        assert selection.charge == 0


def test_bon_breaks_ties_at_random() -> None:
    rewards = [1.0, 0.5, 1.0, 1.0]
    found = selections(BoN(candidates=4), LATTICE, lambda i: rewards[i], 3000)
    seen = counts_of([s.chosen.text for s, _ in found], ["0", "1", "2", "3"])
    assert seen[1] == 0
    assert not rejected([seen[0], seen[2], seen[3]], [1 / 3] * 3)
    # Twin: the first of the best.
    assert rejected([3000, 0, 0], [1 / 3] * 3)


def test_itp_accepts_with_its_exact_relu_weights() -> None:
    weights = [max(0.0, r - LEVEL) / (R - LEVEL) for r in PHASE_TWO]
    law, left = [], 1.0
    for w in weights:
        law.append(left * w)
        left *= 1 - w
    law.append(left)
    found = selections(itp(), LATTICE, lambda i: [*PHASE_ONE, *PHASE_TWO, 0.0][i], 4000)
    seen = counts_of([0 if s.fallback else s.halting_time for s, _ in found], [1, 2, 3, 0])
    assert weights[0] == 0.0
    assert seen[0] == 0
    assert not rejected(seen[1:], law[1:])
    # Twins: phase 1's rewards in phase 2's place, the reward itself as the weight, no fallback.
    for wrong in (PHASE_ONE, [r / R + LEVEL for r in PHASE_TWO], [2.0, 2.0, 2.0]):
        other, rest = [], 1.0
        for r in wrong:
            w = min(1.0, max(0.0, r - LEVEL) / (R - LEVEL))
            other.append(rest * w)
            rest *= 1 - w
        assert rejected(seen, [*other, rest])


@pytest.mark.parametrize("rewards", [[0.0] * 7, [2.0] * 7])
def test_itp_draws_both_phases_together_and_one_more_where_none_passes(rewards: list[float]) -> None:
    for selection, session in selections(itp(), LATTICE, lambda i: rewards[i], 60):
        assert session.drawn == ([2 * N, 1] if selection.fallback else [2 * N])
        assert session.scored == [2 * N]
        expected = 2 * N if selection.fallback else N + (selection.halting_time or 0) - 1
        assert selection.chosen.text == str(expected)
        assert selection.charge == 0
        assert [p.text for p in selection.peers] == [str(i) for i in range(N)]
