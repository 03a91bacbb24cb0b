"""Laws of plan, release and aggregate: exact sensitivity, noise on every cell, nothing clipped, exact sums."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from fractions import Fraction

import pytest

from reticent.accounting.calibration import (
    InvalidDocumentError,
    Plan,
    RecordInvalidError,
    Release,
    Schedule,
    Site,
    SiteBatch,
    WrongBatchSizeError,
    aggregate,
    make_release,
)
from reticent.accounting.calibration.aggregate import mixture_transfer
from reticent.accounting.calibration.recruitment import Recruitment
from reticent.accounting.calibration.schedule import (
    Design,
    NeverFiresError,
    compare,
    expected_first_look,
    first_look,
    fraction_certified,
)
from reticent.accounting.charges.gaussian import discrete_calibrated_scale
from reticent.accounting.fingerprint import Fingerprint, parse_json

THRESHOLDS = (0.2, 0.5, 0.8)


def make_plan(**changes: object) -> Plan:
    arguments: dict[str, object] = {
        "target_risk": 0.3,
        "thresholds": THRESHOLDS,
        "sites": (Site("north", 0.5), Site("south", 0.3, drift=0.01), Site("west", 0.2)),
        "epsilon": 4.0,
        "delta": 1e-6,
        "schedule": Schedule(20, 1.5, 3),
        "loss": "wrong answer",
        "score": "self-consistency",
        "fingerprint": Fingerprint({"model": "a", "selection": {"rule": "privbon", "candidates": 8}}),
        **changes,
    }
    if "noise_scale" in arguments:
        return Plan(**arguments)  # type: ignore[arg-type]
    return Plan.calibrated(**arguments)  # type: ignore[arg-type]


def vector(batch: SiteBatch) -> list[int]:
    return [*batch.loss_counts, *batch.nonloss_counts]


def test_one_slot_moves_the_histogram_by_exactly_one() -> None:
    """Brute force: every batch of three records of a grid against the same batch with one slot zeroed out."""
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(3), max_unfilled=0.5)
    records = list(itertools.product((0.0, 0.2, 0.79, 1.0), (0.0, 1.0)))
    distances = set()
    for batch in itertools.product(records, repeat=3):
        whole = vector(SiteBatch.from_records(plan, 1, "only", batch))
        for slot in range(3):
            rest = vector(SiteBatch.from_records(plan, 1, "only", batch[:slot] + batch[slot + 1 :]))
            distances.add(math.dist(whole, rest))
            assert sum(whole) - sum(rest) == 1
    assert distances == {1.0}


def test_counting_accepted_and_lost_records_instead_would_have_sensitivity_root_two() -> None:
    """The twin that fails: the paper's pair of histograms (C, E)."""
    assert math.dist((1, 1), (0, 0)) == math.sqrt(2) > 1.0


def test_records_fall_into_the_bins_of_the_paper() -> None:
    """Equations 10 to 12: [0, λ_1), [λ_b, λ_{b+1}), [λ_m, 1]."""
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(8))
    scores = (0.0, 0.1999, 0.2, 0.4999, 0.5, 0.8, 0.81, 1.0)
    batch = SiteBatch.from_records(plan, 1, "only", [(score, 1.0) for score in scores])
    assert batch.loss_counts == (2, 2, 1, 3)
    assert batch.nonloss_counts == (0, 0, 0, 0)


def test_fractional_losses_are_rounded_to_zero_or_one_with_the_right_mean() -> None:
    n = 6000
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(n))
    batch = SiteBatch.from_records(plan, 1, "only", [(0.9, 0.3)] * n)
    assert batch.loss_counts[3] + batch.nonloss_counts[3] == n
    # The coins come from the operating system; eight standard deviations are missed once in 1e15 runs.
    assert abs(batch.loss_counts[3] - 0.3 * n) < 8 * math.sqrt(0.21 * n)


def test_every_cell_gets_its_own_noise_and_none_is_clipped() -> None:
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(1))
    batch = SiteBatch.from_records(plan, 1, "only", [(0.9, 0.0)])
    draws = iter(range(-4, 4))
    release = make_release(plan, batch, noise=lambda: next(draws))
    assert release.loss_counts == (-4, -3, -2, -1)
    assert release.nonloss_counts == (0, 1, 2, 4)
    assert next(draws, None) is None


