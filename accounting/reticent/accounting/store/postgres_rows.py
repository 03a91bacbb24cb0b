"""Rows of the PostgreSQL store, through one connection. With the migrations, all SQL of the ledger's tables is here.

A table is written by one statement from one JSON document, whatever the number of rows: for 64 entries that takes
0.7 ms and 0.2 ms of Python's time, as arrays for `unnest` 2.9 and 2.1 ms, row by row in a pipeline 5.4 and 1.0 ms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import psycopg

from reticent.accounting.journal import Entry, JournalHead
from reticent.accounting.ledger import Dataset, Statement
from reticent.accounting.ledger_errors import LedgerDamaged
from reticent.accounting.store.rows import Changes, Claim, StoredReservation, Wanted, stored_reservation

__all__ = ["Known", "PostgresReads", "PostgresRows"]

_SCOPE: Final = (
    "SELECT scope_id, kind, parent, dataset_id, epsilon, delta, overhead, granted, spent, reserved, open, settled,"
    " released, forfeited, unprotected FROM scopes"
)
_RESERVATION: Final = (
    "SELECT r.reservation_id, r.scope_id, r.worst_case, r.state, r.scored, r.charge, r.owner, j.time_us, r.expires_us,"
    " r.claim, r.opened_seq, r.closed_seq FROM reservations r JOIN journal j ON j.seq = r.opened_seq"
)
_HEAD: Final = "SELECT seq, hash FROM journal_head"
# Row locks are not handed on in the order of asking: under load a replica could wait for long. This one is.
_QUEUE: Final = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'the head', 'big')})"
_LOCK: Final = f"WITH held AS MATERIALIZED ({_HEAD} FOR UPDATE) SELECT seq, hash, "
_CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# Names hold no line break, and one text is sent faster than an array.
_AMONG: Final = "= ANY (string_to_array(%s, E'\\n'))"

_ENTRY: Final = "seq bigint, time_us bigint, kind text, payload text, previous text, hash text"
_DATASET: Final = "dataset_id text, renyi_order text, guarantee text, opened_seq bigint"
_BALANCES: Final = ("granted", "spent", "reserved", "open", "settled", "released", "forfeited", "unprotected")
_NEW_SCOPE: Final = (
    "scope_id text, kind text, parent text, dataset_id text, epsilon double precision, delta double precision,"
    f" overhead bigint, {', '.join(f'{name} bigint' for name in _BALANCES)}, opened_seq bigint"
)
_CHANGEABLE: Final = {
    "worst_case": "bigint",
    "state": "text",
    "scored": "smallint",
    "charge": "bigint",
    "expires_us": "bigint",
    "closed_seq": "bigint",
}
_NEW_RESERVATION: Final = (
    "reservation_id text, scope_id text, worst_case bigint, state text, scored smallint, charge bigint, owner text,"
    " expires_us bigint, opened_seq bigint, closed_seq bigint, claim text"
)


def _insert(table: str, columns: str) -> str:
    names = ", ".join(column.split()[0] for column in columns.split(", "))
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM json_to_recordset(%s::json) AS new ({columns})"  # noqa: S608


def _update(table: str, key: str, columns: Mapping[str, str]) -> str:
    changes = ", ".join(f"{name} = new.{name}" for name in columns)
    types = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    rows = f"json_to_recordset(%s::json) AS new ({key} text, {types})"
    return f"UPDATE {table} AS old SET {changes} FROM {rows} WHERE old.{key} = new.{key}"  # noqa: S608


_INSERT_ENTRIES: Final = _insert("journal", _ENTRY)
_INSERT_DATASETS: Final = _insert("datasets", _DATASET)
_INSERT_SCOPES: Final = _insert("scopes", _NEW_SCOPE)
_INSERT_RESERVATIONS: Final = _insert("reservations", _NEW_RESERVATION)
_UPDATE_SCOPES: Final = _update("scopes", "scope_id", dict.fromkeys(_BALANCES, "bigint"))
_UPDATE_RESERVATIONS: Final = _update("reservations", "reservation_id", _CHANGEABLE)
_PUT_CLAIM: Final = (
    "INSERT INTO claims (claim_id, request_digest, reservation_id, answer, expires_us) VALUES (%s, %s, %s, %b, %s)"
    " ON CONFLICT (claim_id) DO UPDATE SET request_digest = excluded.request_digest,"
    " reservation_id = excluded.reservation_id, answer = excluded.answer, expires_us = excluded.expires_us"
)

Row = tuple[Any, ...]

Known = dict[str, tuple[tuple[str, ...], str | None]]
"""Scopes and claim of reservations that were made over this connection, the oldest first. Neither ever changes."""

_MOST_KNOWN: Final = 10_000


# Of each table: how rows are found by their names, which come first in a row, and what becomes of one.
_BY_NAME: Final[dict[str, tuple[str, Callable[[Row], Any]]]] = {
    "datasets": (
        f"SELECT dataset_id, renyi_order, guarantee FROM datasets WHERE dataset_id {_AMONG}",  # noqa: S608
        lambda row: Dataset(row[0], float(row[1]), row[2]),
    ),
    "scopes": (f"{_SCOPE} WHERE scope_id {_AMONG}", lambda row: Statement(*row)),
    "reservations": (f"{_RESERVATION} WHERE r.reservation_id {_AMONG}", stored_reservation),
    "claims": (
        f"SELECT claim_id, request_digest, reservation_id, answer, expires_us FROM claims WHERE claim_id {_AMONG}",  # noqa: S608
        lambda row: Claim(*row),
    ),
}


class PostgresReads:
    """`rows.Reads` over a connection on which a transaction was begun."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def _rows(self, query: str, bindings: tuple[object, ...] = ()) -> list[Row]:
        return self._connection.execute(query, bindings).fetchall()

    def _ask(self, table: str, names: Collection[str]) -> psycopg.Cursor[Row]:
        return self._connection.execute(_BY_NAME[table][0], (_lines(names),))

    def _named(self, table: str, names: Collection[str]) -> dict[str, Any]:
        return _values(table, self._ask(table, names))

    def head(self) -> JournalHead:
        return JournalHead(*self._rows(_HEAD)[0])

    def datasets(self, dataset_ids: Collection[str]) -> dict[str, Dataset]:
        return self._named("datasets", dataset_ids)

    def scopes(self, scope_ids: Collection[str]) -> dict[str, Statement]:
        return self._named("scopes", scope_ids)

    def all_scopes(self) -> tuple[Statement, ...]:
        return tuple(Statement(*row) for row in self._rows(f"{_SCOPE} ORDER BY opened_seq"))

    def reservations(self, reservation_ids: Collection[str]) -> dict[str, StoredReservation]:
        return self._named("reservations", reservation_ids)

    def expired(self, until_us: int, limit: int) -> tuple[StoredReservation, ...]:
        rest = "WHERE r.state = 'open' AND r.expires_us <= %s ORDER BY r.expires_us, r.opened_seq LIMIT %s"
        return tuple(stored_reservation(row) for row in self._rows(f"{_RESERVATION} {rest}", (until_us, limit)))

    def payloads(self, seqs: Collection[int]) -> dict[int, str]:
        return dict(self._rows("SELECT seq, payload FROM journal WHERE seq = ANY (%s::bigint[])", (list(seqs),)))

    def claims(self, claim_ids: Collection[str]) -> dict[str, Claim]:
        return self._named("claims", claim_ids)

    def expired_claims(self, until_us: int, limit: int) -> tuple[str, ...]:
        query = (
            "SELECT c.claim_id FROM claims c JOIN reservations r ON r.reservation_id = c.reservation_id"
            " WHERE c.expires_us <= %s AND r.state <> 'open' ORDER BY c.expires_us, c.claim_id LIMIT %s"
        )
        return tuple(row[0] for row in self._rows(query, (until_us, limit)))


