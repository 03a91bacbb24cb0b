"""The drift audit: its bounds against enumeration and simulation, with twins that must fail, and its command."""

from __future__ import annotations

import csv
import itertools
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from reticent.accounting.calibration import (
    Plan,
    RecordInvalidError,
    Schedule,
    Site,
    SiteBatch,
    Transcript,
    make_release,
)
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS
from reticent.accounting.certificates import issue
from reticent.accounting.certificates.drift import audit_drift, drift_bounds
from reticent.accounting.certificates.drift_cells import (
    CellCounts,
    NotComparable,
    counts_of_records,
    counts_of_transcript,
    require_comparable,
)
from reticent.accounting.fingerprint import Fingerprint
from reticent.plugin.cli.certify import app

Records = list[tuple[float, float]]
CELLS, BINS = 8, 4
RUNNER = CliRunner()


def plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "target_risk": 0.3,
        "thresholds": (0.25, 0.5, 0.75),
        "sites": (Site("north", 0.5, 0.08), Site("south", 0.5, 0.08)),
        "epsilon": 4.0,
        "delta": 1e-6,
        "schedule": Schedule(6000),
        "loss": "wrong answer",
        "score": "self_consistency",
        "fingerprint": Fingerprint({"model": "a"}),
    }
    return Plan.calibrated(**{**values, **changes})  # type: ignore[arg-type]


def answers(seed: int, count: int, shift: float = 0.0) -> Records:
    """Scores uniform, losses rarer the higher the score; a share `shift` has score 0.9 and loss 1 instead."""
    rng = np.random.default_rng(seed)
    found = []
    for score, u, moved in rng.random((count, 3)):
        found.append((0.9, 1.0) if moved < shift else (float(score), float(u < 0.4 * (1.0 - score))))
    return found


def calibrated(under: Plan, seed: int = 1, shift: float = 0.0) -> Transcript:
    transcript = Transcript(under)
    for number in range(1, under.schedule.rounds + 1):
        for index, site in enumerate(under.sites):
            records = answers(seed + 10 * index + 100 * number, under.slots(number, site.name), shift)
            transcript.append(make_release(under, SiteBatch.from_records(under, number, site.name, records)))
    return transcript


def counts(values: NDArray[np.int64], slots: int, sigma: float = 0.0) -> CellCounts:
    cells = tuple(float(x) for x in values)
    noise = BINS * sigma**2
    return CellCounts(cells[:BINS], cells[BINS:], slots, noise, 2.0 * noise)


def draws(seed: int, trials: int, shift: float, sigma: float) -> tuple[float, list[tuple[float, float, float]]]:
    """The true distance, and (T, lower, upper) of repeated audits at α = 0.05. Noise by the test's own generator."""
    rng = np.random.default_rng(seed)
    P = np.array([0.2, 0.1, 0.1, 0.05, 0.05, 0.1, 0.1, 0.3])
    Q = (1.0 - shift) * P + shift * np.eye(CELLS)[3]
    N, n = 400, 300
    found = []
    for _ in range(trials):
        x, y = rng.multinomial(N, P), rng.multinomial(n, Q)
        x = x + np.rint(rng.normal(0.0, sigma, CELLS)).astype(np.int64) if sigma else x
        found.append(drift_bounds(counts(x, N, sigma), counts(y, n), 0.05, CELLS))
    return 0.5 * float(np.abs(P - Q).sum()), found


@pytest.mark.parametrize("sigma", [0.0, 6.0])
@pytest.mark.parametrize("shift", [0.0, 0.05, 0.4])
def test_each_bound_fails_in_no_more_trials_than_alpha_allows(shift: float, sigma: float) -> None:
    truth, found = draws(11, 1500, shift, sigma)
    allowed = 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / 1500)
    assert sum(upper < truth for _, _, upper in found) / 1500 <= allowed
    assert sum(lower > truth for _, lower, _ in found) / 1500 <= allowed


def test_the_distance_of_the_histograms_is_no_bound() -> None:
    """The twin: without its width the upper bound fails where the laws lie far apart."""
    truth, found = draws(12, 1500, 0.4, 0.0)
    assert sum(truth > T for T, _, _ in found) / 1500 > 0.3


def test_noise_that_is_left_out_of_account_makes_drift_out_of_nothing() -> None:
    """The twin: the lower bound as if nothing had been added to the counts."""
    rng = np.random.default_rng(13)
    P, N = np.full(CELLS, 1.0 / CELLS), 400
    wrong = right = 0
    for _ in range(400):
        x = rng.multinomial(N, P) + np.rint(rng.normal(0.0, 40.0, CELLS)).astype(np.int64)
        y = rng.multinomial(N, P)
        wrong += drift_bounds(counts(x, N), counts(y, N), 0.05, CELLS)[1] > 0.0
        right += drift_bounds(counts(x, N, 40.0), counts(y, N), 0.05, CELLS)[1] > 0.0
    assert wrong / 400 > 0.3
    assert right / 400 <= 0.05