def test_real_noise_differs_from_release_to_release_and_goes_below_zero() -> None:
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(1), epsilon=1.0)
    batch = SiteBatch.from_records(plan, 1, "only", [(0.9, 0.0)])
    releases = [make_release(plan, batch) for _ in range(40)]
    assert len(set(releases)) == 40
    cells = [count for release in releases for count in release.loss_counts]
    assert min(cells) < 0 < max(cells)
    spread = sum(count**2 for count in cells) / len(cells)
    assert 0.3 < spread / plan.noise_scale**2 < 3.0


@pytest.mark.parametrize("kind", ["loss_nonloss", "count_error"])
def test_a_release_draws_once_for_every_cell_at_the_scale_of_the_plan(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(3), release=kind)
    asked = []

    def draws(scale: float, count: int) -> tuple[int, ...]:
        asked.append((scale, count))
        return tuple(100 * (i + 1) for i in range(count))

    monkeypatch.setattr("reticent.accounting.calibration.release.discrete_gaussians", draws)
    release = make_release(plan, SiteBatch.from_records(plan, 1, "only", [(0.9, 0.0), (0.3, 1.0), (0.3, 0.0)]))
    assert asked == [(plan.noise_scale, 2 * plan.bins)]
    assert release.loss_counts == (100, 201, 300, 400)
    others = release.all_counts if kind == "count_error" else release.nonloss_counts
    assert others == ((500, 602, 700, 801) if kind == "count_error" else (500, 601, 700, 801))


def test_a_batch_shows_nothing_of_its_records() -> None:
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(2))
    batch = SiteBatch.from_records(plan, 1, "only", [(0.9, 0.0)] * 2)
    assert repr(batch) == str(batch) == "SiteBatch(round_number=1, site='only', slots=2, private)"


def test_a_batch_that_is_too_small_or_too_large_is_refused() -> None:
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(10))
    for size in (0, 9, 11):
        with pytest.raises(WrongBatchSizeError) as caught:
            SiteBatch.from_records(plan, 1, "only", [(0.5, 0.0)] * size)
        assert (caught.value.records, caught.value.least, caught.value.most) == (size, 10, 10)
    lenient = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(10), max_unfilled=0.29)
    assert SiteBatch.from_records(lenient, 1, "only", [(0.5, 0.0)] * 8).slots == 10
    with pytest.raises(WrongBatchSizeError):
        SiteBatch.from_records(lenient, 1, "only", [(0.5, 0.0)] * 7)


@pytest.mark.parametrize("record", [(math.nan, 0.0), (0.5, math.nan), (1.0001, 0.0), (-0.1, 1.0), (0.5, 7.0), ("x", 1)])
def test_a_bad_record_is_refused_without_repeating_it(record: tuple[float, float]) -> None:
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(2))
    with pytest.raises(RecordInvalidError) as caught:
        SiteBatch.from_records(plan, 1, "only", [(0.5, 0.0), record])
    assert caught.value.index == 1
    assert str(record[0]) not in str(caught.value).replace("record 1", "").replace("[0, 1]", "")


def test_a_batch_made_for_another_plan_is_refused() -> None:
    plan = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(1))
    other = make_plan(sites=(Site("only", 1.0),), schedule=Schedule(1), target_risk=0.2)
    with pytest.raises(ValueError, match="made for plan"):
        make_release(other, SiteBatch.from_records(plan, 1, "only", [(0.5, 0.0)]))


def test_a_release_survives_json_and_refuses_what_is_not_one() -> None:
    release = Release("d", 2, "north", 5, (1, -2), (3, 4), 0.5)
    assert Release.from_json(release.to_json()) == release
    for key, value in (
        ("round", True),
        ("slots", 5.0),
        ("site", None),
        ("loss_counts", [1.0, 2]),
        ("nonloss_counts", {}),
        ("noise_scale", 1),
        ("extra", 1),
    ):
        with pytest.raises(InvalidDocumentError):
            Release.from_json({**release.to_json(), key: value})


