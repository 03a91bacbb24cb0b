"""The null suite: 1,000 trials of every kind of stream, the risk exactly at the target at every threshold.

A longer one: `python -m reticent.accounting.studies.certificates.null_suite --trials 10000`.
"""

from __future__ import annotations

import pytest

from reticent.accounting.certificates.rules import RULES
from reticent.accounting.studies.certificates.controls import resolve
from reticent.accounting.studies.certificates.null_suite import (
    ALLOWED,
    CASES,
    CONTROL_CASES,
    VALID_RULES,
    NullCase,
    transcripts_of,
    violation_rate,
)

pytestmark = pytest.mark.simulation

TRIALS = 1000
CONTROL_TRIALS = 400


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_valid_rule_is_wrong_about_any_bound_more_often_than_allowed(case: NullCase) -> None:
    transcripts = transcripts_of(case, TRIALS, 101)
    for name in VALID_RULES:
        assert violation_rate(RULES[name], case, transcripts) <= ALLOWED, name


@pytest.mark.parametrize(("name", "case"), CONTROL_CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_every_broken_rule_is_wrong_more_often_than_allowed(name: str, case: NullCase) -> None:
    rate = violation_rate(resolve(name), case, transcripts_of(case, CONTROL_TRIALS, 202))
    assert rate > (0.5 if name.startswith("noise_ignored") else ALLOWED)


def test_the_suite_covers_every_kind_of_stream() -> None:
    kinds = {case.stream.policy.__name__ for case in CASES if case.stream.policy is not None}
    assert kinds == {"adversarial", "largest_deficit", "adaptive_scale", "uneven_batches"}
    assert max(case.stream.rounds for case in CASES) == 300
    assert any(case.stream.dropout > 0 for case in CASES)
    assert any(case.drift > 0 for case in CASES)
    assert any(len(case.calibration.loss_values) > 2 for case in CASES)
    assert {case.stream.release for case in CASES} == {"loss_nonloss", "count_error"}
    assert {case.stream.discrete for case in CASES} == {True, False}
    assert set(VALID_RULES) == set(RULES)
