"""The append-only record of a calibration: the plan, and every release in the order in which it was accepted.

Each entry's hash covers the one before, and the first covers the plan's digest, so a changed, dropped or moved entry
breaks the chain. The chain shows accidents and careless edits. It is not a signature: who can rewrite the whole file
can rewrite the chain.

Two forms
---------
A *plain* transcript holds releases only; what a site may release follows from the plan. A transcript *with rounds*
also holds, as entries of the chain, when each round was opened, what it asked of whom and until when, and which sites
had dropped out when it was closed (`events.py`). Every such entry is computed again in a replay. A plan whose
recruitment depends on the past has transcripts with rounds only. The first entry decides which form it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from reticent.accounting.calibration.aggregate import Aggregate, aggregate
from reticent.accounting.calibration.controller import asked_slots
from reticent.accounting.calibration.documents import (
    InvalidDocumentError,
    read_fields,
    read_file,
    read_list,
    read_object,
    read_text,
    read_time,
    write_atomically,
)
from reticent.accounting.calibration.entries import (
    Entry,
    Notice,
    ReleaseRefusedError,
    RoundError,
    entry_digest,
    notice_digest,
)
from reticent.accounting.calibration.events import RoundClosed, RoundEvent, RoundOpened, read_event
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.release import Release
from reticent.accounting.fingerprint import canonical_json

__all__ = ["TRANSCRIPT_FORMAT", "Entry", "Notice", "ReleaseRefusedError", "RoundError", "Transcript"]

TRANSCRIPT_FORMAT = "reticent-transcript/1"


class Transcript:
    """Releases under one plan, in order. Not safe for use from two threads at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._log: list[Entry | Notice] = []
        self._entries: dict[tuple[int, str], Entry] = {}  # by round and site, in the order of acceptance
        self._opened: RoundOpened | None = None
        self._is_open = False

    @property
    def plan(self) -> Plan:
        """The registered plan."""
        return self._plan

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The releases so far."""
        return tuple(self._entries.values())

    @property
    def log(self) -> tuple[Entry | Notice, ...]:
        """Everything in order: releases, and the rounds that were opened and closed."""
        return tuple(self._log)

    @property
    def head(self) -> str:
        """Digest of the last entry of the log, or of the plan when there is none."""
        return self._log[-1].digest if self._log else self._plan.digest

    @property
    def last_opened(self) -> RoundOpened | None:
        """The round that was opened last, closed or not; None before the first and in a plain transcript."""
        return self._opened

    @property
    def open_round(self) -> RoundOpened | None:
        """The round that is open, or None."""
        return self._opened if self._is_open else None

    def missing(self) -> tuple[str, ...]:
        """Sites that the open round waits for, in the plan's order."""
        if not self._is_open or self._opened is None:
            return ()
        number = self._opened.round_number
        return tuple(site for site, _ in self._opened.asked if (number, site) not in self._entries)

    def find(self, round_number: int, site: str) -> Entry | None:
        """The entry of a site's release in a round, or None."""
        return self._entries.get((round_number, site))

    def next_request(self) -> tuple[tuple[str, int], ...]:
        """What the next round would ask, (site, slots) in the plan's order, sites that it does not ask left out.

        Raises:
            RoundError: no round is left.
        """
        number = self._next_number()
        slots = asked_slots(self._plan, number, self.aggregate().events_by_site)
        return tuple((site.name, count) for site, count in zip(self._plan.sites, slots, strict=True) if count)

    def begin_round(self, closes_at: datetime, now: datetime | None = None) -> Notice:
        """Open the next round; what it asks follows from the plan and the releases so far.

        Args:
            closes_at: with a time zone, after `now`.
            now: with a time zone, not before the last entry. Left out: now.

        Raises:
            RoundError: a round is open, none is left, the transcript is a plain one, or a time is wrong.
        """
        if self._log and self._opened is None:
            raise RoundError("plain", "this transcript has releases without rounds")
        if self._is_open:
            raise RoundError("is_open", f"round {self._next_number() - 1} is open")
        time = self._round_time(now)
        if closes_at.utcoffset() is None or closes_at <= time:
            raise RoundError("wrong_time", "a round closes after it was opened, at a time with a time zone")
        opened = RoundOpened(self._next_number(), self.next_request(), closes_at.astimezone(UTC))
        self._opened, self._is_open = opened, True
        return self._note(opened, time)

    def end_round(self, now: datetime | None = None) -> Notice:
        """Close the open round. Who has not released by now has dropped out of it.

        Raises:
            RoundError: no round is open, or its time has not passed and some site may still release.
        """
        if self._opened is None or not self._is_open:
            raise RoundError("not_open", "no round is open")
        time, dropped = self._round_time(now), self.missing()
        if dropped and time < self._opened.closes_at:
            raise RoundError("too_early", f"the round is open until {self._opened.closes_at.isoformat()}")
        self._is_open = False
        return self._note(RoundClosed(self._opened.round_number, dropped), time)

    def copy(self) -> Transcript:
        """A transcript that grows on its own from here. Entries are frozen and shared."""
        other = Transcript(self._plan)
        other._log, other._entries = list(self._log), dict(self._entries)
        other._opened, other._is_open = self._opened, self._is_open
        return other

    def append(self, release: Release, received_at: datetime | None = None) -> Entry:
        """Accept a release, or leave the transcript as it is.

        Nothing that is checked here depends on what the counts say, only on their form: a rule that looked at them
        would choose among releases after the fact, and the certificate would not hold.

        Args:
            received_at: with a time zone, not before the last entry. Left out: now.

        Raises:
            ReleaseRefusedError: it does not answer this plan, or comes twice, or after a later round has begun.
        """
        time = self._time(received_at)
        self._check(release, time)
        entry = Entry(release, time, entry_digest(self.head, release, time))
        self._log.append(entry)
        self._entries[release.round_number, release.site] = entry
        return entry

    def aggregate(self, through_round: int | None = None) -> Aggregate:
        """Sum of the releases of rounds 1 to `through_round` (of all, when left out)."""
        chosen = (e.release for (n, _), e in self._entries.items() if through_round is None or n <= through_round)
        return aggregate(self._plan, chosen)

    def rounds(self) -> Iterator[int]:
        """The rounds from which a release arrived, increasing."""
        return iter(sorted({number for number, _ in self._entries}))

    def to_json(self) -> dict[str, object]:
        """The transcript as JSON values."""
        return {
            "format": TRANSCRIPT_FORMAT,
            "plan": self._plan.to_json(),
            "entries": [entry.to_json() for entry in self._log],
        }

    @classmethod
    def from_json(cls, value: object) -> Transcript:
        """Replay a transcript: every entry is checked as when it was first appended, and its digest recomputed.

        Raises:
            InvalidDocumentError: a field, a release or a digest that is not right.
        """
        doc = read_fields(value, "transcript", ("format", "plan", "entries"))
        if doc["format"] != TRANSCRIPT_FORMAT:
            raise InvalidDocumentError("transcript.format", f"is {doc['format']!r}, not {TRANSCRIPT_FORMAT!r}")
        transcript = cls(Plan.from_json(doc["plan"]))
        for index, item in enumerate(read_list(doc["entries"], "transcript.entries")):
            where = f"transcript.entries.{index}"
            transcript._replay(read_object(item, where), where)
        return transcript

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the transcript, replacing the file as a whole."""
        write_atomically(path, canonical_json(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Transcript:
        """Read and replay a transcript.

        Raises:
            OSError: the file cannot be read.
            InvalidDocumentError: as `from_json`.
        """
        return cls.from_json(read_file(path, "transcript"))

    def _replay(self, item: Mapping[str, object], where: str) -> None:
        kind = next((kind for kind in ("opened", "closed") if kind in item), "release")
        fields = read_fields(item, where, (kind, "received_at", "digest"))
        time = read_time(fields["received_at"], f"{where}.received_at")
        again: Entry | Notice
        try:
            if kind == "release":
                again = self.append(Release.from_json(fields[kind], f"{where}.release"), time)
            else:
                again = self._replay_event(read_event(kind, fields[kind], f"{where}.{kind}"), time, where)
        except (ReleaseRefusedError, RoundError) as error:
            raise InvalidDocumentError(where, str(error)) from error
        if again.digest != read_text(fields["digest"], f"{where}.digest"):
            raise InvalidDocumentError(f"{where}.digest", "does not match the entries before it")

    def _replay_event(self, event: RoundEvent, time: datetime, where: str) -> Notice:
        is_opening = isinstance(event, RoundOpened)
        again = self.begin_round(event.closes_at, time) if isinstance(event, RoundOpened) else self.end_round(time)
        if again.event.to_json() != event.to_json():
            found = "asks" if is_opening else "names dropouts"
            raise InvalidDocumentError(where, f"the round {found} otherwise than the plan and the entries before it do")
        return again

    def _next_number(self) -> int:
        number = 1 if self._opened is None else self._opened.round_number + 1
        if number > self._plan.schedule.rounds and not self._is_open:
            raise RoundError("none_left", f"the plan has {self._plan.schedule.rounds} rounds")
        return number

    def _note(self, event: RoundEvent, time: datetime) -> Notice:
        notice = Notice(event, time, notice_digest(self.head, event, time))
        self._log.append(notice)
        return notice

    def _asked(self, release: Release, time: datetime) -> int:
        """Slots that this release should have: as the open round asks, or in a plain transcript as the plan says."""
        number, opened = release.round_number, self._opened
        if opened is None:
            if not self._plan.recruitment.is_fixed:
                raise ReleaseRefusedError("wrong_round", "under this plan a round is opened before it takes releases")
            return self._plan.slots(number, release.site)
        if number > opened.round_number:
            raise ReleaseRefusedError("wrong_round", f"round {number} is not open yet")
        if number < opened.round_number or not self._is_open or time >= opened.closes_at:
            raise ReleaseRefusedError("late", f"round {number} is over")
        return opened.slots(release.site)

    def _check(self, release: Release, time: datetime) -> None:
        plan = self._plan
        if release.plan_digest != plan.digest:
            raise ReleaseRefusedError("wrong_plan", f"it answers plan {release.plan_digest!r}, this is {plan.digest}")
        if release.site not in [site.name for site in plan.sites]:
            raise ReleaseRefusedError("unknown_site", f"the plan has no site {release.site!r}")
        if not 1 <= release.round_number <= plan.schedule.rounds:
            raise ReleaseRefusedError("wrong_round", f"the plan has no round {release.round_number}")
        if (release.round_number, release.site) in self._entries:
            raise ReleaseRefusedError("duplicate", f"{release.site!r} has released in round {release.round_number}")
        if self._entries and release.round_number < next(reversed(self._entries))[0]:
            raise ReleaseRefusedError("late", f"round {release.round_number} is over")
        slots = self._asked(release, time)
        if release.slots != slots or slots == 0:
            raise ReleaseRefusedError("wrong_slots", f"the plan asks for {slots} slots, got {release.slots}")
        if release.noise_scale != plan.noise_scale:
            raise ReleaseRefusedError("wrong_noise", f"the plan says {plan.noise_scale!r}, got {release.noise_scale!r}")
        problem = release.problem(plan)
        if problem is not None:
            raise ReleaseRefusedError("malformed", problem)

    def _time(self, received_at: datetime | None) -> datetime:
        last = self._log[-1].received_at if self._log else None
        if received_at is None:
            now = datetime.now(UTC)
            return now if last is None else max(now, last)  # a clock that was set back must not stop a calibration
        if received_at.utcoffset() is None:
            raise ReleaseRefusedError("wrong_time", "the time of receipt needs a time zone")
        time = received_at if received_at.utcoffset() == timedelta(0) else received_at.astimezone(UTC)
        if last is not None and time < last:
            raise ReleaseRefusedError("wrong_time", f"{time.isoformat()} lies before the last entry")
        return time

    def _round_time(self, now: datetime | None) -> datetime:
        try:
            return self._time(now)
        except ReleaseRefusedError as error:
            raise RoundError(error.reason, error.detail) from error