def test_suffix_sums_count_each_cell_at_every_threshold_below_it() -> None:
    """Against a brute-force sum over bins, with random releases in two orders."""
    plan = make_plan()
    rng = random.Random(3)
    releases = [
        Release(
            plan.digest,
            number,
            site.name,
            plan.slots(number, site.name),
            tuple(rng.randint(-9, 40) for _ in range(4)),
            tuple(rng.randint(-9, 40) for _ in range(4)),
            plan.noise_scale,
        )
        for number in (1, 2)
        for site in plan.sites
        if (number, site.name) != (2, "south")
    ]
    total = aggregate(plan, releases)
    assert total == aggregate(plan, releases[::-1])
    for j in range(3):
        assert total.accepted_loss[j] == sum(r.loss_counts[b] for r in releases for b in range(j + 1, 4))
        assert total.accepted_nonloss[j] == sum(r.nonloss_counts[b] for r in releases for b in range(j + 1, 4))
        assert total.noise_variance[j] == pytest.approx((3 - j) * 5 * plan.noise_scale**2, rel=1e-15)
    assert total.events_by_site == (15, 6, 6)  # south's second release never came
    assert total.events == 27
    assert total.releases == 5
    expected = (abs(Fraction(1, 2) - Fraction(15, 27)) + abs(Fraction(3, 10) - Fraction(6, 27))) / 2
    expected += abs(Fraction(1, 5) - Fraction(6, 27)) / 2 + Fraction(3, 1000)
    assert total.transfer == pytest.approx(float(expected), rel=1e-14)
    assert total.contrast_transfer == total.transfer


def test_empty_slots_hide_contrast_and_are_paid_for() -> None:
    """Two sites with contrasts +0.2 and -0.2: the mixture is at the target. The first leaves every tenth slot empty."""
    r, slots = 0.3, 1000
    plan = make_plan(sites=(Site("a", 0.5), Site("b", 0.5)), schedule=Schedule(2 * slots), max_unfilled=0.1)
    total = aggregate(plan, [Release(plan.digest, 1, s, slots, (0,) * 4, (0,) * 4, plan.noise_scale) for s in "ab"])
    mean_contrast = (900 * 0.2 - 1000 * 0.2) / (2 * slots)
    assert total.transfer == 0.0
    assert mean_contrast < -total.transfer  # η alone would call a bad mixture good
    assert mean_contrast >= -total.contrast_transfer
    assert total.contrast_transfer == pytest.approx(0.1 * (1 - r))


def test_before_the_first_release_the_transfer_is_as_large_as_it_can_be() -> None:
    assert mixture_transfer((0.5, 0.5), (0, 0), (0.0, 0.1)) == pytest.approx(1.05)
    assert mixture_transfer((1.0, 0.0), (0, 9), (0.0, 0.0)) == 1.0
    assert mixture_transfer((0.25, 0.75), (1, 3), (0.0, 0.0)) == 0.0


def test_slots_follow_the_schedule_and_the_weights() -> None:
    plan = make_plan()
    assert plan.schedule.looks() == (20, 30, 45)
    assert [[plan.slots(t, s.name) for s in plan.sites] for t in (1, 2, 3)] == [[10, 6, 4], [5, 3, 2], [8, 5, 3]]
    with pytest.raises(ValueError, match="no site"):
        plan.slots(1, "east")
    with pytest.raises(ValueError, match="rounds 1 to 3"):
        plan.slots(4, "north")


def test_a_plan_survives_json_with_the_same_digest() -> None:
    plan = make_plan(thresholds=(0.1, 1 / 3, 0.7), max_unfilled=0.05)
    again = Plan.from_json(parse_json(json.dumps(plan.to_json())))
    assert again == plan
    assert again.digest == plan.digest
    assert make_plan(thresholds=[0.2, 0.5, 0.8], epsilon=4).digest == make_plan().digest


def test_any_change_of_a_plan_changes_its_digest() -> None:
    plan = make_plan()
    changes: dict[str, object] = {
        "target_risk": 0.31,
        "thresholds": (0.2, 0.5, 0.81),
        "sites": (Site("north", 0.5), Site("south", 0.3), Site("west", 0.2)),
        "epsilon": 4.1,
        "delta": 2e-6,
        "noise_scale": plan.noise_scale + 1.0,
        "schedule": Schedule(20, 1.5, 4),
        "loss": "other",
        "score": "other",
        "fingerprint": Fingerprint({"model": "b"}),
        "min_acceptance": 0.06,
        "alpha_risk": 0.044,
        "alpha_acceptance": 0.004,
        "max_unfilled": 0.01,
        "recruitment": Recruitment("largest_deficit"),
        "rule": "fed_src_c",
    }
    assert changes.keys() | {"release", "subgroup"} == {f.name for f in dataclasses.fields(Plan)}
    digests = {dataclasses.replace(plan, **{name: value}).digest for name, value in changes.items()}  # type: ignore[arg-type]
    digests.add(dataclasses.replace(plan, release="count_error", noise_scale=plan.noise_scale + 1.0).digest)
    assert len(digests | {plan.digest}) == len(changes) + 2


