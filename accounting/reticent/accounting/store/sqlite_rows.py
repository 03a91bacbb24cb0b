"""Rows of the SQLite store, through one connection. All SQL of the ledger is here and in the migrations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast

import apsw

from reticent.accounting.journal import GENESIS, JournalHead
from reticent.accounting.ledger import Dataset, Statement
from reticent.accounting.ledger_errors import LedgerDamaged
from reticent.accounting.store.rows import Changes, Claim, StoredReservation, Wanted, stored_reservation

__all__ = ["SqliteRows"]

_SCOPE: Final = (
    "scope_id, kind, parent, dataset_id, epsilon, delta, overhead, granted, spent, reserved,"
    " open, settled, released, forfeited, unprotected"
)
_RESERVATION: Final = (
    "SELECT r.reservation_id, r.scope_id, r.worst_case, r.state, r.scored, r.charge, r.owner, j.time_us, r.expires_us,"
    " r.claim, r.opened_seq, r.closed_seq FROM reservations r JOIN journal j ON j.seq = r.opened_seq"
)
_CLAIM: Final = "SELECT claim_id, request_digest, reservation_id, answer, expires_us FROM claims"
_NAMED: Final = "IN ({rows})"

_INSERT_ENTRIES: Final = "INSERT INTO journal (seq, time_us, kind, payload, previous, hash) VALUES {rows}"
_INSERT_DATASETS: Final = "INSERT INTO datasets (dataset_id, renyi_order, guarantee, opened_seq) VALUES {rows}"
_INSERT_SCOPES: Final = f"INSERT INTO scopes ({_SCOPE}, opened_seq) VALUES {{rows}}"  # noqa: S608
_UPDATE_SCOPES: Final = (
    "UPDATE scopes SET granted = ?, spent = ?, reserved = ?, open = ?, settled = ?, released = ?, forfeited = ?,"
    " unprotected = ? WHERE scope_id = ?"
)
_INSERT_RESERVATIONS: Final = (
    "INSERT INTO reservations (reservation_id, scope_id, worst_case, state, scored, charge, owner, expires_us,"
    " opened_seq, closed_seq, claim) VALUES {rows}"
)
_UPDATE_RESERVATIONS: Final = (
    "UPDATE reservations SET worst_case = ?, state = ?, scored = ?, charge = ?, expires_us = ?, closed_seq = ?"
    " WHERE reservation_id = ?"
)
_UPSERT_CLAIMS: Final = (
    "INSERT INTO claims (claim_id, request_digest, reservation_id, answer, expires_us) VALUES {rows}"
    " ON CONFLICT (claim_id) DO UPDATE SET request_digest = excluded.request_digest,"
    " reservation_id = excluded.reservation_id, answer = excluded.answer, expires_us = excluded.expires_us"
)
_LARGEST_STATEMENT: Final = 64  # rows

Row = tuple[Any, ...]
V = TypeVar("V")


class SqliteRows:
    """``rows.Rows`` over one connection, in the transaction that it is in."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def _rows(self, sql: str, bindings: tuple[object, ...] = ()) -> list[Row]:
        return cast(list[Row], self._connection.execute(sql, bindings).fetchall())

    def _named(self, sql: str, names: Collection[object]) -> list[Row]:
        found: list[Row] = []
        wanted = tuple(names)
        for start in range(0, len(wanted), _LARGEST_STATEMENT):
            part = wanted[start : start + _LARGEST_STATEMENT]
            size = 1 << (len(part) - 1).bit_length()  # few statements to prepare: the last name fills one up
            found += self._rows(_statement(sql, size), part + part[-1:] * (size - len(part)))
        return found

    # Reading

    def head(self) -> JournalHead:
        rows = self._rows("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1")
        return JournalHead(*rows[0]) if rows else JournalHead(0, GENESIS)

    def datasets(self, dataset_ids: Collection[str]) -> dict[str, Dataset]:
        sql = f"SELECT dataset_id, renyi_order, guarantee FROM datasets WHERE dataset_id {_NAMED}"  # noqa: S608
        return {row[0]: Dataset(row[0], float(row[1]), row[2]) for row in self._named(sql, dataset_ids)}

    def scopes(self, scope_ids: Collection[str]) -> dict[str, Statement]:
        sql = f"SELECT {_SCOPE} FROM scopes WHERE scope_id {_NAMED}"  # noqa: S608
        return {row[0]: Statement(*row) for row in self._named(sql, scope_ids)}

    def all_scopes(self) -> tuple[Statement, ...]:
        return tuple(Statement(*row) for row in self._rows(f"SELECT {_SCOPE} FROM scopes ORDER BY opened_seq"))  # noqa: S608

    def reservations(self, reservation_ids: Collection[str]) -> dict[str, StoredReservation]:
        rows = self._named(f"{_RESERVATION} WHERE r.reservation_id {_NAMED}", reservation_ids)
        return {row[0]: stored_reservation(row) for row in rows}

    def expired(self, until_us: int, limit: int) -> tuple[StoredReservation, ...]:
        sql = f"{_RESERVATION} WHERE r.state = 'open' AND r.expires_us <= ? ORDER BY r.expires_us, r.opened_seq LIMIT ?"
        return tuple(stored_reservation(row) for row in self._rows(sql, (until_us, limit)))

    def payloads(self, seqs: Collection[int]) -> dict[int, str]:
        rows = self._named(f"SELECT seq, payload FROM journal WHERE seq {_NAMED}", seqs)  # noqa: S608
        return {row[0]: row[1] for row in rows}

    def claims(self, claim_ids: Collection[str]) -> dict[str, Claim]:
        return {row[0]: Claim(*row) for row in self._named(f"{_CLAIM} WHERE claim_id {_NAMED}", claim_ids)}

    def expired_claims(self, until_us: int, limit: int) -> tuple[str, ...]:
        sql = (
            "SELECT c.claim_id FROM claims c JOIN reservations r ON r.reservation_id = c.reservation_id"
            " WHERE c.expires_us <= ? AND r.state <> 'open' ORDER BY c.expires_us LIMIT ?"
        )
        return tuple(row[0] for row in self._rows(sql, (until_us, limit)))

    # Writing

    def read_ahead(self, wanted: Wanted) -> None:
        pass  # nothing is far away

    def write(self, changes: Changes) -> None:
        entries = [(e.seq, e.time_us, e.kind, e.payload, e.previous, e.hash) for e in changes.entries]
        self._insert(_INSERT_ENTRIES, entries)
        opened = [(d.dataset_id, repr(d.order), d.guarantee, seq) for d, seq in changes.datasets]
        self._insert(_INSERT_DATASETS, opened)
        self._insert(_INSERT_SCOPES, [(*_identity(s), *_balances(s), seq) for s, seq in changes.new_scopes])
        self._update(_UPDATE_SCOPES, [(*_balances(s), s.scope_id) for s in changes.scopes])
        self._insert(_INSERT_RESERVATIONS, [_inserted(stored) for stored in changes.new_reservations])
        self._update(_UPDATE_RESERVATIONS, [_updated(stored) for stored in changes.reservations])
        if changes.erased_claims:
            self._named(f"DELETE FROM claims WHERE claim_id {_NAMED}", changes.erased_claims)  # noqa: S608
        claims = [(c.claim_id, c.request_digest, c.reservation_id, c.answer, c.expires_us) for c in changes.claims]
        self._insert(_UPSERT_CLAIMS, claims)

    def _insert(self, sql: str, rows: Sequence[Row]) -> None:
        """Many rows a statement: other threads run between statements, and the journal's lock is held for it."""
        if not rows:
            return
        for part in _parts(rows):
            values = tuple(value for row in part for value in row)
            self._connection.execute(_statement(sql, len(part), len(part[0])), values)

    def _update(self, sql: str, rows: Sequence[Row]) -> None:
        if rows:
            before = self._connection.total_changes()
            self._connection.executemany(sql, rows)
            if self._connection.total_changes() - before != len(rows):
                raise LedgerDamaged("a row that was changed is not there")


