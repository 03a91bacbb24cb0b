"""Families of subgroup plans: how error and privacy are split, what a document says, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reticent.accounting.calibration import (
    InvalidDocumentError,
    Plan,
    Schedule,
    Site,
    SiteBatch,
    Transcript,
    make_release,
)
from reticent.accounting.calibration.noise_scale import release_delta
from reticent.accounting.calibration.subgroup import SUBGROUP_FACT, Subgroup
from reticent.accounting.calibration.subgroups import subgroup_plans
from reticent.accounting.certificates import Certificate, issue
from reticent.accounting.fingerprint import Fingerprint, canonical_json
from reticent.plugin.cli.calibrate import app

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "embedded" / "certificate.json"
BASE = Plan.calibrated(
    target_risk=0.3,
    thresholds=(0.2, 0.5, 0.8),
    sites=(Site("north", 0.5), Site("south", 0.5, 0.01)),
    epsilon=4.0,
    delta=1e-6,
    schedule=Schedule(1200),
    loss="wrong answer",
    score="self_consistency",
    fingerprint=Fingerprint({"model": "a"}),
)


def certified(plan: Plan, good_from: float) -> Certificate:
    """A certificate from answers that are wrong in 5 % of cases from `good_from` on, else in 90 %; no noise."""
    transcript = Transcript(plan)
    for site in plan.sites:
        slots = plan.slots(1, site.name)
        scores = [(i + 0.5) / slots for i in range(slots)]
        losses = [float((i * 37) % 100 < (5 if s >= good_from else 90)) for i, s in enumerate(scores)]
        batch = SiteBatch.from_records(plan, 1, site.name, list(zip(scores, losses, strict=True)))
        transcript.append(make_release(plan, batch, noise=lambda: 0))
    return issue(transcript, datetime.now(UTC), timedelta(days=30))


def test_the_failure_probabilities_of_a_family_add_up_to_the_base_plans() -> None:
    family = subgroup_plans(BASE, ["novice", "expert", "press"])
    assert [plan.subgroup.name for plan in family if plan.subgroup] == ["expert", "novice", "press"]
    assert sum(plan.alpha_risk for plan in family) == pytest.approx(BASE.alpha_risk, rel=1e-12)
    assert sum(plan.alpha_acceptance for plan in family) == pytest.approx(BASE.alpha_acceptance, rel=1e-12)
    assert len({plan.digest for plan in family} | {BASE.digest}) == 4


def test_disjoint_subgroups_need_no_more_noise_and_overlapping_ones_split_the_budget() -> None:
    for plan in subgroup_plans(BASE, ["a", "b"]):
        assert (plan.epsilon, plan.delta, plan.noise_scale) == (BASE.epsilon, BASE.delta, BASE.noise_scale)
    for plan in subgroup_plans(BASE, ["a", "b", "c"], overlap=2):
        assert (plan.epsilon, plan.delta) == (2.0, 5e-7)
        assert release_delta(plan.release, 2.0, plan.noise_scale) <= 5e-7
        assert plan.noise_scale > BASE.noise_scale


def test_the_subgroup_is_a_fact_of_the_fingerprint() -> None:
    (plan,) = subgroup_plans(BASE, ["a"])
    assert plan.fingerprint.facts == {"model": "a", SUBGROUP_FACT: "a"}
    with pytest.raises(ValueError, match="subgroup"):
        replace(plan, fingerprint=BASE.fingerprint)
    with pytest.raises(ValueError, match="subgroup"):
        replace(BASE, fingerprint=plan.fingerprint)


def test_a_subgroup_may_have_a_mixture_of_its_own() -> None:
    mine, other = subgroup_plans(BASE, ["a", "b"], weights={"a": {"north": 0.9, "south": 0.1}})
    assert [(s.weight, s.drift) for s in mine.sites] == [(0.9, 0.0), (0.1, 0.01)]
    assert other.sites == BASE.sites


def test_each_subgroup_gets_the_threshold_of_its_own_answers_and_a_document_that_loads(tmp_path: Path) -> None:
    found = {}
    for plan, good_from in zip(subgroup_plans(BASE, ["expert", "novice"]), (0.2, 0.8), strict=True):
        issued = certified(plan, good_from)
        issued.save(tmp_path / "c.json")
        loaded = Certificate.load(tmp_path / "c.json")
        assert loaded.digest == issued.digest
        assert loaded.plan == plan
        assert loaded.declaration()["subgroup"] == plan.subgroup.to_json() if plan.subgroup else False
        found[loaded.fingerprint.facts[SUBGROUP_FACT]] = loaded.threshold
    assert found["expert"] < found["novice"]


def test_documents_without_a_subgroup_are_as_they_were() -> None:
    assert "subgroup" not in BASE.to_json()
    assert "subgroup" not in certified(BASE, 0.5).declaration()
    stored = json.loads(SHIPPED.read_text())
    assert Certificate.load(SHIPPED).digest == stored["digest"]
    digests = {entry["release"]["plan_digest"] for entry in stored["transcript"]["entries"]}
    assert {Certificate.load(SHIPPED).plan.digest} == digests


@pytest.mark.parametrize(
    ("name", "family", "overlap"),
    [
        ("a", (), 1),
        ("a", ("b",), 1),
        ("a", ("b", "a"), 1),
        ("a", ("a", "a"), 1),
        ("a b", ("a b",), 1),
        ("a", ("a",), 0),
        ("a", ("a",), 2),
        ("a", ("a",), True),
    ],
)
def test_a_family_that_is_none_is_refused(name: str, family: tuple[str, ...], overlap: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        Subgroup(name, family, overlap)


def test_a_document_is_read_strictly() -> None:
    (plan,) = subgroup_plans(BASE, ["a"])
    whole = plan.to_json()
    assert Plan.from_json(whole) == plan
    for wrong in ({}, None, {"name": "a", "family": ["a"]}, {"name": "a", "family": ["a"], "overlap": 1.0}, "a"):
        with pytest.raises(InvalidDocumentError):
            Plan.from_json({**whole, "subgroup": wrong})


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        ([], None),
        (["a", "a"], None),
        (["a"], {"b": {}}),
        (["a"], {"a": {"north": 1.0}}),
        (["a"], {"a": {"north": 0.9, "south": 0.2}}),
    ],
)
def test_what_makes_no_family_is_refused(names: list[str], weights: dict[str, dict[str, float]] | None) -> None:
    with pytest.raises(ValueError, match=r"."):
        subgroup_plans(BASE, names, weights=weights)


def test_a_family_is_made_of_a_plan_for_all() -> None:
    (plan,) = subgroup_plans(BASE, ["a"])
    with pytest.raises(ValueError, match="already"):
        subgroup_plans(plan, ["b"])


def test_the_command_writes_each_plan_once_and_prints_its_digest(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text(canonical_json(BASE.to_json()))
    command = ["subgroups", "--plan", str(tmp_path / "base.json"), "--out", str(tmp_path / "family")]
    made = CliRunner().invoke(app, [*command, "--name", "novice", "--name", "expert"])
    assert made.exit_code == 0, made.output
    expected = {f"{p.subgroup.name}.plan.json": p for p in subgroup_plans(BASE, ["novice", "expert"]) if p.subgroup}
    for name, plan in expected.items():
        assert Plan.from_json(json.loads((tmp_path / "family" / name).read_text())) == plan
        assert f"{name} {plan.digest}" in made.stdout
    again = CliRunner().invoke(app, [*command, "--name", "expert", "--name", "press"])
    assert again.exit_code == 78
    assert not (tmp_path / "family" / "press.plan.json").exists()