class PostgresRows(PostgresReads):
    """`rows.Rows` in a write transaction, which this begins and holds the journal's head in.

    READ COMMITTED, not SERIALIZABLE: a writer waits for the one row that every writer needs (in a queue, which is only
    for fairness: nothing else depends on that lock), and what it reads after that is all that was committed before.
    Nothing can then conflict, so nothing has to be tried again.

    Args:
        connection: without a transaction.
        known: what to foresee reads by; added to.

    Attributes:
        now_us: the server's clock, read once the head was held.
        last: the last entry written; None while none is.
    """

    QUEUE: ClassVar[str] = _QUEUE
    LOCK_HEAD: ClassVar[str] = f"{_LOCK}{_CLOCK} FROM held"

    def __init__(self, connection: psycopg.Connection[Row], known: Known) -> None:
        super().__init__(connection)
        self.last: Entry | None = None
        self._known = known
        self._ahead: dict[str, tuple[frozenset[str], dict[str, Any]]] = {}
        with _pipeline(connection):
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            connection.execute(self.QUEUE)
            held = connection.execute(self.LOCK_HEAD)
        seq, head_hash, now_us = held.fetchall()[0]
        self._head = JournalHead(seq, head_hash)
        self.now_us = int(now_us)

    def head(self) -> JournalHead:
        return self._head

    def read_ahead(self, wanted: Wanted) -> None:
        """All tables in one round trip. A settlement's scopes are foreseen if its reservation was made here."""
        names = {
            "datasets": wanted.datasets,
            "scopes": set(wanted.scopes),
            "reservations": wanted.reservations,
            "claims": set(wanted.claims),
        }
        for name in wanted.reservations & self._known.keys():
            scope_ids, claim_id = self._known[name]
            names["scopes"].update(scope_ids)
            if claim_id is not None and name in wanted.answered:
                names["claims"].add(claim_id)
        with _pipeline(self._connection):
            asked = {table: self._ask(table, some) for table, some in names.items() if some}
        self._ahead = {table: (frozenset(names[table]), _values(table, cursor)) for table, cursor in asked.items()}

    def _named(self, table: str, names: Collection[str]) -> dict[str, Any]:
        asked, found = self._ahead.get(table, (frozenset(), {}))
        missing = [name for name in names if name not in asked]
        ahead = {name: found[name] for name in names if name in found}
        return ahead | super()._named(table, missing) if missing else ahead

    def write(self, changes: Changes) -> None:
        with _pipeline(self._connection):
            written = [
                self._write(_INSERT_ENTRIES, [_entry_row(entry) for entry in changes.entries]),
                self._write(_INSERT_DATASETS, [_dataset_row(*opened) for opened in changes.datasets]),
                self._write(_INSERT_SCOPES, [_scope_row(*opened) for opened in changes.new_scopes]),
                self._write(_UPDATE_SCOPES, [_balances(scope) for scope in changes.scopes]),
                self._write(_INSERT_RESERVATIONS, [_reservation_row(made) for made in changes.new_reservations]),
                self._write(_UPDATE_RESERVATIONS, [_changed(changed) for changed in changes.reservations]),
            ]
            if changes.erased_claims:
                erase = f"DELETE FROM claims WHERE claim_id {_AMONG}"  # noqa: S608
                self._connection.execute(erase, (_lines(changes.erased_claims),))
            for claim in changes.claims:
                values = (claim.claim_id, claim.request_digest, claim.reservation_id, claim.answer, claim.expires_us)
                self._connection.execute(_PUT_CLAIM, values)
        for query, wanted, cursor in written:
            if cursor is not None and cursor.rowcount != wanted:
                text = f"{cursor.rowcount} rows instead of {wanted}: {query.partition(' SET ')[0][:40]}"
                raise LedgerDamaged(text)
        self.last = changes.entries[-1] if changes.entries else None
        for made in changes.new_reservations:
            self._known[made.reservation.reservation_id] = (made.reservation.scope_ids, made.claim_id)
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _write(self, query: str, rows: list[dict[str, object]]) -> tuple[str, int, psycopg.Cursor[Row] | None]:
        if not rows:
            return query, 0, None
        document = json.dumps(rows, allow_nan=False)
        return query, len(rows), self._connection.execute(query, (document,))


