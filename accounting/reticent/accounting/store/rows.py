"""What a store must offer: bulk reads and one write, inside one transaction that nobody else can write beside.

The logic of the ledger is in `operations`, and runs on a `work.UnitOfWork`, which reads rows when they are first
wanted (many at a time where they can be foreseen), keeps them and what operations change of them in memory, and
hands everything over once, at the end of the transaction. So a transaction may carry one operation or hundreds for
the same few statements, and no store repeats any rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from reticent.accounting.journal import Entry, JournalHead
from reticent.accounting.ledger import Dataset, Reservation, Statement
from reticent.accounting.scope_ids import scope_chain

__all__ = ["Changes", "Claim", "Reads", "Rows", "StoredReservation", "Wanted", "stored_reservation"]


@dataclass(frozen=True, slots=True)
class StoredReservation:
    """A reservation with what the ledger keeps beside it.

    Attributes:
        reservation: the value; its `scope_ids` are `scope_chain` of the leaf, its `reserved_us` is the opening
            entry's time.
        claim_id: the claim it was made for, None if for none. Repeats the journal's `claim`.
        opened_seq: number of the entry that made it.
        closed_seq: number of the entry that closed it, None while open.
    """

    reservation: Reservation
    claim_id: str | None
    opened_seq: int
    closed_seq: int | None


def stored_reservation(row: tuple[Any, ...]) -> StoredReservation:
    """What a row says: reservation_id, scope_id, worst_case, state, scored, charge, owner, time of the opening entry,
    expires_us, claim, opened_seq, closed_seq."""
    reservation = Reservation(
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
    return StoredReservation(reservation, claim_id=row[9], opened_seq=row[10], closed_seq=row[11])


@dataclass(frozen=True, slots=True)
class Claim:
    """An idempotency key in use.

    Attributes:
        claim_id: SHA-256 of the key, hexadecimal; the key itself is nowhere kept.
        request_digest: SHA-256 of the request's body, hexadecimal.
        reservation_id: the reservation under which it is, or was, answered; its `claim_id` is this one.
        answer: the recorded answer; None until it is settled, and after a settlement that recorded none.
        expires_us: from then on the claim may be erased if its reservation is closed, UTC microseconds.
    """

    claim_id: str
    request_digest: str
    reservation_id: str
    answer: bytes | None
    expires_us: int


@dataclass(slots=True)
class Changes:
    """What a transaction leaves behind: whole rows, each at most once, as they are at its end.

    Write them in the order of the fields and every reference finds what it refers to.

    Attributes:
        entries: new journal entries, following the head that `Rows.head` gave, in order.
        datasets: new data sets, with the number of the entry that opened each.
        new_scopes: scopes that were not there, parents first, with the number of their entry.
        scopes: scopes that were there and changed: only `granted`, `spent`, `reserved` and the counts can have.
        new_reservations: reservations that were not there (they may be closed already).
        reservations: reservations that were there and changed: `worst_case`, `state`, `scored`, `charge`,
            `expires_us`, `closed_seq`.
        erased_claims: ids of claims to delete, with their answers.
        claims: claims to insert, or to put in the place of the one with that id.
    """

    entries: list[Entry] = field(default_factory=list)
    datasets: list[tuple[Dataset, int]] = field(default_factory=list)
    new_scopes: list[tuple[Statement, int]] = field(default_factory=list)
    scopes: list[Statement] = field(default_factory=list)
    new_reservations: list[StoredReservation] = field(default_factory=list)
    reservations: list[StoredReservation] = field(default_factory=list)
    erased_claims: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)


@dataclass(slots=True)
class Wanted:
    """Names of rows that operations are going to read, so that they can be read together.

    The claims' own reservations, the reservations' scopes, and the claims of `answered` reservations follow.
    """

    datasets: set[str] = field(default_factory=set)
    scopes: set[str] = field(default_factory=set)
    reservations: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    claims: set[str] = field(default_factory=set)


class Reads(Protocol):
    """One committed state of the store. Names that are not there are missing from a result, in any number of names.

    Errors of the database pass through.
    """

    def head(self) -> JournalHead:
        """The last entry, (0, GENESIS) for an empty journal."""

    def datasets(self, dataset_ids: Collection[str]) -> Mapping[str, Dataset]: ...

    def scopes(self, scope_ids: Collection[str]) -> Mapping[str, Statement]: ...

    def all_scopes(self) -> tuple[Statement, ...]:
        """In the order in which they were opened."""

    def reservations(self, reservation_ids: Collection[str]) -> Mapping[str, StoredReservation]: ...

    def expired(self, until_us: int, limit: int) -> tuple[StoredReservation, ...]:
        """At most `limit` open reservations whose `expires_us` is `until_us` or before, by it and `opened_seq`."""

    def payloads(self, seqs: Collection[int]) -> Mapping[int, str]:
        """Payloads of journal entries, by number."""

    def claims(self, claim_ids: Collection[str]) -> Mapping[str, Claim]: ...

    def expired_claims(self, until_us: int, limit: int) -> tuple[str, ...]:
        """At most `limit` ids of claims with `expires_us` at `until_us` or before *whose reservation is not open*,
        the oldest first."""


class Rows(Reads, Protocol):
    """A store's rows within one write transaction, which holds the journal's head against every other writer.

    `head` is called first, before any other read: from then on no other writer may append, and all reads see what was
    committed before, by whomever. They never see the transaction's own changes: those are only in `Changes`,
    written once, just before the commit.
    """

    def read_ahead(self, wanted: Wanted) -> None:
        """Read what is going to be asked for, if the store can do that faster together. Only for speed."""

    def write(self, changes: Changes) -> None:
        """Append and change all of it. Balances are bounded again by the table's own CHECK, as a backstop."""