def test_the_mean_distance_is_never_below_the_true_one() -> None:
    """By enumeration of all samples of 4 and 3 records in 3 cells."""
    P, Q = (0.5, 0.3, 0.2), (0.1, 0.3, 0.6)
    mean = 0.0
    for xs in itertools.product(range(3), repeat=4):
        for ys in itertools.product(range(3), repeat=3):
            T = 0.5 * sum(abs(xs.count(c) / 4 - ys.count(c) / 3) for c in range(3))
            mean += T * math.prod(P[c] for c in xs) * math.prod(Q[c] for c in ys)
    assert mean >= 0.5 * sum(abs(p - q) for p, q in zip(P, Q, strict=True))


def test_one_record_moves_the_distance_by_its_share_at_most() -> None:
    under = plan()
    base, other = answers(1, 20), counts_of_records(under, answers(2, 30))
    start = drift_bounds(counts_of_records(under, base), other, 0.05, CELLS)[0]
    for index, new in itertools.product(range(20), [(0.0, 0.0), (0.3, 0.5), (0.9, 1.0)]):
        changed = [*base[:index], new, *base[index + 1 :]]
        assert abs(drift_bounds(counts_of_records(under, changed), other, 0.05, CELLS)[0] - start) <= 1 / 20 + 1e-12


@pytest.mark.parametrize("sigma", [0.4, 1.17, 4.0])
def test_the_proxy_of_a_noise_variable_covers_a_lipschitz_function_of_a_discrete_gaussian(sigma: float) -> None:
    """By summation: log E exp(λ(g - E g)) ≤ λ²(2σ²)/2 for g = |a + X|, both signs of λ."""
    x = np.arange(-80, 81)
    p = np.exp(-(x**2) / (2 * sigma**2))
    p /= p.sum()
    for a in (-3.0, -0.5, 0.0, 0.25, 1.0, 7.0):
        g = np.abs(a + x)
        g = g - float(p @ g)
        for bet in (-3.0, -1.0, -0.1, 0.1, 1.0, 3.0):
            assert math.log(float(p @ np.exp(bet * g))) <= bet**2 * sigma**2 + 1e-12


def test_the_bounds_of_a_small_case_are_those_of_the_formula() -> None:
    ours = CellCounts((5.0, 1.0), (2.0, 2.0), 10, 3.0, 6.0, 0.1)
    theirs = CellCounts((1.0, 3.0), (4.0, 0.0), 8)
    T, lower, upper = drift_bounds(ours, theirs, 0.1, 4)
    assert pytest.approx(0.5 * (0.375 + 0.275 + 0.3 + 0.2)) == T
    v = (1 / 10 + 1 / 8) / 4 + 3.0 / 100
    assert upper == pytest.approx(min(1.0, T + math.sqrt(2 * v * math.log(10)) + 0.05))
    assert lower == 0.0


def test_joined_cells_lie_no_further_apart_than_all_cells() -> None:
    under = plan()
    ours, theirs = (counts_of_records(under, answers(seed, 500, shift)) for seed, shift in ((1, 0.0), (2, 0.3)))
    whole = drift_bounds(ours, theirs, 0.05, CELLS)[0]
    for j in (1, 2, 3):
        joined = ours.joined(j)
        assert sum(joined.loss) + sum(joined.nonloss) == pytest.approx(500)
        line = under.thresholds[j - 1]
        assert joined.loss[1] == pytest.approx(sum(z for s, z in answers(1, 500) if s >= line))
        assert drift_bounds(joined, theirs.joined(j), 0.05, 3)[0] <= whole + 1e-12


@pytest.mark.parametrize("release", [LOSS_NONLOSS, COUNT_ERROR])
def test_an_audit_of_released_histograms_confirms_what_has_not_moved_and_finds_what_has(release: str) -> None:
    under = plan(release=release, schedule=Schedule(8000))
    transcript = calibrated(under)
    counted = counts_of_transcript(transcript)["north"]
    exact = counts_of_records(under, answers(101, 4000))
    assert max(abs(a - b) for a, b in zip(counted.loss, exact.loss, strict=True)) < 60
    assert max(abs(a - b) for a, b in zip(counted.nonloss, exact.nonloss, strict=True)) < 60
    still, moved = (counts_of_transcript(calibrated(under, 500, shift)) for shift in (0.0, 0.5))
    quiet = audit_drift(transcript, still, 0.05)
    assert [site.verdict for site in quiet.sites] == ["within", "within"]
    assert quiet.unconfirmed == ()
    assert quiet.audited_transfer < quiet.declared_transfer + 1e-12 == pytest.approx(0.08)
    loud = audit_drift(transcript, {**still, "south": moved["south"]}, 0.05)
    assert (loud.exceeding, loud.unconfirmed) == (("south",), ("south",))
    assert loud.audited_transfer > 0.2


