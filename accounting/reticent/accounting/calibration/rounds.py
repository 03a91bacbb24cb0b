"""The server's side of a calibration: rounds with deadlines over one transcript file.

The transcript is on the disk before anybody learns that a release was accepted. Whether a round is over is decided by
the clock before a release is looked at, so a dropout never depends on what its release would have said. Who is asked
for what follows from the plan and the transcript (`controller.py`). Stopping at the first certificate is a function of
the transcript, too; the rules are valid at every round, so it is optional.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from reticent.accounting.calibration.documents import InvalidDocumentError
from reticent.accounting.calibration.folder_lock import FolderLock
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.refusals import RefusalLog
from reticent.accounting.calibration.release import Release
from reticent.accounting.calibration.transcript import Entry, ReleaseRefusedError, Transcript
from reticent.accounting.errors import AccountingError
from reticent.accounting.fingerprint import parse_json

__all__ = ["FolderInUseError", "OtherPlanError", "RoundStatus", "Rounds"]

TRANSCRIPT_FILE = "transcript.json"
REFUSALS_FILE = "refusals.jsonl"


class FolderInUseError(AccountingError, RuntimeError):
    """Another server writes to this folder."""


class OtherPlanError(AccountingError, ValueError):
    """The folder holds the transcript of another plan, or one without rounds."""


@dataclass(frozen=True)
class RoundStatus:
    """What anybody may know of a calibration now.

    Attributes:
        state: "open", or "finished".
        reason: why it is finished: "certified" or "rounds_over"; None while it is open.
        round_number: the open round, or the last one.
        closes_at: of the open round, or None.
        asked: slots by site of the open round, the sites that are asked only.
        missing: sites that the open round waits for.
        head: digest of the transcript.
    """

    state: str
    reason: str | None
    round_number: int
    closes_at: datetime | None
    asked: dict[str, int]
    missing: tuple[str, ...]
    head: str


class Rounds:
    """A calibration under one plan. Safe for use from several threads; one process at a time, by a lock on the folder.

    Args:
        plan: the registered plan.
        folder: keeps `transcript.json` and `refusals.jsonl`. A transcript that is there is continued.
        round_time: how long a round is open.
        certified: whether to stop on this transcript; asked once a round, when it is over. Left out: never stop early.
        clock: for tests; the time, with a time zone.

    Raises:
        ValueError: a round time that is not positive.
        FolderInUseError, OtherPlanError, InvalidDocumentError, OSError (on entering).
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        round_time: timedelta,
        *,
        certified: Callable[[Transcript], bool] | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if round_time <= timedelta(0):
            raise ValueError(f"a round needs time, got {round_time}")
        self._plan = plan
        self._folder = folder
        self._round_time = round_time
        self._certified = certified
        self._clock = clock or (lambda: datetime.now(UTC))
        self._guard = threading.Lock()
        self._lock = FolderLock(folder)
        self._refusals = RefusalLog(folder / REFUSALS_FILE)
        self._transcript = Transcript(plan)
        self._finished: str | None = None

    @property
    def plan(self) -> Plan:
        """The registered plan."""
        return self._plan

    @property
    def transcript(self) -> Transcript:
        """The transcript as it stands on the disk. Do not append to it."""
        return self._transcript

    def tick(self) -> RoundStatus:
        """Let the clock act: close a round whose time is over or that misses nobody, open the next one.

        Raises:
            OSError: the transcript could not be written; nothing has changed.
        """
        with self._guard:
            self._advance(self._transcript.copy(), self._now())
            return self._status()

    def submit(self, site: str, data: bytes) -> Entry:
        """Accept one release, or refuse it and write down why.

        Args:
            site: who sent it, as authenticated.
            data: the release as JSON.

        Returns:
            The entry, on the disk. The same release again gives the same entry.

        Raises:
            ReleaseRefusedError: as the transcript's, and "malformed" or "wrong_site".
            OSError: transcript or log could not be written; nothing has changed, and the site may try again.
        """
        with self._guard:
            now = self._now()
            self._advance(self._transcript.copy(), now)  # before the data are looked at
            try:
                return self._accept(site, data, now)
            except ReleaseRefusedError as error:
                self._refusals.record(site, error.reason, error.detail, hashlib.sha256(data).hexdigest(), now)
                raise

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.take():
            raise FolderInUseError(f"another server uses {self._folder}")
        try:
            self._transcript = self._load()
        except BaseException:
            self._lock.let_go()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.let_go()

    def _load(self) -> Transcript:
        path = self._folder / TRANSCRIPT_FILE
        if not path.exists():
            return Transcript(self._plan)
        found = Transcript.load(path)
        if found.plan.digest != self._plan.digest:
            raise OtherPlanError(f"{path} is of plan {found.plan.digest}, not of {self._plan.digest}")
        if found.log and found.last_opened is None:
            raise OtherPlanError(f"{path} has releases without rounds")
        return found

    def _now(self) -> datetime:
        # A clock that was set back must not reopen a round, so time stands still until it has caught up.
        now = self._clock()
        log = self._transcript.log
        return max(now, log[-1].received_at) if log else now

    def _advance(self, changed: Transcript, now: datetime) -> None:
        """Let the clock act on a copy of the transcript that may have grown; save it once, then let it stand."""
        finished = self._finished
        while finished is None:
            opened = changed.open_round
            if opened is not None:
                if changed.missing() and now < opened.closes_at:
                    break
                changed.end_round(now)
            finished = self._end_reason(changed)
            if finished is None:
                changed.begin_round(now + self._round_time, now)
        if changed.head != self._transcript.head:
            changed.save(self._folder / TRANSCRIPT_FILE)
        self._transcript, self._finished = changed, finished

    def _end_reason(self, transcript: Transcript) -> str | None:
        last = transcript.last_opened
        if last is None:
            return None
        if self._certified is not None and transcript.entries and self._certified(transcript):
            return "certified"
        return "rounds_over" if last.round_number == self._plan.schedule.rounds else None

    def _accept(self, site: str, data: bytes, now: datetime) -> Entry:
        try:
            release = Release.from_json(parse_json(data.decode("utf-8")))
        except ValueError as error:
            detail = f"{error}" if isinstance(error, InvalidDocumentError) else "is not JSON in UTF-8"
            raise ReleaseRefusedError("malformed", detail) from None
        if release.site != site:
            raise ReleaseRefusedError("wrong_site", f"the key is of {site!r}, the release says {release.site[:64]!r}")
        if release.plan_digest == self._plan.digest:
            known = self._transcript.find(release.round_number, site)
            if known is not None and known.release == release:
                return known
        changed = self._transcript.copy()
        entry = changed.append(release, now)
        self._advance(changed, now)
        return entry

    def _status(self) -> RoundStatus:
        opened, last = self._transcript.open_round, self._transcript.last_opened
        return RoundStatus(
            state="finished" if opened is None else "open",
            reason=self._finished,
            round_number=0 if last is None else last.round_number,
            closes_at=None if opened is None else opened.closes_at,
            asked={} if opened is None else dict(opened.asked),
            missing=self._transcript.missing(),
            head=self._transcript.head,
        )
