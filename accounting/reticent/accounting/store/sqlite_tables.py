"""Rows of the SQLite store, through one connection. All SQL of the ledger is here and in the migrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import apsw

from reticent.accounting.journal import GENESIS, Entry, JournalHead, next_entry
from reticent.accounting.ledger import Dataset, Reservation, Statement
from reticent.accounting.ledger_errors import LedgerDamaged, UnknownScope
from reticent.accounting.scope_ids import scope_chain

__all__ = ["SqliteTables"]

_SCOPE: Final = (
    "scope_id, kind, parent, dataset_id, epsilon, delta, overhead, granted, spent, reserved,"
    " open, settled, released, forfeited"
)
_RESERVATION: Final = (
    "SELECT r.reservation_id, r.scope_id, r.worst_case, r.state, r.scored, r.charge, r.owner, j.time_us, r.expires_us"
    " FROM reservations r JOIN journal j ON j.seq = r.opened_seq"
)
_ADDABLE: Final = frozenset(("granted", "spent", "reserved", "open", "settled", "released", "forfeited"))

Row = tuple[Any, ...]


class SqliteTables:
    """``operations.Tables`` over one connection, and the reads of statements and reports."""

    def __init__(self, connection: apsw.Connection, now_us: int) -> None:
        self._connection = connection
        self._now_us = now_us

    def _rows(self, sql: str, bindings: tuple[object, ...] = ()) -> list[Row]:
        return cast(list[Row], self._connection.execute(sql, bindings).fetchall())

    def _one(self, sql: str, bindings: tuple[object, ...]) -> Row | None:
        rows = self._rows(sql, bindings)
        return rows[0] if rows else None

    # Data sets and scopes

    def dataset(self, dataset_id: str) -> Dataset | None:
        row = self._one("SELECT renyi_order, guarantee FROM datasets WHERE dataset_id = ?", (dataset_id,))
        return None if row is None else Dataset(dataset_id, float(row[0]), row[1])

    def insert_dataset(self, dataset: Dataset, entry: Entry) -> None:
        values = (dataset.dataset_id, repr(dataset.order), dataset.guarantee, entry.seq)
        self._connection.execute("INSERT INTO datasets VALUES (?, ?, ?, ?)", values)

    def chain(self, scope_ids: tuple[str, ...]) -> tuple[Statement, ...]:
        marks = ", ".join("?" * len(scope_ids))
        rows = self._rows(f"SELECT {_SCOPE} FROM scopes WHERE scope_id IN ({marks})", scope_ids)  # noqa: S608
        found = {row[0]: Statement(*row) for row in rows}
        for scope_id in scope_ids:
            if scope_id not in found:
                raise UnknownScope(scope_id)
        return tuple(found[scope_id] for scope_id in scope_ids)

    def all_scopes(self) -> tuple[Statement, ...]:
        return tuple(Statement(*row) for row in self._rows(f"SELECT {_SCOPE} FROM scopes ORDER BY opened_seq"))  # noqa: S608

    def insert_scope(self, scope: Statement, entry: Entry) -> None:
        self._connection.execute(
            f"INSERT INTO scopes ({_SCOPE}, opened_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, ?)",  # noqa: S608
            (
                scope.scope_id,
                scope.kind,
                scope.parent,
                scope.dataset_id,
                scope.epsilon,
                scope.delta,
                scope.overhead,
                scope.granted,
                entry.seq,
            ),
        )

    def add(self, scope_ids: tuple[str, ...], changes: Mapping[str, int]) -> None:
        if not changes.keys() <= _ADDABLE:
            raise ValueError(f"not a balance: {sorted(changes.keys() - _ADDABLE)}")
        columns = ", ".join(f"{column} = {column} + ?" for column in changes)
        marks = ", ".join("?" * len(scope_ids))
        sql = f"UPDATE scopes SET {columns} WHERE scope_id IN ({marks})"  # noqa: S608
        self._connection.execute(sql, (*changes.values(), *scope_ids))
        if self._connection.changes() != len(scope_ids):
            raise LedgerDamaged(f"a scope of {scope_ids} is not there")

    # Reservations

    def reservation(self, reservation_id: str) -> Reservation | None:
        row = self._one(f"{_RESERVATION} WHERE r.reservation_id = ?", (reservation_id,))
        return None if row is None else _reservation(row)

    def request(self, reservation_id: str) -> str:
        row = self._one(
            "SELECT j.payload FROM reservations r JOIN journal j ON j.seq = r.opened_seq WHERE r.reservation_id = ?",
            (reservation_id,),
        )
        if row is None:
            raise LedgerDamaged(f"reservation {reservation_id!r} has no journal entry")
        return str(row[0])

    def insert_reservation(self, reservation: Reservation, entry: Entry) -> None:
        self._connection.execute(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, NULL, ?, ?, ?, NULL)",
            (
                reservation.reservation_id,
                reservation.scope_ids[0],
                reservation.worst_case,
                reservation.state,
                int(reservation.scored),
                reservation.owner,
                reservation.expires_us,
                entry.seq,
            ),
        )

    def update_reservation(self, reservation: Reservation, closed_by: Entry | None) -> None:
        self._connection.execute(
            "UPDATE reservations SET worst_case = ?, state = ?, scored = ?, charge = ?, expires_us = ?, closed_seq = ?"
            " WHERE reservation_id = ?",
            (
                reservation.worst_case,
                reservation.state,
                int(reservation.scored),
                reservation.charge,
                reservation.expires_us,
                None if closed_by is None else closed_by.seq,
                reservation.reservation_id,
            ),
        )

    def expired(self, now_us: int, limit: int) -> tuple[Reservation, ...]:
        sql = f"{_RESERVATION} WHERE r.state = 'open' AND r.expires_us <= ? ORDER BY r.expires_us, r.opened_seq LIMIT ?"
        return tuple(_reservation(row) for row in self._rows(sql, (now_us, limit)))

    # Journal

    def head(self) -> JournalHead:
        row = self._one("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1", ())
        return JournalHead(0, GENESIS) if row is None else JournalHead(row[0], row[1])

    def append(self, kind: str, payload: Mapping[str, object]) -> Entry:
        entry = next_entry(self.head(), self._now_us, kind, payload)
        values = (entry.seq, entry.time_us, entry.kind, entry.payload, entry.previous, entry.hash)
        self._connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", values)
        return entry


def _reservation(row: Row) -> Reservation:
    return Reservation(
        reservation_id=row[0],
        scope_ids=scope_chain(row[1]),
        worst_case=row[2],
        state=row[3],
        scored=bool(row[4]),
        charge=row[5],
        owner=row[6],
        reserved_us=row[7],
        expires_us=row[8],
    )
