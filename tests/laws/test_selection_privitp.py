"""PrivITP's outcome law: with the threshold pinned, halting time and fallback follow the exact acceptance law; the
threshold itself is the normaliser plus discrete Gaussian noise, clamped; charges are accounting's."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from scipy.special import ndtr

from reticent.accounting.charges.acceptance import AcceptanceLaw
from reticent.accounting.charges.privitp import PhaseTwoAccounting
from reticent.accounting.charges.privitp import PrivITP as Mechanism
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.base import Selection
from reticent.plugin.selection.privitp import PrivITP
from tests.fakes.session import FakeSession, counts_of, rejected, selections

R, DELTA, N, BETA, SIGMA_X, SIGMA_Z, L, ORDER = 2.0, 0.04, 3, 0.8, 0.3, 0.4, 1.5, 20.0
LATTICE = RewardLattice(R, DELTA)
MODULE = "reticent.plugin.selection.privitp"
TRIALS = 4000


def mechanism(lattice: RewardLattice = LATTICE, **changes: Any) -> Mechanism:
    given: dict[str, Any] = {
        "reward_max": lattice.reward_max,
        "sensitivity": lattice.sensitivity,
        "candidates": N,
        "regularization": BETA,
        "threshold_noise": SIGMA_X,
        "reward_noise": SIGMA_Z,
        "truncation": L,
        **changes,
    }
    return Mechanism(**given)


def rule(chunk: int = 2, accounting: PhaseTwoAccounting = "renyi", **changes: Any) -> PrivITP:
    return PrivITP(LATTICE, mechanism(**changes), chunk=chunk, order=ORDER, accounting=accounting)


def reward(i: int) -> float:
    """Phase 1: 0.5, 1.0, 1.5. Phase 2 (from N on): 0.2, 1.1, 1.9."""
    return [0.5, 1.0, 1.5, 0.2, 1.1, 1.9][i] if i < 6 else 0.0


PHASE_TWO = [0.2, 1.1, 1.9]
PINNED = (0.5 + 1.0 + 1.5 - N * BETA) / 3
"""λ* where all three rewards count: (Σr - nβ)/n = 0.2, and no reward lies below it."""


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(f"{MODULE}.discrete_gaussian", lambda scale: 0)
    return PINNED


def accept(q: float, threshold: float) -> float:
    return math.exp(AcceptanceLaw(BETA, SIGMA_Z, R, L, threshold).log_accept(q))


def outcome_law(accepts: list[float]) -> list[float]:
    """P(t = 1), …, P(t = n), P(fallback)."""
    law, left = [], 1.0
    for b in accepts:
        law.append(left * b)
        left *= 1 - b
    return [*law, left]


def outcome(selection: Selection) -> int | str:
    return "fallback" if selection.fallback else (selection.halting_time or 0)


OUTCOMES: list[int | str] = [*range(1, N + 1), "fallback"]


def counts(tested: PrivITP, trials: int = TRIALS) -> list[int]:
    return counts_of([outcome(s) for s, _ in selections(tested, LATTICE, reward, trials)], OUTCOMES)


def test_the_acceptance_law_is_the_integral_it_stands_for() -> None:
    ceiling = R + SIGMA_Z * L
    for q in PHASE_TWO:
        steps = [PINNED + (ceiling - PINNED) * (k + 0.5) / 20_000 for k in range(20_000)]
        brute = sum(float(ndtr((q - theta) / SIGMA_Z)) for theta in steps) / len(steps)
        assert accept(q, PINNED) == pytest.approx(brute, rel=1e-7)


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_halting_time_and_fallback_follow_the_exact_law_whatever_the_chunk(pinned: float, chunk: int) -> None:
    law = outcome_law([accept(q, pinned) for q in PHASE_TWO])
    assert min(law) > 0.05
    assert not rejected(counts(rule(chunk)), law)


def test_the_law_of_a_neighbouring_configuration_is_told_apart(pinned: float) -> None:
    seen = counts(rule())
    assert not rejected(seen, outcome_law([accept(q, pinned) for q in PHASE_TWO]))
    # Twins: rewards in another order, the threshold a little off, the plain probit without the uniform.
    assert rejected(seen, outcome_law([accept(q, pinned) for q in PHASE_TWO[::-1]]))
    assert rejected(seen, outcome_law([accept(q, pinned + 0.3) for q in PHASE_TWO]))
    assert rejected(seen, outcome_law([float(ndtr((q - pinned) / SIGMA_Z)) for q in PHASE_TWO]))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda self, law, units: _coin(law, units * float(LATTICE.granule) / R),
        lambda self, law, units: _coin(law, min(R, units * float(LATTICE.granule) * 1.3)),
    ],
    ids=["rewards on [0, 1] instead of [0, R]", "rewards 30 % too large"],
)
def test_a_rule_that_reads_rewards_wrongly_is_found_out(
    pinned: float, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[PrivITP, AcceptanceLaw, int], bool]
) -> None:
    monkeypatch.setattr(PrivITP, "_accepts", wrong)
    assert rejected(counts(rule()), outcome_law([accept(q, pinned) for q in PHASE_TWO]))


def _coin(law: AcceptanceLaw, q: float) -> bool:
    from reticent.accounting.noise import bernoulli_rarer

    return bernoulli_rarer(law.log_accept(q), law.log_reject(q))


def thresholds(trials: int, **changes: Any) -> list[float]:
    """The λ that phase 1 releases inside the server."""
    tested = rule(**changes)
    units = [LATTICE.quantise(reward(i)) for i in range(N)]
    return [tested._release_threshold(units) for _ in range(trials)]


def gaussian_law(mean: float, sigma: float, edges: list[float]) -> list[float]:
    below = [float(ndtr((e - mean) / sigma)) for e in edges]
    return [b - a for a, b in zip([0.0, *below], [*below, 1.0], strict=True)]


def test_the_threshold_is_the_normaliser_plus_gaussian_noise() -> None:
    edges = [PINNED + k * 0.1 for k in range(-5, 8)]  # within the clamp's range, so that the ends count as one cell
    found = thresholds(3000)
    seen = [0] * (len(edges) + 1)
    for value in found:
        seen[sum(value >= e for e in edges)] += 1
    assert not rejected(seen, gaussian_law(PINNED, SIGMA_X, edges))
    # Twins: σ 30 % off, σ in granules of [0, 1], the mean of the rewards instead of the normaliser.
    assert rejected(seen, gaussian_law(PINNED, 0.7 * SIGMA_X, edges))
    assert rejected(seen, gaussian_law(PINNED, 1.3 * SIGMA_X, edges))
    assert rejected(seen, gaussian_law(PINNED, SIGMA_X / R, edges))
    assert rejected(seen, gaussian_law(1.0, SIGMA_X, edges))


def test_the_threshold_never_leaves_its_range() -> None:
    found = thresholds(400, threshold_noise=3.0)
    assert min(found) == -BETA
    assert max(found) == R - BETA


def test_the_normaliser_is_rounded_down_to_a_granule(pinned: float) -> None:
    (found,) = set(thresholds(3))
    assert found <= pinned
    assert pinned - found < 2 * float(LATTICE.granule)
    assert (Fraction(found) / LATTICE.granule).denominator == 1


@pytest.mark.parametrize("chunk", [1, 2, 8])
@pytest.mark.parametrize("accounting", ["renyi", "ville"])
def test_every_charge_is_accountings_and_below_the_worst_case(
    pinned: float, chunk: int, accounting: PhaseTwoAccounting
) -> None:
    tested, m = rule(chunk, accounting), mechanism()
    (threshold,) = set(thresholds(1))
    phase_one = m.threshold_charge_rounded_up(ORDER)
    assert tested.worst_case == phase_one + m.worst_sampling_charge_supremum_rounded_up(accounting, ORDER)
    assert tested.charging() == {"accounting": accounting, "order": ORDER}
    seen = set()
    for selection, _ in selections(tested, LATTICE, reward, 300):
        assert selection.halting_time is not None
        expected = phase_one + m.sampling_charge_rounded_up(
            threshold, selection.halting_time, selection.fallback, accounting, ORDER
        )
        assert selection.charge == expected <= tested.worst_case
        seen.add(outcome(selection))
    assert seen == set(OUTCOMES)


def test_the_accounting_changes_the_charge_and_not_what_is_certified() -> None:
    assert rule(accounting="renyi").facts() == rule(accounting="ville").facts()
    assert rule(accounting="renyi").worst_case < rule(accounting="ville").worst_case


def test_no_threshold_makes_a_charge_above_the_worst_case() -> None:
    # Strong noise on λ reaches both ends of its range; 16 candidates make the fallback dear.
    tested = rule(threshold_noise=3.0, candidates=16)
    for selection, _ in selections(tested, LATTICE, lambda i: (i * 7 % 5) / 3, 200):
        assert 0 < selection.charge <= tested.worst_case


@pytest.mark.parametrize(
    ("n", "chunk", "t", "drawn"),
    [
        (8, 2, 1, [10]),
        (8, 2, 2, [10]),
        (8, 2, 3, [10, 4]),
        (8, 2, 7, [10, 4, 2]),
        (8, 2, 0, [10, 4, 2, 1]),
        (8, 8, 8, [16]),
        (8, 100, 0, [16, 1]),
        (5, 1, 5, [6, 2, 2]),
        (1, 4, 0, [2, 1]),
    ],
)
def test_chunks_are_drawn_only_as_far_as_needed(
    monkeypatch: pytest.MonkeyPatch, n: int, chunk: int, t: int, drawn: list[int]
) -> None:
    """`t` is the accepted candidate of phase 2, 0 for none. Chunks double and end at n; the fallback is one more."""
    seen = 0

    def accepts(self: PrivITP, law: AcceptanceLaw, units: int) -> bool:
        nonlocal seen
        seen += 1
        return seen == t

    monkeypatch.setattr(PrivITP, "_accepts", accepts)
    ((selection, session),) = selections(rule(chunk, candidates=n), LATTICE, lambda i: 0.5, 1)
    assert session.drawn == drawn
    # The fallback is not scored; everything else is, chunk by chunk.
    assert session.scored == (drawn if t else drawn[:-1])
    assert selection.halting_time == (t or n)
    assert selection.fallback is (t == 0)
    # The accepted one is the t-th of phase 2, and never one of phase 1; peers are phase 1's.
    assert selection.chosen.text == str(n + t - 1 if t else sum(drawn) - 1)
    assert [p.text for p in selection.peers] == [str(i) for i in range(n)]


def test_phase_two_does_not_look_at_candidates_after_the_first_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def accepts(self: PrivITP, law: AcceptanceLaw, units: int) -> bool:
        looked.append(units)
        return True

    monkeypatch.setattr(PrivITP, "_accepts", accepts)
    selections(rule(chunk=8), LATTICE, reward, 1)
    assert looked == [LATTICE.quantise(0.2)]


def test_a_mechanism_for_another_sensitivity_is_refused() -> None:
    other = RewardLattice(R, 2 * DELTA)
    with pytest.raises(ValueError, match="lattice"):
        PrivITP(LATTICE, mechanism(other), chunk=2, order=ORDER)
    with pytest.raises(ValueError, match="lattice"):
        PrivITP(LATTICE, mechanism(reward_max=2 * R), chunk=2, order=ORDER)


def test_the_chunk_is_no_part_of_the_facts() -> None:
    assert rule(1).facts() == rule(8).facts()
    assert rule(1).facts() == {
        "rule": "privitp",
        "candidates": N,
        "regularization": BETA,
        "threshold_noise": SIGMA_X,
        "reward_noise": SIGMA_Z,
        "truncation": L,
    }


def test_the_session_is_asked_in_order() -> None:
    session: FakeSession
    ((_, session),) = selections(rule(chunk=8), LATTICE, lambda i: 2.0, 1)
    assert session.order[:2] == ["draw", "rewards"]
