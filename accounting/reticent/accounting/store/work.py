"""One transaction's view of the rows: read once, changed in memory, handed over at its end.

Operations see each other's changes as if each had been written at once. An operation that raises is undone and leaves
nothing, so many callers' operations can share a transaction, and each is refused or done for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, TypeVar

from reticent.accounting.journal import Entry, JournalHead, next_entry
from reticent.accounting.ledger import Dataset, Reservation, ScopeKind, Statement
from reticent.accounting.ledger_errors import LedgerDamaged, UnknownScope
from reticent.accounting.store.rows import Changes, Claim, Rows, StoredReservation, Wanted

__all__ = ["Account", "UnitOfWork"]

V = TypeVar("V")


class Account:
    """A scope with balances that change while operations are applied. Amounts in 1e-9 nat, as in `Statement`."""

    __slots__ = ("_base", "forfeited", "granted", "open", "released", "reserved", "settled", "spent", "unprotected")

    def __init__(self, statement: Statement) -> None:
        self._base = statement
        self.granted = statement.granted
        self.spent = statement.spent
        self.reserved = statement.reserved
        self.open = statement.open
        self.settled = statement.settled
        self.released = statement.released
        self.forfeited = statement.forfeited
        self.unprotected = statement.unprotected

    @property
    def scope_id(self) -> str:
        return self._base.scope_id

    @property
    def kind(self) -> ScopeKind:
        return self._base.kind

    @property
    def remaining(self) -> int:
        return self.granted - self.spent - self.reserved

    def statement(self) -> Statement:
        base = self._base
        return Statement(
            scope_id=base.scope_id,
            kind=base.kind,
            parent=base.parent,
            dataset_id=base.dataset_id,
            epsilon=base.epsilon,
            delta=base.delta,
            overhead=base.overhead,
            granted=self.granted,
            spent=self.spent,
            reserved=self.reserved,
            open=self.open,
            settled=self.settled,
            released=self.released,
            forfeited=self.forfeited,
            unprotected=self.unprotected,
        )


class _Table(Generic[V]):
    """Rows that were looked up, and what became of them; None stands for a row that is not there."""

    __slots__ = ("_read", "_work", "now", "stored")

    def __init__(self, work: UnitOfWork, read: Callable[[Collection[str]], Mapping[str, V]]) -> None:
        self._work = work
        self._read = read
        self.stored: dict[str, V | None] = {}
        self.now: dict[str, V | None] = {}

    def load(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self.now]
        if unknown:
            found = self._work.read(self._read, unknown)
            for name in unknown:
                self.stored[name] = self.now[name] = found.get(name)

    def get(self, name: str) -> V | None:
        if name not in self.now:
            self.load((name,))
        return self.now[name]

    def know(self, name: str, value: V) -> V | None:
        """The row as it is now; `value` is how it is stored, for a name that was not looked up yet."""
        if name not in self.now:
            self.stored[name] = self.now[name] = value
        return self.now[name]

    def changed(self) -> list[tuple[V | None, V]]:
        """(before, after) of every row that is another than it was."""
        return [
            (self.stored[name], value)
            for name, value in self.now.items()
            if value is not None and value is not self.stored[name]
        ]


class UnitOfWork:
    """Rows as operations read and change them, in one write transaction of a store.

    Attributes:
        store_failed: whether a read of the store raised; the transaction is then worth nothing.
    """

    def __init__(self, rows: Rows, now_us: int) -> None:
        self.store_failed = False
        self._rows = rows
        self._now_us = now_us
        self._head = rows.head()
        self._entries: list[Entry] = []
        self._datasets = _Table(self, rows.datasets)
        self._accounts = _Table(self, self._read_accounts)
        self._reservations = _Table(self, rows.reservations)
        self._claims = _Table(self, rows.claims)
        self._changed_accounts: set[str] = set()
        self._dataset_seqs: dict[str, int] = {}
        self._scope_seqs: dict[str, int] = {}
        self._erased_claims: list[str] = []
        self._undo: list[Callable[[], object]] = []

    def read(self, read: Callable[..., V], *arguments: object) -> V:
        """What a read of the store returns; an error of it is remembered."""
        try:
            return read(*arguments)
        except BaseException:
            self.store_failed = True
            raise

    def _read_accounts(self, scope_ids: Collection[str]) -> dict[str, Account]:
        return {scope_id: Account(found) for scope_id, found in self._rows.scopes(scope_ids).items()}

    def prefetch(self, wanted: Wanted) -> None:
        """Read all of it, a table at a time, or at once where the store can."""
        self.read(self._rows.read_ahead, wanted)
        self._claims.load(wanted.claims)
        holders = (claim for name in wanted.claims if (claim := self._claims.get(name)) is not None)
        self._reservations.load([*wanted.reservations, *(claim.reservation_id for claim in holders)])
        scopes, claims = set(wanted.scopes), set()
        for name in wanted.reservations:
            found = self._reservations.get(name)
            if found is not None and found.closed_seq is None:
                scopes.update(found.reservation.scope_ids)
                if found.claim_id is not None and name in wanted.answered:
                    claims.add(found.claim_id)
        self._claims.load(claims)
        self._accounts.load(scopes)
        self._datasets.load(wanted.datasets)

    # One operation of several

    def begin(self) -> None:
        """From here on, `undo` takes back."""
        self._undo.clear()

    def undo(self) -> None:
        """Take back everything since `begin`."""
        while self._undo:
            self._undo.pop()()

    def _put(self, table: dict[str, V], name: str, value: V) -> None:
        if name in table:
            before = table[name]
            self._undo.append(lambda: table.__setitem__(name, before))
        else:
            self._undo.append(lambda: table.__delitem__(name))
        table[name] = value

    # Data sets and scopes

    def dataset(self, dataset_id: str) -> Dataset | None:
        return self._datasets.get(dataset_id)

    def insert_dataset(self, dataset: Dataset, entry: Entry) -> None:
        self._put(self._dataset_seqs, dataset.dataset_id, entry.seq)
        self._put(self._datasets.now, dataset.dataset_id, dataset)

    def accounts(self, scope_ids: tuple[str, ...]) -> list[Account]:
        """The scopes in the order given; `UnknownScope` for the first that is not there."""
        self._accounts.load(scope_ids)
        found = []
        for scope_id in scope_ids:
            account = self._accounts.now[scope_id]
            if account is None:
                raise UnknownScope(scope_id)
            found.append(account)
        return found

    def insert_scope(self, scope: Statement, entry: Entry) -> None:
        self._put(self._scope_seqs, scope.scope_id, entry.seq)
        self._put(self._accounts.now, scope.scope_id, Account(scope))

    def add(self, scope_ids: tuple[str, ...], **changes: int) -> None:
        """Add to the named balances of every scope."""
        for account in self.accounts(scope_ids):
            self._changed_accounts.add(account.scope_id)
            for name, amount in changes.items():
                setattr(account, name, getattr(account, name) + amount)
        self._undo.append(lambda: self._subtract(scope_ids, changes))

    def _subtract(self, scope_ids: tuple[str, ...], changes: dict[str, int]) -> None:
        for account in self.accounts(scope_ids):
            for name, amount in changes.items():
                setattr(account, name, getattr(account, name) - amount)

    # Reservations and claims

    def reservation(self, reservation_id: str) -> Reservation | None:
        found = self._reservations.get(reservation_id)
        return None if found is None else found.reservation

    def request(self, reservation_id: str) -> str:
        """Payload of the journal entry that made the reservation."""
        found = self._stored(reservation_id)
        first = self._head.seq - len(self._entries) + 1
        if found.opened_seq >= first:
            return self._entries[found.opened_seq - first].payload
        payloads = self.read(self._rows.payloads, (found.opened_seq,))
        if found.opened_seq not in payloads:
            raise LedgerDamaged(f"reservation {reservation_id!r} has no journal entry")
        return payloads[found.opened_seq]

    def _stored(self, reservation_id: str) -> StoredReservation:
        found = self._reservations.get(reservation_id)
        if found is None:
            raise LedgerDamaged(f"reservation {reservation_id!r} is not there")
        return found

    def insert_reservation(self, reservation: Reservation, claim_id: str | None, entry: Entry) -> None:
        row = StoredReservation(reservation, claim_id, entry.seq, None)
        self._put(self._reservations.now, reservation.reservation_id, row)

    def update_reservation(self, reservation: Reservation, closed_by: Entry | None) -> None:
        before = self._stored(reservation.reservation_id)
        closed_seq = None if closed_by is None else closed_by.seq
        row = StoredReservation(reservation, before.claim_id, before.opened_seq, closed_seq)
        self._put(self._reservations.now, reservation.reservation_id, row)

    def expired(self, until_us: int, limit: int) -> list[Reservation]:
        """Reservations to forfeit. Only for a transaction of its own: what others changed in it is not looked at."""
        late = []
        for found in self.read(self._rows.expired, until_us, limit):
            row = self._reservations.know(found.reservation.reservation_id, found)
            if row is not None and row.closed_seq is None:
                late.append(row.reservation)
        self._accounts.load({scope_id for reservation in late for scope_id in reservation.scope_ids})
        return late

    def claim(self, claim_id: str) -> Claim | None:
        return self._claims.get(claim_id)

    def claim_of(self, reservation_id: str) -> Claim | None:
        """The claim that the reservation holds."""
        claim_id = self._stored(reservation_id).claim_id
        claim = None if claim_id is None else self._claims.get(claim_id)
        return claim if claim is not None and claim.reservation_id == reservation_id else None

    def put_claim(self, claim: Claim) -> None:
        self._put(self._claims.now, claim.claim_id, claim)

    def erase_expired_claims(self, until_us: int, limit: int) -> int:
        """Erase them, and say how many there were. For a transaction of its own, like `expired`."""
        erased = self.read(self._rows.expired_claims, until_us, limit)
        before = len(self._erased_claims)
        self._erased_claims.extend(erased)
        self._undo.append(lambda: self._erased_claims.__delitem__(slice(before, None)))
        return len(erased)

    # Journal

    def head(self) -> JournalHead:
        return self._head

    def append(self, kind: str, payload: str) -> Entry:
        """Add an entry; `payload` is canonical."""
        before = self._head
        entry = next_entry(before, self._now_us, kind, payload)
        self._entries.append(entry)
        self._head = JournalHead(entry.seq, entry.hash)
        self._undo.append(lambda: self._take_back(before))
        return entry

    def _take_back(self, head: JournalHead) -> None:
        self._entries.pop()
        self._head = head

    # The end

    def changes(self) -> Changes | None:
        """What is to be written; None if nothing is."""
        if not self._entries and not self._erased_claims:
            return None
        changes = Changes(entries=self._entries, erased_claims=self._erased_claims)
        changes.datasets = [(after, self._dataset_seqs[after.dataset_id]) for _, after in self._datasets.changed()]
        new = sorted(self._scope_seqs.items(), key=lambda item: item[1])  # a parent's entry comes before its child's
        changes.new_scopes = [(self.accounts((scope_id,))[0].statement(), seq) for scope_id, seq in new]
        old = sorted(self._changed_accounts - self._scope_seqs.keys())
        changes.scopes = [account.statement() for account in self.accounts(tuple(old))]
        for before, after in self._reservations.changed():
            (changes.new_reservations if before is None else changes.reservations).append(after)
        changes.claims = [after for _, after in self._claims.changed()]
        return changes
