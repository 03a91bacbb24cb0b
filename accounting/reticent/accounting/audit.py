"""The independent auditor: recomputes every balance from the journal and compares.

It reads the file on a read-only connection, in one snapshot, while servers may be writing. The recomputation is in
`audit_replay`, and neither module uses anything of the ledger or its stores but the journal's documented format.

What it finds: an entry changed, removed, inserted or out of order; an entry no sound ledger would have written (an
overspent scope, a double settlement, a settlement above its reservation, a release after scoring); any row of any
table that differs from what the journal says; a damaged file. What it cannot find without an ``anchor``: a journal
whose end was cut off, or that was rewritten as a whole, together with all tables, and an old copy put back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from reticent.accounting.audit_replay import Books, Impossible

__all__ = ["Finding", "Report", "verify"]

_SCHEMAS: Final = (1,)
_TABLES: Final = {"datasets": "dataset_id", "scopes": "scope_id", "reservations": "reservation_id"}
_MOST_FINDINGS: Final = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: ``where`` is "journal 17", "scopes tenant:demo/acme", "file", ..."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit saw. ``seq`` and ``hash`` are of the journal's last entry: keep them as the next anchor.

    At most 1000 findings are listed.
    """

    seq: int
    hash: str
    datasets: int
    scopes: int
    reservations: int
    open_reservations: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def verify(path: str | os.PathLike[str], *, anchor: tuple[int, str] | None = None) -> Report:
    """Audit the SQLite ledger at ``path``. Errors of SQLite while reading are findings; nothing is written.

    ``anchor`` is (seq, hash) of an entry as an earlier report gave it, kept where the ledger's writer cannot reach.
    """
    audit = _Audit(anchor)
    # Read-only, and without SQLITE_OPEN_CREATE: an audit never makes a file.
    try:
        connection = apsw.Connection(str(Path(path).absolute()), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        audit.find("file", f"cannot be opened: {error}")
        return audit.report()
    try:
        connection.set_busy_timeout(30_000)
        connection.execute("BEGIN")
        audit.read(connection)
    except (apsw.Error, UnicodeError) as error:
        audit.find("file", f"cannot be read: {error}")
    finally:
        connection.close()
    return audit.report()


class _Audit:
    def __init__(self, anchor: tuple[int, str] | None) -> None:
        self._anchor = anchor
        self._anchored = anchor is None
        self._findings: list[Finding] = []
        self._books = Books()
        self._seq = 0
        self._hash = "0" * 64

    def find(self, where: str, what: str) -> None:
        if len(self._findings) < _MOST_FINDINGS:
            self._findings.append(Finding(where, what))

    def report(self) -> Report:
        reservations = self._books.reservations.values()
        return Report(
            seq=self._seq,
            hash=self._hash,
            datasets=len(self._books.datasets),
            scopes=len(self._books.scopes),
            reservations=len(reservations),
            open_reservations=sum(row["state"] == "open" for row in reservations),
            findings=tuple(self._findings),
        )

    def read(self, connection: apsw.Connection) -> None:
        version = connection.execute("PRAGMA user_version").get
        if version not in _SCHEMAS:
            self.find("file", f"schema {version} is not one this auditor knows")
        if connection.execute("PRAGMA application_id").get != int.from_bytes(b"RTL1", "big"):
            self.find("file", "the application id is not a ledger's")
        for (problem,) in connection.execute("PRAGMA integrity_check(20)"):
            if problem != "ok":
                self.find("file", str(problem))
        for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            self.find(str(table), f"row {rowid} refers to nothing in {parent}")
        for row in connection.execute("SELECT seq, time_us, kind, payload, previous, hash FROM journal ORDER BY seq"):
            self._entry(*row)
        if self._seq == 0:
            self.find("journal", "is empty")
        if not self._anchored:
            self.find("journal", f"does not contain the anchor {self._anchor}")
        for table, key in _TABLES.items():
            self._compare(table, key, connection)

    def _entry(self, seq: int, time_us: int, kind: str, payload: str, previous: str, hashed: str) -> None:
        where = f"journal {seq}"
        if seq != self._seq + 1:
            self.find(where, f"follows entry {self._seq}")
        if previous != self._hash:
            self.find(where, "does not carry the hash of the entry before")
        text = f"reticent-journal-1\n{seq}\n{time_us}\n{kind}\n{previous}\n{payload}"
        if hashlib.sha256(text.encode("utf-8")).hexdigest() != hashed:
            self.find(where, "does not have the hash of its content")
        self._anchored = self._anchored or self._anchor == (seq, hashed)
        self._seq, self._hash = seq, hashed
        try:
            self._books.post(seq, time_us, kind, _object(payload))
        except Impossible as impossible:
            self.find(where, f"{kind}: {impossible}")

    def _compare(self, table: str, key: str, connection: apsw.Connection) -> None:
        expected: dict[str, dict[str, Any]] = getattr(self._books, table)
        seen = set()
        for row in _rows(connection, table):
            name = str(row.get(key))
            seen.add(name)
            should = expected.get(name)
            if should is None:
                self.find(f"{table} {name}", "is not in the journal")
                continue
            for column in sorted(row.keys() | should.keys()):
                # Types as well as values: 1 and 1.0 are not the same record.
                if repr(row.get(column)) != repr(should.get(column)):
                    self.find(
                        f"{table} {name}", f"{column} is {row.get(column)!r}, the journal says {should.get(column)!r}"
                    )
            if table == "scopes" and not 0 <= row["spent"] + row["reserved"] <= row["granted"]:
                self.find(f"{table} {name}", "is overspent")
        for name in sorted(expected.keys() - seen):
            self.find(f"{table} {name}", "is missing")


def _rows(connection: apsw.Connection, table: str) -> Iterator[dict[str, Any]]:
    cursor = connection.execute(f"SELECT * FROM {table}")  # noqa: S608  -- one of three constants
    columns: list[str] | None = None
    for row in cursor:
        columns = columns or [column[0] for column in cursor.description]
        yield dict(zip(columns, row, strict=True))


def _object(text: str) -> dict[str, Any]:
    """The JSON object in its one canonical spelling; anything else could hide a second meaning."""
    try:
        value = json.loads(text)
        again = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise Impossible(f"the payload is not JSON: {error}") from None
    if not isinstance(value, dict) or again != text:
        raise Impossible("the payload is not an object in canonical form")
    return value
