"""What a site has released, kept at the site: which records entered which release, and the release itself.

One file, replaced as a whole and durably (`write_atomically`). A release exists from the moment the file with it is in
place; only then may it be sent, and it is sent as it stands there, however often. A process that dies before that has
sent nothing; its noise was seen by nobody. One process at a time holds the folder.

The file names records and persons by digests of their ids, which can be guessed by trying; the folder belongs to the
site, and is refused when others can read it.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from reticent.accounting.calibration.documents import (
    InvalidDocumentError,
    read_fields,
    read_file,
    read_float,
    read_list,
    read_text,
    read_texts,
    write_atomically,
)
from reticent.accounting.calibration.folder_lock import FolderLock
from reticent.accounting.calibration.release import Release
from reticent.accounting.calibration.site_errors import StateDamaged, StateInUse, StateReadable
from reticent.accounting.fingerprint import canonical_json

__all__ = ["STATE_FORMAT", "SiteState", "StoredRelease"]

STATE_FORMAT = "reticent-site-state/1"
_FILE = "state.json"


@dataclass(frozen=True, repr=False)
class StoredRelease:
    """A release with the records behind it. Private, because of these.

    Attributes:
        release: what was or will be sent.
        unit_loss: Δ²/σ², what it costs one record.
        records, persons: keys of the records that it holds, and for each the key of its person.
    """

    release: Release
    unit_loss: float
    records: tuple[str, ...]
    persons: tuple[str, ...]

    def __repr__(self) -> str:
        return f"StoredRelease(round_number={self.release.round_number}, private)"

    @property
    def data(self) -> bytes:
        """The bytes that are sent: the same ones every time."""
        return canonical_json(self.release.to_json()).encode("ascii")

    def to_json(self) -> dict[str, object]:
        """The release as it is stored, as JSON values."""
        return {
            "release": self.release.to_json(),
            "unit_loss": self.unit_loss,
            "records": list(self.records),
            "persons": list(self.persons),
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> StoredRelease:
        """Read one strictly.

        Raises:
            InvalidDocumentError: not as `to_json` writes it.
        """
        doc = read_fields(value, where, ("release", "unit_loss", "records", "persons"))
        found = cls(
            Release.from_json(doc["release"], f"{where}.release"),
            read_float(doc["unit_loss"], f"{where}.unit_loss"),
            read_texts(doc["records"], f"{where}.records"),
            read_texts(doc["persons"], f"{where}.persons"),
        )
        if len(found.records) != len(found.persons) or not found.unit_loss > 0.0:
            raise InvalidDocumentError(where, "records, persons and loss do not fit")
        return found


class SiteState:
    """The durable state of one site. Use it as a context manager; it is locked in between.

    Args:
        folder: is made, for its owner only, when it does not exist.
        site: the site's name; another site's state is refused.

    Raises (on entering):
        StateInUse, StateReadable, StateDamaged, OSError.
    """

    def __init__(self, folder: Path, site: str) -> None:
        self._folder = folder
        self._site = site
        self._lock = FolderLock(folder)
        self._releases: tuple[StoredRelease, ...] = ()

    @property
    def releases(self) -> tuple[StoredRelease, ...]:
        """Every release ever made here, under any plan, in order."""
        return self._releases

    def find(self, plan_digest: str, round_number: int) -> StoredRelease | None:
        """The release made for a round of a plan, or None."""
        for stored in self._releases:
            if (stored.release.plan_digest, stored.release.round_number) == (plan_digest, round_number):
                return stored
        return None

    def commit(self, stored: StoredRelease) -> None:
        """Make a release exist. When this returns it is on the disk; when it raises it may or may not be.

        After an OSError read the state anew (enter again) before anything else is decided.

        Raises:
            ValueError: there is one for this round already, or the state is not held.
            OSError: it could not be written.
        """
        if not self._lock.is_held:
            raise ValueError("the state is not held")
        if self.find(stored.release.plan_digest, stored.release.round_number) is not None:
            raise ValueError(f"round {stored.release.round_number} has a release already")
        grown = (*self._releases, stored)
        document = {
            "format": STATE_FORMAT,
            "site": self._site,
            "releases": [item.to_json() for item in grown],
        }
        try:
            write_atomically(self._folder / _FILE, canonical_json(document) + "\n")
        except BaseException:
            self._lock.let_go()  # what is on the disk is not known, so nothing is decided from memory any more
            raise
        self._releases = grown

    def __enter__(self) -> Self:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(self._folder.stat().st_mode) & 0o077:
            raise StateReadable(str(self._folder))
        if not self._lock.take():
            raise StateInUse(str(self._folder))
        try:
            self._releases = self._load()
        except BaseException:
            self._lock.let_go()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.let_go()

    def _load(self) -> tuple[StoredRelease, ...]:
        path = self._folder / _FILE
        if not path.exists():
            return ()
        try:
            doc = read_fields(read_file(path, "state"), "state", ("format", "site", "releases"))
            if doc["format"] != STATE_FORMAT:
                raise InvalidDocumentError("state.format", f"is not {STATE_FORMAT!r}")
            if read_text(doc["site"], "state.site") != self._site:
                raise InvalidDocumentError("state.site", "is another site's")
            items = read_list(doc["releases"], "state.releases")
            return tuple(StoredRelease.from_json(item, f"state.releases.{i}") for i, item in enumerate(items))
        except InvalidDocumentError as error:
            raise StateDamaged(f"{path}: {error}") from error
