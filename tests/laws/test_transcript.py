"""Laws of the transcript: append-only, replayable, and refusing what does not belong."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from reticent.accounting.calibration import (
    InvalidDocumentError,
    Plan,
    Release,
    ReleaseRefusedError,
    Schedule,
    Site,
    Transcript,
)
from reticent.accounting.fingerprint import Fingerprint

START = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)


def make_plan() -> Plan:
    return Plan.calibrated(
        target_risk=0.3,
        thresholds=(0.2, 0.5, 0.8),
        sites=(Site("north", 0.5), Site("south", 0.5), Site("observer", 0.0)),
        epsilon=4.0,
        delta=1e-6,
        schedule=Schedule(10, 1.4, 3),
        loss="wrong answer",
        score="self-consistency",
        fingerprint=Fingerprint({"model": "a"}),
    )


def make_release(plan: Plan, number: int = 1, site: str = "north", **changes: object) -> Release:
    good = Release(
        plan.digest, number, site, plan.slots(number, site), (1, -2, 3, 0), (4, 5, -1, number), plan.noise_scale
    )
    return replace(good, **changes)  # type: ignore[arg-type]


def filled() -> Transcript:
    plan = make_plan()
    transcript = Transcript(plan)
    for index, (number, site) in enumerate([(1, "south"), (1, "north"), (3, "south"), (3, "north")]):
        transcript.append(make_release(plan, number, site), START + timedelta(minutes=index))
    return transcript


def test_each_entry_covers_the_one_before_and_the_plan() -> None:
    transcript = filled()
    assert transcript.head == transcript.entries[-1].digest
    assert len({entry.digest for entry in transcript.entries}) == 4
    assert Transcript(transcript.plan).head == transcript.plan.digest
    shorter = Transcript(transcript.plan)
    shorter.append(transcript.entries[1].release, transcript.entries[1].received_at)
    assert shorter.head != transcript.entries[1].digest


def test_a_transcript_replays_to_the_same_chain(tmp_path: Path) -> None:
    transcript = filled()
    path = tmp_path / "transcript.json"
    path.write_text("an older file")
    transcript.save(path)
    again = Transcript.load(path)
    assert again.plan == transcript.plan
    assert again.entries == transcript.entries
    assert again.head == transcript.head
    assert again.aggregate() == transcript.aggregate()
    assert [item.name for item in tmp_path.iterdir()] == ["transcript.json"]


def test_the_aggregate_of_a_round_leaves_later_rounds_out() -> None:
    transcript = filled()
    assert list(transcript.rounds()) == [1, 3]
    assert transcript.aggregate(1).events == 10
    assert transcript.aggregate(2) == transcript.aggregate(1)
    assert transcript.aggregate(3) == transcript.aggregate()
    assert transcript.aggregate().events == 16  # 10, and 6 of round 3; nobody released in round 2
    assert transcript.aggregate(0).events == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"plan_digest": "0" * 64}, "wrong_plan"),
        ({"site": "east", "slots": 6}, "unknown_site"),
        ({"round_number": 4}, "wrong_round"),
        ({"round_number": 0}, "wrong_round"),
        ({"round_number": 1}, "late"),
        ({"slots": 3}, "wrong_slots"),
        ({"site": "observer", "slots": 0}, "wrong_slots"),
        ({"noise_scale": 0.5}, "wrong_noise"),
        ({"loss_counts": (1, 2, 3)}, "malformed"),
        ({"nonloss_counts": (1, 2, 3, 4, 5)}, "malformed"),
        ({"nonloss_counts": (1, 2, 3, 4.0)}, "malformed"),
        ({"loss_counts": (1, 2, 3, True)}, "malformed"),
        ({"loss_counts": (1, 2, 3, 2**60)}, "malformed"),
    ],
)
def test_a_release_that_does_not_answer_the_plan_is_refused_and_leaves_no_trace(
    changes: dict[str, object], reason: str
) -> None:
    plan = make_plan()
    transcript = Transcript(plan)
    transcript.append(make_release(plan, 2, "south"), START)
    before = (transcript.entries, transcript.head)
    with pytest.raises(ReleaseRefusedError) as caught:
        transcript.append(replace(make_release(plan, 2), **changes), START)  # type: ignore[arg-type]
    assert caught.value.reason == reason
    assert (transcript.entries, transcript.head) == before
    transcript.append(make_release(plan, 2), START)


def test_a_second_release_of_a_site_in_a_round_is_refused() -> None:
    transcript = filled()
    for changes in ({}, {"loss_counts": (0, 0, 0, 0)}):
        with pytest.raises(ReleaseRefusedError) as caught:
            transcript.append(make_release(transcript.plan, 3, **changes), START + timedelta(hours=1))  # type: ignore[arg-type]
        assert caught.value.reason == "duplicate"


def test_counts_are_never_a_reason_for_refusal() -> None:
    """Choosing among releases by what they say would break the rule; absurd counts of the right form are accepted."""
    plan = make_plan()
    transcript = Transcript(plan)
    transcript.append(make_release(plan, loss_counts=(-(10**6),) * 4, nonloss_counts=(10**9,) * 4), START)
    assert len(transcript.entries) == 1


def test_times_go_forward_and_have_a_zone() -> None:
    plan = make_plan()
    transcript = Transcript(plan)
    first = transcript.append(make_release(plan), START.astimezone(timezone(timedelta(hours=5))))
    assert first.received_at.isoformat() == "2030-01-31T12:00:00+00:00"
    for time in (START - timedelta(seconds=1), START.replace(tzinfo=None)):
        with pytest.raises(ReleaseRefusedError) as caught:
            transcript.append(make_release(plan, 1, "south"), time)
        assert caught.value.reason == "wrong_time"
    future = Transcript(plan)
    future.append(make_release(plan), datetime.now(UTC) + timedelta(days=1))
    assert future.append(make_release(plan, 1, "south")).received_at == future.entries[0].received_at


def test_every_change_of_a_stored_transcript_is_found() -> None:
    document = filled().to_json()
    text = json.dumps(document)
    Transcript.from_json(json.loads(text))

    def refused(change: object) -> None:
        with pytest.raises(InvalidDocumentError):
            Transcript.from_json(change)

    for entry in range(4):
        for field, value in (("loss_counts", [1, -2, 3, 1]), ("slots", 6), ("round", 2), ("site", "east")):
            changed = json.loads(text)
            changed["entries"][entry]["release"][field] = value
            refused(changed)
        changed = json.loads(text)
        changed["entries"][entry]["received_at"] = "2030-01-31T12:00:30+00:00"
        refused(changed)
        changed = json.loads(text)
        changed["entries"][entry]["digest"] = "0" * 64
        refused(changed)
    for removed in range(3):  # the last one can be cut off: that is a shorter, still truthful transcript
        changed = json.loads(text)
        del changed["entries"][removed]
        refused(changed)
    changed = json.loads(text)
    changed["entries"][0], changed["entries"][1] = changed["entries"][1], changed["entries"][0]
    refused(changed)
    changed = json.loads(text)
    changed["plan"]["target_risk"] = 0.4
    refused(changed)
    refused({**json.loads(text), "format": "reticent-transcript/2"})
    refused({**json.loads(text), "note": ""})
    refused([])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1,2]", '{"format": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "1" * 10_000, '"\xff"', "\x00"],
)
def test_a_file_that_is_no_transcript_is_refused_with_a_typed_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "transcript.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidDocumentError):
        Transcript.load(path)