def _parts(rows: Sequence[V]) -> Iterator[Sequence[V]]:
    """Parts of 64, 32, 16, ... rows, so that few statements have to be prepared."""
    start, size = 0, _LARGEST_STATEMENT
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield rows[start : start + size]
        start += size


@cache
def _statement(sql: str, rows: int, columns: int = 0) -> str:
    row = f"({', '.join('?' * columns)})" if columns else "?"
    return sql.replace("{rows}", ", ".join([row] * rows))


def _identity(s: Statement) -> Row:
    return (s.scope_id, s.kind, s.parent, s.dataset_id, s.epsilon, s.delta, s.overhead)


def _balances(s: Statement) -> Row:
    return (s.granted, s.spent, s.reserved, s.open, s.settled, s.released, s.forfeited, s.unprotected)


def _inserted(stored: StoredReservation) -> Row:
    r = stored.reservation
    return (
        r.reservation_id,
        r.scope_ids[0],
        r.worst_case,
        r.state,
        int(r.scored),
        r.charge,
        r.owner,
        r.expires_us,
        stored.opened_seq,
        stored.closed_seq,
        stored.claim_id,
    )


def _updated(stored: StoredReservation) -> Row:
    r = stored.reservation
    return (r.worst_case, r.state, int(r.scored), r.charge, r.expires_us, stored.closed_seq, r.reservation_id)
