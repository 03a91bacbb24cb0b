"""Laws of rounds: predictable requests, dropouts decided by the clock, refusals that leave no trace, restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.accounting.calibration import InvalidDocumentError, Plan, ReleaseRefusedError, Schedule, Site, Transcript
from reticent.accounting.calibration.controller import asked_slots
from reticent.accounting.calibration.events import RoundClosed, RoundOpened
from reticent.accounting.calibration.recruitment import Recruitment
from reticent.accounting.calibration.rounds import FolderInUseError, OtherPlanError, Rounds
from reticent.accounting.calibration.transcript import RoundError
from tests.fakes.calibration import START, Clock, deficit_plan, make_plan, plain_release, release_bytes

HOUR = timedelta(hours=1)


def with_rounds(plan: Plan) -> Transcript:
    """Round 1: west drops out. Round 2: everybody answers."""
    transcript = Transcript(plan)
    transcript.begin_round(START + HOUR, START)
    for site in ("south", "north"):
        slots = transcript.last_opened.slots(site)  # type: ignore[union-attr]
        transcript.append(plain_release(plan, 1, site, slots), START)
    transcript.end_round(START + HOUR)
    opened = transcript.begin_round(START + 2 * HOUR, START + HOUR).event
    assert isinstance(opened, RoundOpened)
    for site, slots in opened.asked:
        transcript.append(plain_release(plan, 2, site, slots), START + HOUR)
    transcript.end_round(START + HOUR)
    return transcript


def test_the_default_recruitment_leaves_the_digest_of_a_plan_as_it_was() -> None:
    plan = make_plan()
    assert "recruitment" not in plan.to_json()
    with pytest.raises(InvalidDocumentError):
        Plan.from_json({**plan.to_json(), "recruitment": Recruitment().to_json()})
    other = deficit_plan(2)
    assert Plan.from_json(other.to_json()) == other
    assert other.digest != plan.digest


@pytest.mark.parametrize(("controller", "count"), [("fixed", 1), ("greedy", 0), ("largest_deficit", -1)])
def test_a_recruitment_without_meaning_is_refused(controller: str, count: int) -> None:
    with pytest.raises(ValueError):
        Recruitment(controller, count)


def test_without_dropouts_the_controller_asks_what_the_fixed_plan_asks() -> None:
    fixed, deficit = make_plan(), deficit_plan()
    events = [0, 0, 0]
    for number in (1, 2, 3):
        asked = asked_slots(deficit, number, events)
        assert asked == asked_slots(fixed, number, events) == tuple(fixed.slots(number, s.name) for s in fixed.sites)
        events = [a + b for a, b in zip(events, asked, strict=True)]


def test_the_controller_makes_up_for_a_dropout_and_the_fixed_plan_does_not() -> None:
    fixed, deficit = make_plan(), deficit_plan()
    assert asked_slots(fixed, 1, (0, 0, 0)) == asked_slots(deficit, 1, (0, 0, 0)) == (10, 6, 4)
    assert asked_slots(fixed, 2, (10, 6, 0)) == (5, 3, 2)
    assert asked_slots(deficit, 2, (10, 6, 0)) == (5, 3, 6)


def test_of_equal_deficits_the_earlier_site_is_asked() -> None:
    plan = deficit_plan(1, sites=(Site("a", 0.25), Site("b", 0.5), Site("c", 0.25)))
    assert asked_slots(plan, 1, (0, 0, 0)) == (0, 10, 0)
    assert asked_slots(plan, 1, (0, 10, 0)) == (5, 0, 0)
    assert asked_slots(plan, 2, (5, 10, 5)) == (0, 5, 0)


@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    first=st.integers(1, 500),
    dropouts=st.lists(st.sets(st.integers(0, 4)), min_size=6, max_size=6),
    sites_per_round=st.integers(0, 5),
)
def test_no_site_ever_releases_more_than_its_share(
    weights: list[int], first: int, dropouts: list[set[int]], sites_per_round: int
) -> None:
    total = sum(weights)
    sites = tuple(Site(f"s{k}", w / total) for k, w in enumerate(weights))
    plan = replace(deficit_plan(sites_per_round), sites=sites, schedule=Schedule(first, 1.3, 6))
    events = [0] * len(sites)
    for number, dropped in enumerate(dropouts, start=1):
        asked = asked_slots(plan, number, events)
        assert sum(1 for count in asked if count) <= (sites_per_round or len(sites))
        look = plan.schedule.looks()[number - 1]
        for k, count in enumerate(asked):
            lacking = look * weights[k] / total - events[k]
            assert 0 <= count < max(0.0, lacking) + 1.0
            if count and k not in dropped:
                events[k] += count


def test_requests_are_checked_for_rounds_and_numbers() -> None:
    for plan in (make_plan(), deficit_plan()):
        for number, events in ((0, (0, 0, 0)), (4, (0, 0, 0)), (1, (0, 0))):
            with pytest.raises(ValueError):
                asked_slots(plan, number, events)


@pytest.mark.parametrize("plan", [make_plan(), deficit_plan(), deficit_plan(2)])
def test_a_transcript_with_rounds_replays_to_the_same_chain(plan: Plan) -> None:
    transcript = with_rounds(plan) if plan.recruitment.sites_per_round != 2 else Transcript(plan)
    if not transcript.log:
        transcript.begin_round(START + HOUR, START)
        transcript.end_round(START + HOUR)
    again = Transcript.from_json(json.loads(json.dumps(transcript.to_json())))
    assert (again.log, again.head, again.entries) == (transcript.log, transcript.head, transcript.entries)
    assert again.open_round is None
    assert again.to_json() == transcript.to_json()


def test_a_dropout_is_written_down_and_made_up_for() -> None:
    transcript = with_rounds(deficit_plan())
    events = [item.event for item in transcript.log if not hasattr(item, "release")]
    assert events[1] == RoundClosed(1, ("west",))
    assert isinstance(events[2], RoundOpened)
    assert events[2].slots("west") == 6
    assert transcript.aggregate().events_by_site == (15, 9, 6)


def test_every_change_of_a_transcript_with_rounds_is_found() -> None:
    text = json.dumps(with_rounds(deficit_plan()).to_json())
    Transcript.from_json(json.loads(text))
    changes = [
        (0, "opened", {"asked": {"north": 11, "south": 6, "west": 4}}),
        (0, "opened", {"asked": {"north": 10, "south": 6}}),
        (0, "opened", {"round": 2}),
        (0, "opened", {"closes_at": "2030-01-31T12:30:00+00:00"}),
        (3, "closed", {"dropped": []}),
        (3, "closed", {"dropped": ["south"]}),
        (3, "closed", {"round": 2}),
    ]
    for index, kind, change in changes:
        document = json.loads(text)
        document["entries"][index][kind].update(change)
        with pytest.raises(InvalidDocumentError):
            Transcript.from_json(document)
    for index in range(len(json.loads(text)["entries"]) - 1):
        document = json.loads(text)
        del document["entries"][index]
        with pytest.raises(InvalidDocumentError):
            Transcript.from_json(document)


def test_a_plan_that_depends_on_the_past_takes_no_release_without_a_round() -> None:
    plan = deficit_plan()
    with pytest.raises(ReleaseRefusedError) as caught:
        Transcript(plan).append(plain_release(plan, 1, "north", 10), START)
    assert caught.value.reason == "wrong_round"


def test_rounds_open_and_close_in_their_order() -> None:
    plan = make_plan()
    transcript = Transcript(plan)

    def refused(reason: str, step: object) -> None:
        before = transcript.log
        with pytest.raises(RoundError) as caught:
            step()  # type: ignore[operator]
        assert (caught.value.reason, transcript.log) == (reason, before)

    refused("not_open", lambda: transcript.end_round(START))
    refused("wrong_time", lambda: transcript.begin_round(START, START))
    transcript.begin_round(START + HOUR, START)
    refused("is_open", lambda: transcript.begin_round(START + 2 * HOUR, START))
    refused("too_early", lambda: transcript.end_round(START + HOUR / 2))
    for number in (1, 2, 3):
        transcript.end_round(START + number * HOUR)
        if number < 3:
            transcript.begin_round(START + (number + 1) * HOUR, START + number * HOUR)
    refused("none_left", lambda: transcript.begin_round(START + 9 * HOUR, START + 8 * HOUR))
    plain = Transcript(plan)
    plain.append(plain_release(plan, 1, "north", 10), START)
    with pytest.raises(RoundError):
        plain.begin_round(START + HOUR, START)


def open_rounds(folder: Path, plan: Plan, clock: Clock) -> Rounds:
    return Rounds(plan, folder, timedelta(seconds=60), clock=clock)


@pytest.mark.parametrize(
    ("sender", "data", "reason"),
    [
        ("north", b"\xff", "malformed"),
        ("north", b"[]", "malformed"),
        ("north", b'{"slots": 1}', "malformed"),
        ("north", {"loss_counts": (1, 2)}, "malformed"),
        ("north", {"loss_counts": (1, 2, 3, 2**60)}, "malformed"),
        ("south", {}, "wrong_site"),
        ("north", {"plan_digest": "0" * 64}, "wrong_plan"),
        ("north", {"noise_scale": 0.5}, "wrong_noise"),
        ("north", {"slots": 9}, "wrong_slots"),
        ("north", {"round_number": 2}, "wrong_round"),
        ("north", {"round_number": 0}, "wrong_round"),
    ],
)
def test_a_refused_release_is_logged_without_its_content_and_leaves_the_transcript_alone(
    tmp_path: Path, sender: str, data: bytes | dict[str, object], reason: str
) -> None:
    plan, clock = make_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        rounds.tick()
        before = (tmp_path / "transcript.json").read_bytes()
        good = plain_release(plan, 1, "north", 10, nonloss_counts=(123456, 2, 3, 4))
        body = data if isinstance(data, bytes) else release_bytes(replace(good, **data))  # type: ignore[arg-type]
        with pytest.raises(ReleaseRefusedError) as caught:
            rounds.submit(sender, body)
        assert caught.value.reason == reason
        assert (tmp_path / "transcript.json").read_bytes() == before
        (line,) = (tmp_path / "refusals.jsonl").read_text().splitlines()
        assert "123456" not in line
        assert {k: json.loads(line)[k] for k in ("site", "reason")} == {"site": sender, "reason": reason}
        rounds.submit("north", release_bytes(good))


def test_the_same_release_again_gets_the_same_answer_and_another_one_is_refused(tmp_path: Path) -> None:
    plan, clock = make_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        rounds.tick()
        release = plain_release(plan, 1, "north", 10)
        first = rounds.submit("north", release_bytes(release))
        clock.pass_seconds(1)
        assert rounds.submit("north", release_bytes(release)) == first
        with pytest.raises(ReleaseRefusedError) as caught:
            rounds.submit("north", release_bytes(replace(release, nonloss_counts=(9, 9, 9, 9))))
        assert caught.value.reason == "duplicate"
        clock.pass_seconds(3600)
        assert rounds.submit("north", release_bytes(release)) == first
        assert len(rounds.transcript.entries) == 1


def test_a_site_that_does_not_answer_in_time_has_dropped_out_whatever_it_sends_later(tmp_path: Path) -> None:
    plan, clock = make_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        assert rounds.tick().missing == ("north", "south", "west")
        rounds.submit("north", release_bytes(plain_release(plan, 1, "north", 10)))
        clock.pass_seconds(60)  # the deadline itself is too late
        with pytest.raises(ReleaseRefusedError) as caught:
            rounds.submit("south", release_bytes(plain_release(plan, 1, "south", 6)))
        assert caught.value.reason == "late"
        status = rounds.tick()
        assert (status.state, status.round_number) == ("open", 2)
        closed = [item.event for item in rounds.transcript.log if not hasattr(item, "release")][1]
        assert closed == RoundClosed(1, ("south", "west"))


def test_the_deadline_is_acted_on_before_the_bytes_are_read(tmp_path: Path) -> None:
    plan, clock = make_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        rounds.tick()
        clock.pass_seconds(61)
        with pytest.raises(ReleaseRefusedError):
            rounds.submit("north", b"not even JSON")
        assert rounds.transcript.last_opened is not None
        assert rounds.transcript.last_opened.round_number == 2


def test_a_round_that_misses_nobody_closes_at_once(tmp_path: Path) -> None:
    plan, clock = make_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        for number in (1, 2, 3):
            for site, slots in rounds.tick().asked.items():
                rounds.submit(site, release_bytes(plain_release(plan, number, site, slots)))
        status = rounds.tick()
        assert (status.state, status.reason, status.round_number) == ("finished", "rounds_over", 3)
        with pytest.raises(ReleaseRefusedError) as caught:
            rounds.submit("north", release_bytes(plain_release(plan, 3, "north", 1)))
        assert caught.value.reason == "duplicate"


def test_stopping_is_asked_once_a_round_and_only_when_it_is_over(tmp_path: Path) -> None:
    plan, clock, asked = make_plan(), Clock(), []

    def certified(transcript: Transcript) -> bool:
        asked.append((len(transcript.entries), transcript.open_round))
        return len(transcript.entries) >= 6

    with Rounds(plan, tmp_path, timedelta(seconds=60), certified=certified, clock=clock) as rounds:
        for number in (1, 2):
            for site, slots in rounds.tick().asked.items():
                rounds.submit(site, release_bytes(plain_release(plan, number, site, slots)))
        assert (rounds.tick().state, rounds.tick().reason) == ("finished", "certified")
    assert asked == [(3, None), (6, None)]
    with Rounds(plan, tmp_path, timedelta(seconds=60), certified=certified, clock=clock) as rounds:
        assert rounds.tick().reason == "certified"


def test_a_restarted_server_goes_on_where_it_was(tmp_path: Path) -> None:
    plan, clock = deficit_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        rounds.tick()
        entry = rounds.submit("north", release_bytes(plain_release(plan, 1, "north", 10)))
        head = rounds.transcript.head
    clock.pass_seconds(30)
    with open_rounds(tmp_path, plan, clock) as rounds:
        status = rounds.tick()
        assert (status.head, status.missing) == (head, ("south", "west"))
        assert status.closes_at == START + timedelta(seconds=60)  # a restart gives nobody more time
        assert rounds.submit("north", release_bytes(entry.release)) == entry
        clock.pass_seconds(30)
        assert rounds.tick().asked == {"north": 5, "south": 9, "west": 6}


def test_what_could_not_be_saved_was_not_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, clock = make_plan(), Clock()
    release = release_bytes(plain_release(plan, 1, "north", 10))

    def full(_: Transcript, __: object) -> None:
        raise OSError(28, "No space left on device")

    with open_rounds(tmp_path, plan, clock) as rounds:
        rounds.tick()
        before = rounds.transcript.log
        with monkeypatch.context() as patch:
            patch.setattr(Transcript, "save", full)
            with pytest.raises(OSError):
                rounds.submit("north", release)
        assert rounds.transcript.log == before
        assert rounds.submit("north", release) == Transcript.load(tmp_path / "transcript.json").entries[0]


def test_a_clock_that_is_set_back_reopens_nothing(tmp_path: Path) -> None:
    plan, clock = make_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        rounds.tick()
        clock.pass_seconds(60)
        assert rounds.tick().round_number == 2
        clock.pass_seconds(-3600)
        with pytest.raises(ReleaseRefusedError):
            rounds.submit("north", release_bytes(plain_release(plan, 1, "north", 10)))
        rounds.submit("north", release_bytes(plain_release(plan, 2, "north", 5)))
        assert Transcript.load(tmp_path / "transcript.json").log == rounds.transcript.log


def test_a_folder_belongs_to_one_server_and_one_plan(tmp_path: Path) -> None:
    plan, clock = make_plan(), Clock()
    with open_rounds(tmp_path, plan, clock) as rounds:
        rounds.tick()
        with pytest.raises(FolderInUseError), open_rounds(tmp_path, plan, clock):
            pass
    with pytest.raises(OtherPlanError), open_rounds(tmp_path, make_plan(target_risk=0.2), clock):
        pass
    plain = Transcript(plan)
    plain.append(plain_release(plan, 1, "north", 10), START)
    plain.save(tmp_path / "transcript.json")
    with pytest.raises(OtherPlanError), open_rounds(tmp_path, plan, clock):
        pass


def test_one_site_cannot_fill_the_refusal_log(tmp_path: Path) -> None:
    from reticent.accounting.calibration.refusals import RefusalLog

    log = RefusalLog(tmp_path / "refusals.jsonl", kept_per_site=3)
    for _ in range(10):
        log.record("north", "malformed", "x" * 10_000, "0" * 64, START)
    log.record("south", "late", "", "0" * 64, START)
    lines = [json.loads(line) for line in (tmp_path / "refusals.jsonl").read_text().splitlines()]
    assert [line["site"] for line in lines] == ["north"] * 3 + ["south"]
    assert max(len(line["detail"]) for line in lines) == 200
    assert "last" in lines[2]
