"""The gate: which certificate holds for a configuration, and whether a score reaches its threshold."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

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


def test_of_several_certificates_the_youngest_calibration_that_still_holds_is_taken() -> None:
    other, short = certificate(OTHER), certificate(FACTS, age=timedelta(hours=1), lifetime=timedelta(days=2))
    long = certificate(FACTS, age=timedelta(days=3))
    now, later = datetime.now(UTC), datetime.now(UTC) + timedelta(days=10)
    for order in itertools.permutations((other, short, long)):
        assert gate(*order, at=now).judge(FACTS, 1.0).certificate is short
        assert gate(*order, at=later).judge(FACTS, 1.0).certificate is long
    assert gate(other, short, at=later).judge(FACTS, 1.0).reason == "certificate_expired"


def test_the_youngest_holds_even_where_it_accepts_less() -> None:
    old = certificate(FACTS, thresholds=(0.2, 0.5, 0.8), age=timedelta(days=3))
    young = certificate(FACTS, thresholds=(0.2, 0.6, 0.8), age=timedelta(days=1))
    assert (old.threshold, young.threshold) == (0.5, 0.6)
    assert gate(old, young).judge(FACTS, 0.55).reason == "score_below_threshold"


def test_a_certificate_that_is_replaced_while_a_request_is_judged_does_not_mix_with_the_new_one() -> None:
    old, new = certificate(FACTS), certificate(OTHER)

    def replacing() -> datetime:
        judging.install([new])  # As another task would, while this one looks at the clock.
        return datetime.now(UTC)

    judging = Gate(SelfConsistency(), [old], replacing)
    first = judging.judge(FACTS, 1.0)
    assert (first.accepted, first.certificate) == (True, old)
    assert judging.judge(FACTS, 1.0).reason == "fingerprint_mismatch"


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
