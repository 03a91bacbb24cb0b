"""Seeded studies of the fitted cells: what was published of the paper's rule, what is asked of the e-process."""

from __future__ import annotations

import json
import math
from importlib.resources import files

import pytest

from reticent.accounting.studies.certificates.study import Result, Study, run

pytestmark = pytest.mark.simulation

DOCUMENT = json.loads(
    files("reticent.accounting.studies.certificates").joinpath("cells.json").read_text(encoding="utf-8")
)
TARGETS = {"c1": 0.3, "halueval": 0.2}


def study(cell: str, rule: str, epsilon: float, schedule: str, target: float | None = None) -> Result:
    return run(Study(cell, rule, TARGETS[cell] if target is None else target, epsilon, 200, 7, schedule))


@pytest.mark.parametrize(("cell", "epsilon_of_twin"), [("c1", 1.0), ("halueval", 4.0)])
def test_the_papers_rule_fires_about_as_published(cell: str, epsilon_of_twin: float) -> None:
    """The seed is not one that the fit used. The twin: with less noise than published the rule fires too often."""
    for epsilon, (low, high) in DOCUMENT["cells"][cell]["aim"].items():
        found = study(cell, "fed_src_c", float(epsilon), "paper")
        assert low <= found.fired <= high, (epsilon, found)
        assert found.violations == 0
    plain = run(Study(cell, "fed_src_c", TARGETS[cell], epsilon_of_twin, 200, 7, "paper", "plain"))
    assert plain.fired > 60 > study(cell, "fed_src_c", epsilon_of_twin, "paper").fired


@pytest.mark.parametrize("cell", ["c1", "halueval"])
def test_the_e_process_fires_at_epsilon_1_on_the_papers_schedule_and_sooner_on_its_own(cell: str) -> None:
    on_paper = study(cell, "eprocess", 1.0, "paper")
    assert on_paper.fired == 200
    own = study(cell, "eprocess", 1.0, "own")
    assert own.fired == 200
    assert own.median_events is not None
    assert own.median_events <= 3500
    for found in (on_paper, own):
        assert found.false_certifications == 0
        assert found.violations <= 4
        assert found.risk is not None
        assert found.risk <= TARGETS[cell]


def test_the_primary_target_is_reached_on_halueval_where_the_papers_rule_reaches_it_nowhere() -> None:
    assert study("halueval", "eprocess", 2.0, "own", 0.1).fired >= 190
    assert study("halueval", "eprocess", 1.0, "dev", 0.1).fired >= 150
    assert study("halueval", "fed_src_c", math.inf, "paper", 0.1).fired == 0


def test_a_development_split_saves_events_on_c1() -> None:
    own, dev = (study("c1", "eprocess", 0.5, schedule) for schedule in ("own", "dev"))
    assert dev.fired == own.fired == 200
    assert dev.median_events is not None
    assert own.median_events is not None
    assert dev.median_events < own.median_events


@pytest.mark.parametrize(
    "rule", ["central_ltt", "federated_non_private", "anytime_valid_crc", "csa", "private_fixed_time"]
)
def test_comparators_keep_their_promise_on_their_own_ground_and_naive_ones_do_not(rule: str) -> None:
    native = study("c1", rule, 1.0, "paper")
    assert native.violations <= 9
    if native.noise_scale == 0.0:
        naive = study("c1", f"naive:{rule}", 1.0, "paper")
        assert naive.violations > 20, (rule, naive)
