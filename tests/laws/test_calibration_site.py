"""Laws of a site: one noise for a batch whatever crashes, records used once, losses that add up, caps that hold."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.calibration import Plan, Release, Schedule, Site, Transcript
from reticent.accounting.calibration.site import CalibrationSite, unit_loss
from reticent.accounting.calibration.site_accountant import SiteAccountant
from reticent.accounting.calibration.site_errors import (
    CapExceeded,
    IdsNeeded,
    RecordLineInvalid,
    RequestRefused,
    StateDamaged,
    StateInUse,
    StateReadable,
    TooFewRecords,
)
from reticent.accounting.calibration.site_records import FieldNames, SiteRecord, read_records
from reticent.accounting.calibration.site_state import SiteState, StoredRelease
from reticent.accounting.fingerprint import parse_json
from tests.fakes.calibration import START, deficit_plan, make_plan, write_records

PLAN = make_plan()
LONG = make_plan(schedule=Schedule(20, 1.2, 5))
DEFICIT = deficit_plan()


def records(count: int, *, persons: int | None = None, ids: bool = True, start: int = 0) -> tuple[SiteRecord, ...]:
    return tuple(
        SiteRecord((i % 10) / 10, float(i % 3 == 0), f"r{i}", f"p{i % persons}" if persons else f"r{i}", ids)
        for i in range(start, start + count)
    )


@contextmanager
def a_site(folder: Path, plan: Plan = PLAN, count: int = 60, **changes: object) -> Iterator[CalibrationSite]:
    with SiteState(folder / "state", "north") as state:
        mine = changes.pop("records", None) or records(count)
        yield CalibrationSite(plan, "north", mine, state, **changes)  # type: ignore[arg-type]


def stored_in(folder: Path) -> tuple[StoredRelease, ...]:
    with SiteState(folder / "state", "north") as state:
        return state.releases


# --- one noise for a batch ------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process dies here."""


STEPS = ("mkstemp", "fsync", "replace", "chmod")


@contextmanager
def dying(step: int | None, lose_replacement: bool) -> Iterator[None]:
    """Die before the `step`-th call to the disk; a replacement whose folder was not synced may be lost as well."""
    counter = itertools.count()
    lost: list[tuple[Path, bytes | None]] = []

    def guarded(call: Callable[..., object], name: str) -> Callable[..., object]:
        def run(*arguments: object, **keywords: object) -> object:
            if next(counter) == step:
                raise Crash(name)
            if name == "replace":
                target = Path(str(arguments[1]))
                lost[:] = [(target, target.read_bytes() if target.exists() else None)]
            result = call(*arguments, **keywords)
            if name == "fsync" and lost:
                lost.clear()  # the folder is on the disk now
            return result

        return run

    patches = [
        mock.patch("tempfile.mkstemp", guarded(tempfile.mkstemp, "mkstemp")),
        mock.patch("os.fsync", guarded(os.fsync, "fsync")),
        mock.patch.object(Path, "replace", guarded(Path.replace, "replace")),
        mock.patch.object(Path, "chmod", guarded(Path.chmod, "chmod")),
    ]
    try:
        for patch in patches:
            patch.start()
        yield
    finally:
        for patch in patches:
            patch.stop()
        if lose_replacement:
            for target, before in lost:
                if before is None:
                    target.unlink(missing_ok=True)
                else:
                    target.write_bytes(before)


def run_with_crashes(folder: Path, attempts: list[tuple[int, int, bool]], *, sends_first: bool = False) -> list[bytes]:
    """Answer rounds, dying where `attempts` say (round, step, loss of the replacement); everything that was sent."""
    sent: list[bytes] = []

    class SendsFirst(SiteState):
        """The twin that must fail: what it sends is not on the disk yet."""

        def commit(self, stored: StoredRelease) -> None:
            sent.append(stored.data)
            super().commit(stored)

    for number, step, lose in attempts:
        kind = SendsFirst if sends_first else SiteState
        try:
            with kind(folder / "state", "north") as state:
                site = CalibrationSite(LONG, "north", records(60), state)
                with dying(step, lose):
                    sent.append(site.answer(number, LONG.slots(number, "north")))
        except (Crash, RequestRefused):
            pass  # refused: an older round than the last that was answered
    return sent


