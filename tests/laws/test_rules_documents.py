"""A plan names its rule and its kind of release; transcript, verdict and certificate follow it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reticent.accounting.calibration import (
    InvalidDocumentError,
    Plan,
    Release,
    ReleaseRefusedError,
    Schedule,
    Site,
    SiteBatch,
    Transcript,
    make_release,
)
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS, RELEASE_KINDS
from reticent.accounting.certificates import (
    RULES,
    Certificate,
    CertificateInvalid,
    NotCertified,
    issue,
    judge_transcript,
)
from reticent.accounting.fingerprint import Fingerprint, canonical_json, parse_json, sha256_hex

START = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
SHIPPED = Path(__file__).parents[2] / "deploy" / "embedded" / "certificate.json"

every_plan = pytest.mark.parametrize(
    ("rule", "release"), [(x, y) for x in sorted(RULES) for y in sorted(RELEASE_KINDS)]
)


def make_plan(rule: str = "eprocess", release: str = LOSS_NONLOSS, **changes: object) -> Plan:
    values: dict[str, object] = {
        "target_risk": 0.3,
        "thresholds": (0.2, 0.5, 0.8),
        "sites": (Site("north", 0.5), Site("south", 0.5, drift=0.005)),
        "epsilon": 4.0,
        "delta": 1e-6,
        "schedule": Schedule(6000, 1.5, 2),
        "loss": "wrong answer",
        "score": "self-consistency",
        "fingerprint": Fingerprint({"model": "a"}),
        "rule": rule,
        "release": release,
        **changes,
    }
    return Plan.calibrated(**values)  # type: ignore[arg-type]


def calibrated(plan: Plan, risk: float = 0.05) -> Transcript:
    """Two sites, a score uniform on [0, 1], risk 0.9 below 0.5. Zeros stand in for the noise."""
    transcript = Transcript(plan)
    for site in ("north", "south"):
        slots = plan.slots(1, site)
        scores = [(i + 0.5) / slots for i in range(slots)]
        losses = [float((i * 37) % 100 < 100 * (risk if s >= 0.5 else 0.9)) for i, s in enumerate(scores)]
        batch = SiteBatch.from_records(plan, 1, site, list(zip(scores, losses, strict=True)))
        transcript.append(make_release(plan, batch, noise=lambda: 0), START)
    return transcript


@every_plan
def test_a_certificate_of_every_rule_and_release_is_recomputed_when_loaded(
    rule: str, release: str, tmp_path: Path
) -> None:
    transcript = calibrated(make_plan(rule, release))
    certificate = issue(transcript, START + timedelta(hours=1), timedelta(days=30))
    certificate.save(tmp_path / "c.json")
    again = Certificate.load(tmp_path / "c.json")
    assert again == certificate
    assert again.digest == certificate.digest
    assert again.threshold == 0.5
    shown = again.declaration()
    assert (shown["rule"], shown["release"]) == (rule, release)
    assert shown["failure_probabilities"] == dict(RULES[rule].failure_probabilities(transcript.plan.claim))
    stored = parse_json((tmp_path / "c.json").read_text())
    assert isinstance(stored, dict)
    assert ("log_risk_evidence" in stored["verdict"]) == (rule == "eprocess")


def test_another_rule_s_verdict_does_not_load_as_this_one_s() -> None:
    documents = {
        rule: issue(calibrated(make_plan(rule)), START, timedelta(days=30)).to_json() for rule in ("fed_src_c", "ratio")
    }
    mixed = {**documents["fed_src_c"], "verdict": documents["ratio"]["verdict"]}
    mixed["digest"] = sha256_hex({name: value for name, value in mixed.items() if name != "digest"})
    with pytest.raises(CertificateInvalid) as caught:
        Certificate.from_json(parse_json(canonical_json(mixed)))
    assert caught.value.reason == "verdict"


@every_plan
def test_a_bad_score_is_certified_by_no_rule(rule: str, release: str) -> None:
    with pytest.raises(NotCertified) as caught:
        issue(calibrated(make_plan(rule, release), risk=0.45), START, timedelta(days=30))
    assert caught.value.best_contrast_upper is not None
    assert caught.value.best_contrast_upper > 0.0


def test_the_default_rule_and_release_leave_old_documents_as_they_were() -> None:
    plan = make_plan()
    assert "release" not in plan.to_json()
    assert Plan.from_json(plan.to_json()) == plan
    other = make_plan(release=COUNT_ERROR)
    assert other.to_json()["release"] == COUNT_ERROR
    assert Plan.from_json(parse_json(json.dumps(other.to_json()))) == other
    assert other.digest != plan.digest
    if SHIPPED.exists():
        stored = parse_json(SHIPPED.read_text())
        certificate = Certificate.load(SHIPPED)
        assert isinstance(stored, dict)
        assert (certificate.plan.rule, certificate.plan.release) == ("eprocess", LOSS_NONLOSS)
        assert certificate.digest == stored["digest"]
        assert judge_transcript(certificate.transcript).chosen == certificate.verdict.chosen


def test_a_plan_refuses_rules_releases_and_noise_that_cannot_serve() -> None:
    for changes in ({"rule": "capital_heuristic"}, {"rule": "noise_ignored"}, {"rule": "Eprocess"}, {"rule": ""}):
        with pytest.raises(ValueError, match="the rule must be one of"):
            make_plan(**changes)
    with pytest.raises(ValueError, match="must be one of"):
        make_plan(release="continuous")
    one_hot = make_plan()
    with pytest.raises(ValueError, match="gives delta"):  # √2 asks for more noise
        replace(one_hot, release=COUNT_ERROR)


def test_a_count_error_release_holds_counts_of_all_records() -> None:
    plan = make_plan("fed_src_c", COUNT_ERROR)
    transcript = calibrated(plan)
    for entry in transcript.entries:
        release = entry.release
        assert sum(release.all_counts) == release.slots
        assert release.nonloss_counts == ()
        assert Release.from_json(release.to_json()) == release
    total, twin = transcript.aggregate(), calibrated(make_plan()).aggregate()
    assert total.accepted == twin.accepted
    assert total.accepted_loss == twin.accepted_loss
    assert total.accepted_nonloss == twin.accepted_nonloss


def test_a_release_of_the_other_kind_is_refused() -> None:
    plans = {kind: make_plan("fed_src_c", kind) for kind in RELEASE_KINDS}
    good = {kind: calibrated(plan).entries[0].release for kind, plan in plans.items()}
    for kind, plan in plans.items():
        for wrong in (
            replace(good[COUNT_ERROR if kind == LOSS_NONLOSS else LOSS_NONLOSS], plan_digest=plan.digest),
            replace(good[kind], loss_counts=good[kind].loss_counts[:-1]),
            replace(good[kind], loss_counts=(0.5, *good[kind].loss_counts[1:])),  # type: ignore[arg-type]
            replace(good[kind], all_counts=(1, 2, 3, 4), nonloss_counts=(1, 2, 3, 4)),
        ):
            with pytest.raises(ReleaseRefusedError) as caught:
                Transcript(plan).append(replace(wrong, noise_scale=plan.noise_scale), START)
            assert caught.value.reason == "malformed"
    document = {**good[COUNT_ERROR].to_json(), "all_counts": []}
    with pytest.raises(InvalidDocumentError, match="empty"):
        Release.from_json(document)
    with pytest.raises(InvalidDocumentError, match="unknown fields"):
        Release.from_json({**good[COUNT_ERROR].to_json(), "nonloss_counts": []})
