"""The independent auditor: recomputes every balance from the journal and compares.

It reads a store through a `Source`, in one snapshot, while servers may be writing. The recomputation is in
`audit_replay`; neither module uses anything of the ledger or its stores but the journal's documented format.

What it finds: an entry changed, removed, inserted or out of order; an entry no sound ledger would have written (an
overspent scope, a double settlement, a settlement above its reservation, a release after scoring); any row of any
table that differs from what the journal says; a recorded answer of a request that was not paid for; a damaged file.
What it cannot find without an ``anchor``: a journal whose end was cut off, or that was rewritten as a whole, together
with all tables, and an old copy put back. What it cannot judge: a recorded answer itself, and whether claims are
missing, because they are content, are erased in time, and are not in the journal.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from reticent.accounting.audit_errors import UnreadableLedger
from reticent.accounting.audit_replay import Books, Impossible
from reticent.accounting.audit_sqlite import read_sqlite

__all__ = ["Finding", "Report", "Source", "audit", "verify"]

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


class Source(Protocol):
    """A store as the auditor reads it, in one snapshot.

    ``rows`` gives every row of a table, by column, as int, float, str or None (flags as 0 and 1):

    * datasets: dataset_id, renyi_order, guarantee, opened_seq;
    * scopes: scope_id, kind, parent, dataset_id, epsilon, delta, overhead, granted, spent, reserved, open, settled,
      released, forfeited, unprotected, opened_seq;
    * reservations: reservation_id, scope_id, worst_case, state, scored, charge, owner, expires_us, opened_seq,
      closed_seq, claim;
    * claims: claim_id, request_digest, reservation_id, answered (whether there is an answer), expires_us.
    """

    def problems(self) -> Iterable[tuple[str, str]]:
        """(where, what) of everything that the database itself finds wrong, and a schema that is not known."""

    def journal(self) -> Iterable[tuple[int, int, str, str, str, str]]:
        """seq, time_us, kind, payload, previous and hash of every entry, by seq."""

    def rows(self, table: str) -> Iterable[dict[str, Any]]: ...


def audit(source: Source, *, anchor: tuple[int, str] | None = None) -> Report:
    """Audit what the source reads. Its errors pass through.

    ``anchor`` is (seq, hash) of an entry as an earlier report gave it, kept where the ledger's writer cannot reach.
    """
    auditing = _Audit(anchor)
    auditing.read(source)
    return auditing.report()


def verify(path: str | os.PathLike[str], *, anchor: tuple[int, str] | None = None) -> Report:
    """Audit the SQLite ledger at ``path``. Errors of SQLite while reading are findings; nothing is written.

    ``anchor`` as for ``audit``.
    """
    auditing = _Audit(anchor)
    try:
        with read_sqlite(Path(path)) as source:
            auditing.read(source)
    except UnreadableLedger as error:
        auditing.find("file", str(error))
    return auditing.report()


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

    def read(self, source: Source) -> None:
        for where, what in source.problems():
            self.find(where, what)
        for entry in source.journal():
            self._entry(*entry)
        if self._seq == 0:
            self.find("journal", "is empty")
        if not self._anchored:
            self.find("journal", f"does not contain the anchor {self._anchor}")
        for table, key in _TABLES.items():
            self._compare(table, key, source.rows(table))
        for row in source.rows("claims"):
            for what in self._books.claim_findings(row):
                self.find(f"claims {row.get('claim_id')}", what)

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

    def _compare(self, table: str, key: str, rows: Iterable[dict[str, Any]]) -> None:
        expected: dict[str, dict[str, Any]] = getattr(self._books, table)
        seen = set()
        for row in rows:
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