def noises_by_round(sent: list[bytes]) -> dict[int, set[bytes]]:
    found: dict[int, set[bytes]] = {}
    for data in sent:
        found.setdefault(Release.from_json(parse_json(data.decode())).round_number, set()).add(data)
    return found


@given(st.lists(st.tuples(st.integers(1, 5), st.one_of(st.just(99), st.integers(0, 5)), st.booleans()), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_crash_at_any_point_never_yields_two_noises_for_one_batch(attempts: list[tuple[int, int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sent = run_with_crashes(folder, attempts)
        assert all(len(noises) == 1 for noises in noises_by_round(sent).values())
        stored = stored_in(folder)
        assert set(sent) <= {item.data for item in stored}  # what was sent is charged
        used = [key for item in stored for key in item.records]
        assert len(used) == len(set(used))


def test_a_site_that_sends_before_it_stores_does_yield_two_noises(tmp_path: Path) -> None:
    """The twin that must fail."""
    sent = run_with_crashes(tmp_path, [(1, step, False) for step in range(4)], sends_first=True)
    assert len(noises_by_round(sent)[1]) > 1


def test_every_crash_point_is_really_reached(tmp_path: Path) -> None:
    reached = set()
    for step in range(8):
        folder = tmp_path / str(step)
        folder.mkdir()
        try:
            with a_site(folder) as site, dying(step, False):
                site.answer(1, 10)
            reached.add("done")
        except Crash as crash:
            reached.add(str(crash))
    assert reached == {*STEPS, "done"}


def test_after_a_failed_write_the_state_decides_nothing_from_memory(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        with mock.patch("os.fsync", side_effect=OSError(5, "Input/output error")), pytest.raises(OSError):
            site.answer(1, 10)
        with pytest.raises(ValueError, match="not held"):
            site.answer(1, 10)


def test_the_same_bytes_are_sent_again_after_a_restart(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        first = site.answer(1, 10)
        assert site.answer(1, 10) == first
    with a_site(tmp_path) as site:
        assert site.answer(1, 10) == first
        second = site.answer(2, 5)
        assert site.answer(1, 10) == first
    one, two = stored_in(tmp_path)
    assert (one.data, two.data) == (first, second)
    assert not set(one.records) & set(two.records)


def test_a_batch_is_drawn_from_all_unused_records_and_not_from_the_top_of_the_file(tmp_path: Path) -> None:
    drawn = set()
    for index in range(40):
        folder = tmp_path / str(index)
        folder.mkdir()
        with a_site(folder, count=20) as site:
            site.answer(1, 10)
        drawn |= set(stored_in(folder)[0].records)
    assert len(drawn) == 20  # each is missed with probability 2^-40


def test_nothing_but_the_noised_histogram_is_sent(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        data = site.answer(1, 10)
    assert set(parse_json(data.decode())) == set(Release.from_json(parse_json(data.decode())).to_json())  # type: ignore[call-overload]
    assert b"r1" not in data
    assert "r1" not in repr(stored_in(tmp_path)) + repr(records(3))


# --- what a server may ask ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "slots", "reason"),
    [
        (0, 10, "wrong_round"),
        (4, 10, "wrong_round"),
        (1, 9, "wrong_slots"),
        (1, 11, "wrong_slots"),
        (1, 0, "wrong_slots"),
    ],
)
def test_a_request_that_the_plan_does_not_make_is_refused(tmp_path: Path, number: int, slots: int, reason: str) -> None:
    with a_site(tmp_path) as site:
        with pytest.raises(RequestRefused) as caught:
            site.answer(number, slots)
        assert caught.value.reason == reason
    assert stored_in(tmp_path) == ()


def test_an_answered_round_is_not_answered_for_other_slots_nor_an_older_one_afterwards(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        site.answer(2, 5)
        for number, slots, reason in ((2, 6, "changed_request"), (1, 10, "wrong_round")):
            with pytest.raises(RequestRefused) as caught:
                site.answer(number, slots)
            assert caught.value.reason == reason


def test_under_a_controller_the_site_believes_the_transcript_only(tmp_path: Path) -> None:
    transcript = Transcript(DEFICIT)
    with a_site(tmp_path, DEFICIT) as site:
        for given_transcript in (None, transcript):
            with pytest.raises(RequestRefused) as caught:
                site.answer(1, 10, given_transcript)
            assert caught.value.reason == "wrong_round"
        transcript.begin_round(START.replace(hour=13), START)
        with pytest.raises(RequestRefused):
            site.answer(1, 12, transcript)
        other = Transcript(make_plan())
        other.begin_round(START.replace(hour=13), START)
        with pytest.raises(RequestRefused) as caught:
            site.answer(1, 10, other)
        assert caught.value.reason == "wrong_plan"
        assert b'"slots":10' in site.answer(1, 10, transcript)


def test_a_site_that_the_plan_does_not_name_cannot_be_made(tmp_path: Path) -> None:
    with SiteState(tmp_path / "state", "east") as state, pytest.raises(ValueError, match="no site"):
        CalibrationSite(PLAN, "east", records(5), state)


# --- records and caps -----------------------------------------------------------------------------------------------


def test_a_record_enters_one_release_of_a_plan_and_then_too_few_are_left(tmp_path: Path) -> None:
    with a_site(tmp_path, count=14) as site:
        site.answer(1, 10)
        with pytest.raises(TooFewRecords) as caught:
            site.answer(2, 5)
    error = caught.value
    assert (error.usable, error.least, error.slots, error.used, error.withheld) == (4, 5, 5, 10, 0)
    assert len(stored_in(tmp_path)) == 1


def test_unfilled_slots_are_used_only_as_far_as_the_plan_allows(tmp_path: Path) -> None:
    lenient = make_plan(max_unfilled=0.2)
    with a_site(tmp_path, lenient, count=8) as site:
        site.answer(1, 10)
    assert len(stored_in(tmp_path)[0].records) == 8
    with a_site(tmp_path, make_plan(max_unfilled=0.25), count=7) as site, pytest.raises(TooFewRecords):
        site.answer(1, 10)


def test_by_default_a_person_enters_once(tmp_path: Path) -> None:
    with a_site(tmp_path, records=records(60, persons=12)) as site:
        site.answer(1, 10)
        assert site.accountant.largest_person_loss == unit_loss(PLAN)
        with pytest.raises(TooFewRecords) as caught:
            site.answer(2, 5)
    assert (caught.value.usable, caught.value.withheld) == (2, 48)
    (stored,) = stored_in(tmp_path)
    assert len(set(stored.persons)) == 10


def test_the_records_of_one_person_in_one_release_count_squared(tmp_path: Path) -> None:
    """Brute force: c equal records move the histogram by c."""
    with a_site(tmp_path, records=records(20, persons=1), person_cap=100 * unit_loss(PLAN)) as site:
        site.answer(1, 10)
        assert site.accountant.person_loss("p0") == pytest.approx(100 / PLAN.noise_scale**2)
        assert site.accountant.largest_record_loss == pytest.approx(1 / PLAN.noise_scale**2)
        with pytest.raises(TooFewRecords):
            site.answer(2, 5)
    folder = tmp_path / "b"
    folder.mkdir()
    with (
        a_site(folder, records=records(20, persons=1), person_cap=99 * unit_loss(PLAN)) as site,
        pytest.raises(TooFewRecords),
    ):
        site.answer(1, 10)


def test_losses_add_up_over_plans_and_the_cap_holds_there(tmp_path: Path) -> None:
    other, third = make_plan(target_risk=0.2), make_plan(target_risk=0.1)
    cap = 2 * unit_loss(PLAN)
    for plan in (PLAN, other):
        with a_site(tmp_path, plan, count=10, record_cap=cap, person_cap=cap) as site:
            site.answer(1, 10)
    assert site.accountant.largest_record_loss == cap
    with a_site(tmp_path, third, count=10, record_cap=cap, person_cap=cap) as site:
        with pytest.raises(TooFewRecords) as caught:
            site.answer(1, 10)
        assert caught.value.withheld == 10


def test_records_without_ids_cannot_be_counted_over_plans(tmp_path: Path) -> None:
    with a_site(tmp_path, records=records(10, ids=False)) as site:
        site.answer(1, 10)
    with pytest.raises(IdsNeeded), a_site(tmp_path, make_plan(target_risk=0.2), records=records(10, ids=False)):
        pass


def test_releases_of_counts_and_errors_cost_twice_as_much() -> None:
    plan = make_plan(release="count_error")
    assert unit_loss(plan) == pytest.approx(2 / plan.noise_scale**2)
    assert unit_loss(plan) == pytest.approx(unit_loss(PLAN), rel=0.1)  # the same ε needs about √2 times the noise


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=6, unique_by=lambda x: x[0]), max_size=6
    ),
    st.integers(1, 12),
    st.integers(1, 20),
)
def test_the_accountant_agrees_with_a_sum_by_hand_and_never_passes_a_cap(
    releases: list[list[tuple[int, int]]], record_cap: int, person_cap: int
) -> None:
    accountant = SiteAccountant((), float(record_cap), float(person_cap))
    records_by_hand: dict[int, float] = dict.fromkeys(range(6), 0.0)
    persons_by_hand: dict[int, float] = dict.fromkeys(range(3), 0.0)
    for number, batch in enumerate(releases, start=1):
        loss = float(number % 3 + 1)
        by_record = {r: records_by_hand[r] + loss for r, _ in batch}
        by_person = {
            p: persons_by_hand[p] + loss * sum(1 for _, q in batch if q == p) ** 2 for p in {q for _, q in batch}
        }
        release = Release("d", number, "north", len(batch), (0,), (0,), 1.0)
        stored = StoredRelease(release, loss, tuple(f"r{r}" for r, _ in batch), tuple(f"p{p}" for _, p in batch))
        if all(x <= record_cap for x in by_record.values()) and all(x <= person_cap for x in by_person.values()):
            accountant.charge(stored)
            records_by_hand |= by_record
            persons_by_hand |= by_person
        else:
            with pytest.raises(CapExceeded) as caught:
                accountant.charge(stored)
            assert caught.value.loss > caught.value.cap
        assert all(math.isclose(accountant.record_loss(f"r{r}"), x) for r, x in records_by_hand.items())
        assert all(math.isclose(accountant.person_loss(f"p{p}"), x) for p, x in persons_by_hand.items())


# --- state and files ------------------------------------------------------------------------------------------------


def test_two_processes_cannot_hold_one_state(tmp_path: Path) -> None:
    with a_site(tmp_path), pytest.raises(StateInUse), a_site(tmp_path):
        pass
    with a_site(tmp_path):
        pass


def test_a_state_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with a_site(tmp_path):
        pass
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "state").chmod(0o750)
    with pytest.raises(StateReadable), a_site(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format":"reticent-site-state/2","site":"north","releases":[]}'])
def test_a_damaged_state_releases_nothing(tmp_path: Path, text: str) -> None:
    with a_site(tmp_path) as site:
        site.answer(1, 10)
    (tmp_path / "state" / "state.json").write_text(text)
    with pytest.raises(StateDamaged), a_site(tmp_path):
        pass


def test_another_sites_state_is_refused(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        site.answer(1, 10)
    with pytest.raises(StateDamaged), SiteState(tmp_path / "state", "south"):
        pass


def test_records_are_read_the_same_from_json_lines_and_csv(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": "a", "score": 0.25, "loss": 1, "person": "x"},
        {"id": "b", "score": 1.0, "loss": 0, "person": "x"},
    ]
    lines = write_records(tmp_path / "r.jsonl", rows)
    table = tmp_path / "r.csv"
    table.write_text("loss,person,id,score,note\n1,x,a,0.25,hidden\n0,x,b,1.0,\n")
    assert read_records(lines) == read_records(table)
    assert [(r.score, r.loss, r.has_id) for r in read_records(lines)] == [(0.25, 1.0, True), (1.0, 0.0, True)]
    assert len({r.person for r in read_records(lines)}) == 1


def test_a_record_without_an_id_keeps_its_key_when_lines_are_added_or_moved(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"score": 0.5, "loss": 0}, {"score": 0.5, "loss": 0}, {"score": 0.7, "loss": 1}]
    first = {r.key for r in read_records(write_records(tmp_path / "a.jsonl", rows))}
    more: list[dict[str, object]] = [rows[2], {"score": 0.1, "loss": 0}, rows[0], rows[1]]
    later = {r.key for r in read_records(write_records(tmp_path / "b.jsonl", more))}
    assert len(first) == 3
    assert first < later


def test_other_field_names_can_be_given(tmp_path: Path) -> None:
    table = tmp_path / "r.csv"
    table.write_text("s,l,who\n0.5,1,x\n")
    (found,) = read_records(table, FieldNames("s", "l", "nr", "who"))
    assert (found.score, found.loss, found.has_id) == (0.5, 1.0, False)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"score": 0.5, "loss": 1}\n\n{"score": 0.5}\n', 3),
        ('{"score": 0.5, "loss": 1.5}\n', 1),
        ('{"score": NaN, "loss": 1}\n', 1),
        ('{"score": true, "loss": 1}\n', 1),
        ('{"score": "0.123456", "loss": 1}\n', 1),
        ('{"score": 0.5, "loss": null}\n', 1),
        ('{"score": 0.5, "loss": 1, "loss": 0}\n', 1),
        ('{"score": 0.5, "loss": 1, "id": "a"}\n{"score": 0.5, "loss": 1, "id": "a"}\n', 2),
        ('{"score": 0.5, "loss": 1, "id": [1]}\n', 1),
        ("[0.5, 1]\n", 1),
        ("0.123456,1\n", 1),
        ("\xff\n", 1),
    ],
)
def test_a_line_that_is_no_record_is_named_and_not_repeated(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordLineInvalid) as caught:
        read_records(path)
    assert caught.value.line == line
    assert "0.123456" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("score\n0.5\n", 1),
        ("score,score,loss\n1,1,1\n", 1),
        ("score,loss\n0.5,1\n0.5\n", 3),
        ("score,loss\n0.5,1,2\n", 2),
        ("score,loss\n0.5,\n", 2),
        ("score,loss\n0_5,1\n", 2),
        ("score,loss\ninf,1\n", 2),
        ("score,loss\n-0.5,1\n", 2),
        ('score,loss\n"0.5,1\n', 2),
    ],
)
def test_a_csv_line_that_is_no_record_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(RecordLineInvalid) as caught:
        read_records(path)
    assert caught.value.line == line


def test_a_plan_without_this_sites_share_asks_nothing_of_it(tmp_path: Path) -> None:
    plan = make_plan(sites=(Site("north", 0.0), Site("south", 1.0)))
    with a_site(tmp_path, plan) as site, pytest.raises(RequestRefused) as caught:
        site.answer(1, 0)
    assert caught.value.reason == "wrong_slots"