def test_a_site_without_a_sample_is_not_confirmed() -> None:
    transcript = calibrated(plan())
    audit = audit_drift(transcript, {"north": counts_of_records(plan(), answers(5, 3000))}, 0.05)
    south = audit.sites[1]
    assert (south.verdict, south.upper, south.lower, south.distance) == ("open", 1.0, 0.0, None)
    assert audit.unconfirmed == ("south",)


def test_alpha_is_shared_over_sites_rounds_and_thresholds() -> None:
    under = plan(schedule=Schedule(2000, 1.5, 4))
    transcript = calibrated(under)
    sample = counts_of_records(under, answers(7, 2000))
    ours = counts_of_transcript(transcript)["north"]
    north = audit_drift(transcript, {"north": sample}, 0.05).sites[0]
    assert (north.distance, north.lower, north.upper) == drift_bounds(ours, sample, 0.05 / (2 * 4), CELLS)
    joined = audit_drift(transcript, {"north": sample}, 0.05, threshold=0.5).sites[0]
    expected = drift_bounds(ours.joined(2), sample.joined(2), 0.05 / (2 * 4 * 3), 3)
    assert (joined.distance, joined.lower, joined.upper) == expected


def test_what_cannot_be_compared_is_refused() -> None:
    transcript = calibrated(plan(schedule=Schedule(100)))
    sample = counts_of_records(plan(), answers(1, 10))
    with pytest.raises(NotComparable, match="west"):
        audit_drift(transcript, {"west": sample}, 0.05)
    with pytest.raises(NotComparable, match="bins"):
        audit_drift(transcript, {"north": replace(sample, loss=(0.0,), nonloss=(1.0,))}, 0.05)
    with pytest.raises(ValueError, match="thresholds"):
        audit_drift(transcript, {"north": sample}, 0.05, threshold=0.6)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            audit_drift(transcript, {"north": sample}, alpha)
    with pytest.raises(ValueError, match="record"):
        counts_of_records(plan(), [])
    with pytest.raises(RecordInvalidError) as caught:
        counts_of_records(plan(), [(0.5, 0.5), (math.nan, 0.777)])
    assert (caught.value.index, "777" in str(caught.value)) == (1, False)
    for change in ({"loss": "x"}, {"score": "x"}, {"thresholds": (0.5,)}, {"fingerprint": Fingerprint({"model": "b"})}):
        with pytest.raises(NotComparable):
            require_comparable(plan(), plan(**change))
    assert "5" not in repr(sample).replace("slots=10", "")


def write_csv(path: Path, records: Records) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["score", "loss"])
        writer.writerows(records)
    return path


def test_the_command_says_which_sites_exceed(tmp_path: Path) -> None:
    transcript = calibrated(plan())
    certificate = issue(transcript, datetime.now(UTC) + timedelta(seconds=1), timedelta(days=9))
    certificate.save(tmp_path / "c.json")
    still = write_csv(tmp_path / "still.csv", answers(41, 4000))
    moved = write_csv(tmp_path / "moved.csv", answers(42, 4000, 0.4))
    command = ["drift", str(tmp_path / "c.json"), "--records", f"north={still}"]
    bad = RUNNER.invoke(app, [*command, "--records", f"south={moved}", "--json"])
    assert bad.exit_code == 1, bad.output
    document = json.loads(bad.stdout)
    assert (document["exceeding"], document["unconfirmed"], document["private"]) == (["south"], ["south"], False)
    good = RUNNER.invoke(app, [*command, "--records", f"south={still}"])
    assert good.exit_code == 0, good.output
    assert "confirmed" in good.stdout
    near = RUNNER.invoke(app, [*command, "--records", f"south={still}", "--at-threshold", "--json"])
    assert (json.loads(near.stdout)["threshold"], near.exit_code) == (certificate.threshold, 0)
    calibrated(plan(schedule=Schedule(7000)), 900).save(tmp_path / "t.json")
    noised = RUNNER.invoke(app, ["drift", str(tmp_path / "c.json"), "--released", str(tmp_path / "t.json"), "--json"])
    assert noised.exit_code == 0, noised.output
    assert json.loads(noised.stdout)["private"] is True


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    transcript = calibrated(plan(schedule=Schedule(100)))
    transcript.save(tmp_path / "t.json")
    rows = write_csv(tmp_path / "r.csv", answers(1, 10))
    base = ["drift", str(tmp_path / "t.json")]
    for arguments, status in (
        ([], 2),
        (["--records", f"north={rows}", "--released", str(tmp_path / "t.json")], 2),
        (["--records", f"west={rows}"], 78),
        (["--records", str(rows)], 78),
        (["--records", f"north={tmp_path / 'none.csv'}"], 78),
        (["--released", str(tmp_path / "t.json")], 78),
        (["--records", f"north={rows}", "--at-threshold"], 78),
        (["--records", f"north={rows}", "--alpha", "0"], 78),
    ):
        assert RUNNER.invoke(app, [*base, *arguments]).exit_code == status, arguments
