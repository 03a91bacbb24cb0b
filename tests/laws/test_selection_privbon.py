"""PrivBoN draws from softmax(reward/σ) and charges what accounting says, whatever comes out."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from reticent.accounting.charges import privbon as charges
from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.privbon import PrivBoN
from tests.fakes.session import counts_of, rejected, selections

R, SIGMA, ORDER = 2.0, 0.4, 20.0
LATTICE = RewardLattice(R, 0.04)
REWARDS = [0.0, 0.3, 0.9, 1.0]
N = len(REWARDS)


def rule(candidates: int = N, noise_scale: float = SIGMA, lattice: RewardLattice = LATTICE) -> PrivBoN:
    return PrivBoN(lattice, candidates=candidates, noise_scale=noise_scale, order=ORDER)


def softmax(rewards: list[float], scale: float) -> list[float]:
    weights = [math.exp((r - max(rewards)) / scale) for r in rewards]
    return [w / sum(weights) for w in weights]


def counts(tested: PrivBoN, trials: int = 4000) -> list[int]:
    found = selections(tested, LATTICE, lambda i: REWARDS[i], trials)
    return counts_of([s.chosen.text for s, _ in found], [str(i) for i in range(N)])


def test_the_choice_follows_softmax_of_reward_over_sigma() -> None:
    seen = counts(rule())
    assert not rejected(seen, softmax(REWARDS, SIGMA))
    # Twins: σ 30 % too small or too large, σ in granules of [0, 1] instead of [0, R], no rewards at all.
    assert rejected(seen, softmax(REWARDS, 0.7 * SIGMA))
    assert rejected(seen, softmax(REWARDS, 1.3 * SIGMA))
    assert rejected(seen, softmax(REWARDS, SIGMA * R))
    assert rejected(seen, softmax(REWARDS, SIGMA / R))
    assert rejected(seen, [1 / N] * N)


def test_a_rule_whose_scale_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the rule itself: the scale given in reward units where granules are wanted, halved."""
    from reticent.accounting.noise import noisy_argmax

    monkeypatch.setattr(
        "reticent.plugin.selection.privbon.noisy_argmax", lambda r, scale: noisy_argmax(r, Fraction(scale) / 2)
    )
    assert rejected(counts(rule()), softmax(REWARDS, SIGMA))


def test_equal_rewards_are_chosen_equally_often() -> None:
    found = selections(rule(), LATTICE, lambda i: 0.7, 2000)
    seen = counts_of([s.chosen.text for s, _ in found], [str(i) for i in range(N)])
    assert not rejected(seen, [1 / N] * N)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_the_charge_is_accountings_and_the_same_for_every_outcome(n: int) -> None:
    tested = rule(n)
    mechanism = charges.PrivBoN(R, LATTICE.sensitivity, n, SIGMA)
    assert tested.worst_case == mechanism.charge_rounded_up(ORDER)
    found = selections(tested, LATTICE, lambda i: (i % 3) / 3, 50)
    assert {s.charge for s, _ in found} == {tested.worst_case}
    assert all(s.halting_time is None and not s.fallback for s, _ in found)


def test_the_charge_uses_the_sensitivity_of_quantised_rewards() -> None:
    coarse = RewardLattice(R, 0.04, bits=8)
    assert coarse.sensitivity > 0.04
    assert rule(lattice=coarse).worst_case > rule(lattice=LATTICE).worst_case
    assert rule(lattice=coarse).worst_case == charges.PrivBoN(R, coarse.sensitivity, N, SIGMA).charge_rounded_up(ORDER)


def test_n_candidates_are_drawn_and_scored_in_one_batch_and_the_others_are_peers() -> None:
    for selection, session in selections(rule(), LATTICE, lambda i: REWARDS[i], 30):
        assert (session.drawn, session.scored, session.order) == ([N], [N], ["draw", "rewards"])
        texts = sorted([selection.chosen.text, *(p.text for p in selection.peers)])
        assert texts == [str(i) for i in range(N)]
        assert [p.text for p in selection.peers] == sorted(p.text for p in selection.peers)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_without_noise_is_refused(scale: float) -> None:
    with pytest.raises(InvalidQuantityError):
        rule(noise_scale=scale)


def test_every_parameter_stands_in_the_facts() -> None:
    assert rule().facts() == {"rule": "privbon", "candidates": N, "noise_scale": SIGMA}
