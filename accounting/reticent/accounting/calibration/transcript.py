"""The append-only record of a calibration: the plan, and every release in the order in which it was accepted.

Each entry's hash covers the one before, and the first covers the plan's digest, so a changed, dropped or moved entry
breaks the chain. The chain shows accidents and careless edits. It is not a signature: who can rewrite the whole file
can rewrite the chain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from reticent.accounting.calibration.aggregate import Aggregate, aggregate
from reticent.accounting.calibration.documents import (
    MAX_INTEGER,
    InvalidDocumentError,
    read_fields,
    read_file,
    read_list,
    read_text,
    read_time,
    write_atomically,
)
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.release import Release
from reticent.accounting.errors import AccountingError
from reticent.accounting.fingerprint import canonical_json, sha256_hex

__all__ = ["TRANSCRIPT_FORMAT", "Entry", "ReleaseRefusedError", "Transcript"]

TRANSCRIPT_FORMAT = "reticent-transcript/1"


class ReleaseRefusedError(AccountingError, ValueError):
    """A release that does not belong into the transcript.

    Attributes:
        reason: "wrong_plan", "unknown_site", "wrong_round", "late", "duplicate", "wrong_slots", "wrong_noise",
            "malformed" or "wrong_time".
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Entry:
    """One accepted release.

    Attributes:
        release: as the site sent it.
        received_at: when it was accepted, UTC.
        digest: SHA-256 over the digest before it, the release and the time.
    """

    release: Release
    received_at: datetime
    digest: str

    def to_json(self) -> dict[str, object]:
        """The entry as JSON values."""
        return {
            "release": self.release.to_json(),
            "received_at": self.received_at.isoformat(),
            "digest": self.digest,
        }


class Transcript:
    """Releases under one plan, in order. Not safe for use from two threads at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._entries: list[Entry] = []
        self._seen: set[tuple[int, str]] = set()

    @property
    def plan(self) -> Plan:
        """The registered plan."""
        return self._plan

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries so far."""
        return tuple(self._entries)

    @property
    def head(self) -> str:
        """Digest of the last entry, or of the plan when there is none."""
        return self._entries[-1].digest if self._entries else self._plan.digest

    def append(self, release: Release, received_at: datetime | None = None) -> Entry:
        """Accept a release, or leave the transcript as it is.

        Nothing that is checked here depends on what the counts say, only on their form: a rule that looked at them
            would choose
        among releases after the fact, and the certificate would not hold.

        Args:
            received_at: with a time zone, not before the last entry. Left out: now.

        Raises:
            ReleaseRefusedError: it does not answer this plan, or comes twice, or after a later round has begun.
        """
        self._check(release)
        time = self._time(received_at)
        entry = Entry(release, time, _entry_digest(self.head, release, time))
        self._entries.append(entry)
        self._seen.add((release.round_number, release.site))
        return entry

    def aggregate(self, through_round: int | None = None) -> Aggregate:
        """Sum of the releases of rounds 1 to `through_round` (of all, when left out)."""
        chosen = (e.release for e in self._entries if through_round is None or e.release.round_number <= through_round)
        return aggregate(self._plan, chosen)

    def rounds(self) -> Iterator[int]:
        """The rounds from which a release arrived, increasing."""
        return iter(sorted({entry.release.round_number for entry in self._entries}))

    def to_json(self) -> dict[str, object]:
        """The transcript as JSON values."""
        return {
            "format": TRANSCRIPT_FORMAT,
            "plan": self._plan.to_json(),
            "entries": [entry.to_json() for entry in self._entries],
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
            fields = read_fields(item, where, ("release", "received_at", "digest"))
            release = Release.from_json(fields["release"], f"{where}.release")
            time = read_time(fields["received_at"], f"{where}.received_at")
            try:
                entry = transcript.append(release, time)
            except ReleaseRefusedError as error:
                raise InvalidDocumentError(where, str(error)) from error
            if entry.digest != read_text(fields["digest"], f"{where}.digest"):
                raise InvalidDocumentError(f"{where}.digest", "does not match the entries before it")
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

    def _check(self, release: Release) -> None:
        plan = self._plan
        if release.plan_digest != plan.digest:
            raise ReleaseRefusedError("wrong_plan", f"it answers plan {release.plan_digest!r}, this is {plan.digest}")
        if release.site not in [site.name for site in plan.sites]:
            raise ReleaseRefusedError("unknown_site", f"the plan has no site {release.site!r}")
        if not 1 <= release.round_number <= plan.schedule.rounds:
            raise ReleaseRefusedError("wrong_round", f"the plan has no round {release.round_number}")
        if (release.round_number, release.site) in self._seen:
            raise ReleaseRefusedError("duplicate", f"{release.site!r} has released in round {release.round_number}")
        if self._entries and release.round_number < self._entries[-1].release.round_number:
            raise ReleaseRefusedError("late", f"round {release.round_number} is over")
        slots = plan.slots(release.round_number, release.site)
        if release.slots != slots or slots == 0:
            raise ReleaseRefusedError("wrong_slots", f"the plan asks for {slots} slots, got {release.slots}")
        if release.noise_scale != plan.noise_scale:
            raise ReleaseRefusedError("wrong_noise", f"the plan says {plan.noise_scale!r}, got {release.noise_scale!r}")
        for name, counts in (("loss_counts", release.loss_counts), ("nonloss_counts", release.nonloss_counts)):
            if len(counts) != plan.bins:
                raise ReleaseRefusedError("malformed", f"{name} has {len(counts)} cells instead of {plan.bins}")
            if any(type(count) is not int or abs(count) > MAX_INTEGER for count in counts):
                raise ReleaseRefusedError("malformed", f"{name} holds something that is not an integer of at most 2^53")

    def _time(self, received_at: datetime | None) -> datetime:
        last = self._entries[-1].received_at if self._entries else None
        if received_at is None:
            now = datetime.now(UTC)
            return now if last is None else max(now, last)  # a clock that was set back must not stop a calibration
        if received_at.utcoffset() is None:
            raise ReleaseRefusedError("wrong_time", "the time of receipt needs a time zone")
        time = received_at if received_at.utcoffset() == timedelta(0) else received_at.astimezone(UTC)
        if last is not None and time < last:
            raise ReleaseRefusedError("wrong_time", f"{time.isoformat()} lies before the last entry")
        return time


def _entry_digest(previous: str, release: Release, time: datetime) -> str:
    return sha256_hex({"previous": previous, "release": release.to_json(), "received_at": time.isoformat()})
