"""The gate: which certificate holds for a configuration, and whether a score reaches its threshold."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from reticent.plugin.core import load_certificates
from reticent.plugin.gate import Gate
from reticent.rewards.errors import ScoreDependsOnRewards
from reticent.rewards.scores import Blend, Need, ScoreInputs, SelfConsistency
from tests.fakes.build import certificate, run, world

FACTS: dict[str, Any] = {
    "base_model": {"name": "small", "revision": "1"},
    "selection": {"rule": "privbon", "candidates": 8},
    "sampling": {"temperature": 0.7, "stop": []},
}
OTHER = {**FACTS, "base_model": {"name": "small", "revision": "2"}, "selection": {"rule": "privbon", "candidates": 4}}


def gate(*certificates: Any, at: datetime | None = None) -> Gate:
    return Gate(SelfConsistency(), certificates, lambda: at or datetime.now(UTC))


def test_without_a_certificate_nothing_is_accepted() -> None:
    verdict = gate().judge(FACTS, 1.0)
    assert (verdict.accepted, verdict.reason, verdict.certificate) == (False, "no_certificate", None)


def test_a_score_at_the_threshold_is_accepted_and_one_below_it_is_not() -> None:
    certified = certificate(FACTS)
    assert certified.threshold == 0.5
    at, below = gate(certified).judge(FACTS, 0.5), gate(certified).judge(FACTS, 0.5 - 1e-12)
    assert (at.accepted, at.reason, at.certificate) == (True, None, certified)
    assert (below.accepted, below.reason, below.certificate) == (False, "score_below_threshold", certified)


@pytest.mark.parametrize("score", [None, float("nan"), float("-inf"), -1.0])
def test_a_score_that_is_no_number_reaches_no_threshold(score: float | None) -> None:
    verdict = gate(certificate(FACTS, thresholds=(0.0, 0.01, 0.02))).judge(FACTS, score)
    assert (verdict.accepted, verdict.reason) == (False, "score_below_threshold")


def test_a_certificate_that_has_expired_accepts_nothing_and_says_when() -> None:
    certified = certificate(FACTS, lifetime=timedelta(days=2))
    end = certified.expires_at
    assert gate(certified, at=end - timedelta(microseconds=1)).judge(FACTS, 1.0).accepted
    verdict = gate(certified, at=end).judge(FACTS, 1.0)
    assert (verdict.accepted, verdict.reason) == (False, "certificate_expired")
    assert f"{end:%Y-%m-%d}" in (verdict.detail or "")


def test_a_wrong_fingerprint_names_every_field_that_differs_and_no_value() -> None:
    verdict = gate(certificate(OTHER)).judge(FACTS, 1.0)
    assert (verdict.accepted, verdict.reason) == (False, "fingerprint_mismatch")
    assert verdict.detail == "These differ from what was certified: base_model.revision, selection.candidates."


def test_an_integer_is_not_the_float_of_the_same_size() -> None:
    verdict = gate(certificate({"grid": 1})).judge({"grid": 1.0}, 1.0)
    assert verdict.reason == "fingerprint_mismatch"


def test_of_several_certificates_the_fitting_one_that_still_holds_is_taken() -> None:
    other, old, new = certificate(OTHER), certificate(FACTS, lifetime=timedelta(days=2)), certificate(FACTS)
    later = datetime.now(UTC) + timedelta(days=10)
    assert gate(other, old, new, at=later).judge(FACTS, 1.0).certificate is new
    assert gate(other, old, new).judge(FACTS, 1.0).certificate is old
    assert gate(other, old, at=later).judge(FACTS, 1.0).reason == "certificate_expired"


def test_a_mismatch_is_told_against_the_nearest_certificate() -> None:
    near = {**FACTS, "sampling": {"temperature": 0.8, "stop": []}}
    verdict = gate(certificate(OTHER), certificate(near)).judge(FACTS, 1.0)
    assert verdict.detail == "These differ from what was certified: sampling.temperature."


class ReadsRewards:
    """A score that says that it reads rewards."""

    name = "noisy_reward"
    depends_on_rewards = True
    needs: frozenset[Need] = frozenset()
    constants: Mapping[str, object] = {}

    def compute(self, inputs: ScoreInputs) -> float:
        return 1.0


def test_a_score_that_depends_on_rewards_is_refused() -> None:
    with pytest.raises(ScoreDependsOnRewards, match="noisy_reward"):
        Gate(ReadsRewards(), [])
    with pytest.raises(ScoreDependsOnRewards):
        Gate(Blend(((SelfConsistency(), 1.0), (ReadsRewards(), 1.0)), 0.0), [])


class NotesItsThread(SelfConsistency):
    """A score that tells which thread computes it."""

    threads: ClassVar[list[int]] = []

    def compute(self, inputs: ScoreInputs) -> float:
        self.threads.append(threading.get_ident())
        return super().compute(inputs)


def test_a_score_is_computed_beside_the_event_loop_and_not_in_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            w.core.gate.score = NotesItsThread()
            await w.answer("lenient")

    NotesItsThread.threads.clear()
    run(story())
    assert len(NotesItsThread.threads) == 1
    assert threading.get_ident() not in NotesItsThread.threads


def test_certificates_that_cannot_be_used_are_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, spoilt, old = tmp_path / "good.json", tmp_path / "spoilt.json", tmp_path / "old.json"
    certificate(FACTS).save(good)
    text = good.read_text()
    spoilt.write_text(text.replace('"target_risk":0.3', '"target_risk":0.2'))
    certificate(FACTS, age=timedelta(days=5), lifetime=timedelta(days=2)).save(old)
    with caplog.at_level(logging.ERROR, "reticent"):
        found = load_certificates([spoilt, tmp_path / "missing.json", old, good])
    assert [c.digest for c in found] == [certificate_digest(old), certificate_digest(good)]
    reported = "\n".join(record.getMessage() for record in caplog.records)
    for name in ("spoilt.json", "missing.json", "old.json"):
        assert name in reported
    assert "good.json" not in reported
    assert gate(*found).judge(FACTS, 1.0).accepted


def certificate_digest(path: Path) -> str:
    from reticent.accounting.certificates import Certificate

    return Certificate.load(path).digest