@pytest.mark.parametrize(
    "changes",
    [
        {"target_risk": 0.0},
        {"target_risk": math.nan},
        {"thresholds": ()},
        {"thresholds": (0.5, 0.5)},
        {"thresholds": (0.5, 1.5)},
        {"sites": ()},
        {"sites": (Site("a", 0.5), Site("a", 0.5))},
        {"sites": (Site("a", 0.5), Site("b", 0.4))},
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"delta": 1.0},
        {"noise_scale": 0.3},
        {"noise_scale": 0.0},
        {"max_unfilled": 1.0},
        {"rule": "fed-src-c"},
        {"loss": ""},
        {"alpha_risk": 0.996},
    ],
)
def test_plans_outside_their_ranges_are_refused(changes: dict[str, object]) -> None:
    make_plan(noise_scale=5.0)
    with pytest.raises(ValueError):
        make_plan(**{"noise_scale": 5.0, **changes})


def test_schedules_and_sites_outside_their_ranges_are_refused() -> None:
    for arguments in ((0,), (10, 1.0), (10, 1.4, 0), (10**9, 1.4, 3), (10, math.inf, 2), (10, math.nan, 2)):
        with pytest.raises(ValueError):
            Schedule(*arguments)
    for name, weight, drift in (("", 0.5, 0.0), (" a", 0.5, 0.0), ("a", 1.5, 0.0), ("a", 0.5, -0.1), ("a", 0.5, 2.0)):
        with pytest.raises(ValueError):
            Site(name, weight, drift)


def test_the_first_look_formula_gives_the_design_s_value() -> None:
    plan = make_plan(thresholds=tuple(i / 21 for i in range(1, 21)), epsilon=1.0)
    x0 = math.log(20 / 0.045) + 2
    v1 = (0.49 + 0.09) * 4 * 3 * plan.noise_scale**2
    assert first_look(plan.claim, 20, plan.noise_scale, 3) == math.ceil(math.sqrt(2 * x0 * v1) / 0.02)
    assert first_look(plan.claim, 20, 0.0, 3) == 500


def development(n: int = 400) -> list[tuple[float, float]]:
    """A score that separates well: risk falls from 0.9 to 0 as the score grows."""
    return [((i + 0.5) / n, 1.0 if (i * 7919) % n / n < 0.9 * (1 - (i + 0.5) / n) else 0.0) for i in range(n)]


def test_half_of_the_runs_fire_at_the_expected_first_look() -> None:
    claim = make_plan().claim
    design = Design(claim, (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), discrete_calibrated_scale(4.0, 1e-6), sites=3)
    look = expected_first_look(development(), design, trials=100, seed=7)
    assert fraction_certified(development(), design, look, 100, 7) >= 0.5
    assert 0.3 < fraction_certified(development(), design, look, 400, 8) < 0.7
    assert fraction_certified(development(), design, 3 * look, 100, 7) > 0.95
    assert fraction_certified(development(), design, look // 3, 100, 7) < 0.1
    assert look == expected_first_look(development(), design, trials=100, seed=7)


def test_more_noise_means_a_later_first_look_and_a_useless_score_none() -> None:
    claim = make_plan().claim
    looks = [
        expected_first_look(development(), Design(claim, (0.5, 0.7, 0.9), sigma, 3), trials=60, seed=1)
        for sigma in (0.0, 1.0, 8.0)
    ]
    assert looks[0] < looks[1] < looks[2]
    flat = [(score, float(index % 2)) for index, (score, _) in enumerate(development())]
    design = Design(claim, (0.5, 0.7, 0.9), 1.0, 3)
    with pytest.raises(NeverFiresError) as caught:
        expected_first_look(flat, design, trials=40, seed=1, max_events=5000)
    assert caught.value.max_events == 5000
    found = compare({"flat": flat, "good": development()}, {"flat": design, "good": design}, (0.2, 0.3), 40, 1)
    assert [(o.target_risk, o.score) for o in found] == [(0.2, "good"), (0.2, "flat"), (0.3, "good"), (0.3, "flat")]
    assert found[0].first_look is not None
    assert found[1].first_look is None
    assert found[2].acceptance == pytest.approx(0.5, abs=0.15)
