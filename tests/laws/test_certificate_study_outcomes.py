"""How a study counts: what fired, when, and what was wrong."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from reticent.accounting.calibration import Claim
from reticent.accounting.certificates.bounds import SMALLEST_INDEX, Bounds, Sums, Transfer
from reticent.accounting.certificates.rules import RULES
from reticent.accounting.studies.certificates.comparator_base import Comparator, Native
from reticent.accounting.studies.certificates.controls import resolve
from reticent.accounting.studies.certificates.engine import simulate
from reticent.accounting.studies.certificates.null_suite import CASES, CONTROL_CASES, transcripts_of, violation_rate
from reticent.accounting.studies.certificates.populations import binary_losses
from reticent.accounting.studies.certificates.streams import Stream, even
from reticent.accounting.studies.certificates.study import PAPER_RELEASE, PLAIN_RELEASE, Study, evaluate, run

CLAIM = Claim(0.3, 0.05, 0.045, 0.005)
# Risk .5 at the lower threshold, .1 at the upper one; acceptance .8 and .4.
POPULATION = binary_losses("two", [[0.2, 0.4, 0.4]], [[0.5, 0.9, 0.1]], [1.0])


class Scripted(Comparator):
    """Says in round t what it is told to say."""

    name = "scripted"
    native = Native("noised", "every", iid=False)
    selection = SMALLEST_INDEX

    def __init__(self, contrast: list[list[float]], acceptance: list[list[float]], looks: str = "every") -> None:
        self.contrast, self.acceptance = np.array(contrast), np.array(acceptance)
        self.native = Native("noised", "final" if looks == "final" else "every", iid=False)

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer | None = None) -> Bounds:
        shape = sums.loss.shape
        d, a = np.broadcast_to(self.contrast, shape), np.broadcast_to(self.acceptance, shape)
        return Bounds(d, a, (d <= 0.0) & (a >= claim.min_acceptance))


def outcome(rule: Comparator) -> tuple[bool, float, int, bool, bool]:
    transcripts = simulate(POPULATION, Stream(even(2, 100, 1), 0.0), 3, 1)
    found = evaluate(rule, CLAIM, transcripts, POPULATION)
    return (
        bool(found.fired[0]),
        float(found.events[0]),
        int(found.chosen[0]),
        bool(found.violated[0]),
        bool(found.false[0]),
    )


def test_an_outcome_says_when_it_fired_and_what_was_wrong() -> None:
    d = POPULATION.contrast(0.3)
    assert d == pytest.approx([0.16, -0.08])
    right = Scripted([[0.7, 0.7], [0.7, -0.05]], [[0.0, 0.0], [0.5, 0.3]])
    assert outcome(right) == (True, 200.0, 1, False, False)
    # A bound below the truth is a violation, also where nothing is certified.
    assert outcome(Scripted([[0.1, 0.7], [0.7, 0.7]], [[0.0, 0.0]]))[0] is False
    assert outcome(Scripted([[0.1, 0.7], [0.7, 0.7]], [[0.0, 0.0]]))[3:] == (True, False)
    assert outcome(Scripted([[0.7, 0.7]], [[0.9, 0.0]]))[3:] == (True, False)
    # What is certified falsely counts, also after the first certificate.
    late = Scripted([[0.7, -0.01], [-0.01, -0.01]], [[0.1, 0.1]])
    assert outcome(late) == (True, 100.0, 1, True, True)
    # A rule for the final look says nothing before it.
    final = Scripted([[-0.1, -0.1], [0.7, -0.01]], [[0.1, 0.1]], looks="final")
    assert outcome(final) == (True, 200.0, 1, False, False)
    assert math.isnan(outcome(Scripted([[0.7, 0.7]], [[0.1, 0.1]]))[1])


def test_the_direct_audit_of_the_e_process_finds_what_its_bounds_show() -> None:
    """`violation_rate` compares evidences at the truth; the bounds solve for the same crossing."""
    controls = [(name, case) for name, case in CONTROL_CASES if name.endswith(":eprocess")]
    cases = [("eprocess", CASES[3]), ("eprocess", CASES[15]), *controls]
    for name, case in cases:
        short = replace(case, stream=replace(case.stream, slots=case.stream.slots[:12]))
        transcripts = transcripts_of(short, 120, 3)
        rule = RULES["eprocess"] if name == "eprocess" else resolve(name)
        slow = evaluate(rule, short.claim, transcripts, short.deployment, drift=short.drift).violated.mean()
        assert violation_rate(rule, short, transcripts) == pytest.approx(float(slow), abs=1e-12)
    assert {name for name, _ in controls} == {
        "noise_ignored:eprocess",
        "variance_halved:eprocess",
        "shift_ignored:eprocess",
    }


def test_null_cases_have_the_target_risk_in_deployment() -> None:
    for case in (*CASES, *(case for _, case in CONTROL_CASES)):
        assert np.allclose(case.deployment.contrast(case.target_risk), 0.0, atol=1e-12)
        distance = 0.5 * np.abs(case.deployment.cells - case.calibration.cells).sum(axis=(1, 2))
        assert case.deployment.weights @ distance <= case.drift + 1e-12


def test_the_paper_release_and_the_plain_one_have_the_stated_scales() -> None:
    for epsilon, paper, plain in ((8.0, 1.05, 0.659), (4.0, 1.98, 1.170), (2.0, 3.85, 2.247), (1.0, 7.57, 4.231)):
        assert PAPER_RELEASE.scale(epsilon) == pytest.approx(paper, abs=0.01)
        assert PLAIN_RELEASE.scale(epsilon) == pytest.approx(plain, abs=0.001)
    assert PLAIN_RELEASE.scale(math.inf) == 0.0


def test_a_study_is_repeatable_and_writes_plain_json() -> None:
    study = Study("c1", "eprocess", 0.3, 4.0, trials=20, seed=5)
    one, two = run(study), run(study)
    assert one == two
    document = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    wanted = {"fired", "median_events", "acceptance", "risk", "violations", "false_certifications"}
    assert wanted <= document.keys()
    assert document["fired"] == 20
    assert document["release"] == "plain"
    nothing = run(Study("halueval", "fed_src_c", 0.1, 1.0, trials=5)).to_dict()
    assert (nothing["fired"], nothing["median_events"], nothing["risk"]) == (0, None, None)
    assert nothing["release"] == "paper"


def test_methods_for_exact_records_get_them_and_local_ones_each_site_alone() -> None:
    exact = run(Study("c1", "csa", 0.3, 1.0, trials=10, schedule="paper"))
    assert exact.noise_scale == 0.0
    assert run(Study("c1", "naive:csa", 0.3, 1.0, trials=10, schedule="paper")).noise_scale > 4.0
    local = run(Study("c1", "local_only", 0.3, 1.0, trials=10, schedule="paper"))
    assert local.median_events == 6000.0
    assert local.fired == 10


@pytest.mark.parametrize(
    "change", [{"cell": "c9"}, {"rule": "x"}, {"epsilon": 0.0}, {"trials": 0}, {"schedule": "x"}, {"release": "x"}]
)
def test_a_study_of_nothing_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        run(replace(Study("c1", "eprocess", 0.3, 4.0, trials=2), **change))  # type: ignore[arg-type]