@contextmanager
def _pipeline(connection: psycopg.Connection[Row]) -> Iterator[None]:
    """What is executed inside is sent together. An error in it leaves as it is.

    psycopg logs a warning when a pipeline ends by an error and cannot be ended properly, as when the server went
    away. That says nothing which the error does not: so the pipeline is ended before the error goes on.
    """
    failure: BaseException | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except BaseException as error:  # noqa: BLE001  -- raised again below
                failure = error
    except psycopg.Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure


def _values(table: str, found: psycopg.Cursor[Row]) -> dict[str, Any]:
    value = _BY_NAME[table][1]
    return {row[0]: value(row) for row in found.fetchall()}


def _lines(names: Collection[str]) -> str:
    return "\n".join(names)


def _entry_row(entry: Entry) -> dict[str, object]:
    return {
        "seq": entry.seq,
        "time_us": entry.time_us,
        "kind": entry.kind,
        "payload": entry.payload,
        "previous": entry.previous,
        "hash": entry.hash,
    }


def _dataset_row(dataset: Dataset, opened_seq: int) -> dict[str, object]:
    return {
        "dataset_id": dataset.dataset_id,
        "renyi_order": repr(dataset.order),
        "guarantee": dataset.guarantee,
        "opened_seq": opened_seq,
    }


def _balances(scope: Statement) -> dict[str, object]:
    return {
        "scope_id": scope.scope_id,
        "granted": scope.granted,
        "spent": scope.spent,
        "reserved": scope.reserved,
        "open": scope.open,
        "settled": scope.settled,
        "released": scope.released,
        "forfeited": scope.forfeited,
        "unprotected": scope.unprotected,
    }


def _scope_row(scope: Statement, opened_seq: int) -> dict[str, object]:
    return {
        "kind": scope.kind,
        "parent": scope.parent,
        "dataset_id": scope.dataset_id,
        "epsilon": scope.epsilon,
        "delta": scope.delta,
        "overhead": scope.overhead,
        "opened_seq": opened_seq,
        **_balances(scope),
    }


def _changed(stored: StoredReservation) -> dict[str, object]:
    reservation = stored.reservation
    return {
        "reservation_id": reservation.reservation_id,
        "worst_case": reservation.worst_case,
        "state": reservation.state,
        "scored": int(reservation.scored),
        "charge": reservation.charge,
        "expires_us": reservation.expires_us,
        "closed_seq": stored.closed_seq,
    }


def _reservation_row(stored: StoredReservation) -> dict[str, object]:
    return {
        "scope_id": stored.reservation.scope_ids[0],
        "owner": stored.reservation.owner,
        "opened_seq": stored.opened_seq,
        "claim": stored.claim_id,
        **_changed(stored),
    }
