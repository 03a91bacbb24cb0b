"""What a ledger does, as values that one writer applies.

An operation is checked when it is made and decided when it is applied, inside a write transaction that the store
has opened: it reads rows, refuses or goes on, appends one journal entry and changes the balances that repeat it.
An operation that raises has its own writes undone and no others. So a store may apply one operation a transaction,
as it does now, or many, each in a savepoint, and make them durable together (group commit) without a change here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from reticent.accounting.journal import Entry, JournalHead
from reticent.accounting.ledger import (
    MAX_AMOUNT,
    Dataset,
    Guarantee,
    Opened,
    Reservation,
    ReservationState,
    Statement,
)
from reticent.accounting.ledger_errors import (
    AlreadyForfeited,
    AlreadyReleased,
    AlreadySettled,
    BudgetExhausted,
    DatasetConflict,
    InvalidAmount,
    ReleaseRefused,
    ReservationClosed,
    ReservationConflict,
    SettlementExceedsReservation,
    UnknownDataset,
    UnknownReservation,
    UnknownScope,
)
from reticent.accounting.scope_ids import scope_chain, scope_kind

__all__ = [
    "ExtendLease",
    "Forfeit",
    "ForfeitExpired",
    "Grant",
    "MarkScored",
    "OpenDataset",
    "OpenScope",
    "Operation",
    "Raise",
    "Release",
    "Reserve",
    "Settle",
    "Tables",
]

Facts = dict[str, str | int | float]
T_co = TypeVar("T_co", covariant=True)


class Tables(Protocol):
    """A store's rows, within one write transaction. ``chain`` must hold its rows against other writers."""

    def dataset(self, dataset_id: str) -> Dataset | None: ...
    def insert_dataset(self, dataset: Dataset, entry: Entry) -> None: ...
    def chain(self, scope_ids: tuple[str, ...]) -> tuple[Statement, ...]:
        """The scopes in the order given; ``UnknownScope`` for the first that is not there."""

    def insert_scope(self, scope: Statement, entry: Entry) -> None: ...
    def add(self, scope_ids: tuple[str, ...], changes: Mapping[str, int]) -> None:
        """Add to the named columns of every scope."""

    def reservation(self, reservation_id: str) -> Reservation | None: ...
    def request(self, reservation_id: str) -> str:
        """Payload of the journal entry that made the reservation."""

    def insert_reservation(self, reservation: Reservation, entry: Entry) -> None: ...
    def update_reservation(self, reservation: Reservation, closed_by: Entry | None) -> None: ...
    def expired(self, now_us: int, limit: int) -> tuple[Reservation, ...]: ...
    def head(self) -> JournalHead: ...
    def append(self, kind: str, payload: Mapping[str, object]) -> Entry: ...


class Operation(Protocol[T_co]):
    """A change to the ledger; ``now_us`` is the writer's clock when it is applied."""

    def apply(self, tables: Tables, now_us: int) -> T_co: ...


_CLOSED: dict[ReservationState, type[ReservationClosed]] = {
    "settled": AlreadySettled,
    "released": AlreadyReleased,
    "forfeited": AlreadyForfeited,
}


def _still_open(tables: Tables, reservation_id: str) -> Reservation:
    found = tables.reservation(reservation_id)
    if found is None:
        raise UnknownReservation(reservation_id)
    return _refuse_closed(found)


def _refuse_closed(found: Reservation) -> Reservation:
    if found.charge is not None:
        raise _CLOSED[found.state](found.reservation_id, found.charge)
    return found


def _refuse_overdraft(chain: tuple[Statement, ...], requested: int) -> None:
    for scope in chain:
        if scope.remaining < requested:
            raise BudgetExhausted(scope.scope_id, scope.kind, scope.remaining, requested)


def _close(tables: Tables, held: Reservation, state: ReservationState, charge: int, entry: Entry) -> Reservation:
    closed = replace(held, state=state, charge=charge)
    tables.update_reservation(closed, entry)
    tables.add(held.scope_ids, {"reserved": -held.worst_case, "spent": charge, "open": -1, state: 1})
    return closed


@dataclass(frozen=True, slots=True)
class OpenDataset:
    dataset_id: str
    order: float
    guarantee: Guarantee
    actor: str

    def apply(self, tables: Tables, now_us: int) -> Opened[Dataset]:
        wanted = Dataset(self.dataset_id, self.order, self.guarantee)
        found = tables.dataset(self.dataset_id)
        if found is None:
            payload = {
                "dataset": self.dataset_id,
                "order": repr(self.order),
                "guarantee": self.guarantee,
                "actor": self.actor,
            }
            tables.insert_dataset(wanted, tables.append("dataset_opened", payload))
            return Opened(wanted, existed=False)
        if found.order != self.order:
            raise DatasetConflict(self.dataset_id, "order", repr(found.order), repr(self.order))
        if found.guarantee != self.guarantee:
            raise DatasetConflict(self.dataset_id, "guarantee", found.guarantee, self.guarantee)
        return Opened(found, existed=True)


@dataclass(frozen=True, slots=True)
class OpenScope:
    scope_id: str
    epsilon: float
    delta: float
    overhead: int
    granted: int
    actor: str

    def apply(self, tables: Tables, now_us: int) -> Opened[Statement]:
        parents = scope_chain(self.scope_id)[1:]
        dataset_id = scope_chain(self.scope_id)[-1].partition(":")[2]
        try:
            return Opened(tables.chain((self.scope_id,))[0], existed=True)
        except UnknownScope:
            tables.chain(parents)  # raises for the parent that is missing
        if tables.dataset(dataset_id) is None:
            raise UnknownDataset(dataset_id)
        figures = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "overhead": self.overhead,
            "granted": self.granted,
        }
        entry = tables.append("scope_opened", {"scope": self.scope_id, "actor": self.actor, **figures})
        scope = Statement(
            scope_id=self.scope_id,
            kind=scope_kind(self.scope_id),
            parent=parents[0] if parents else None,
            dataset_id=dataset_id,
            epsilon=self.epsilon,
            delta=self.delta,
            overhead=self.overhead,
            granted=self.granted,
            spent=0,
            reserved=0,
            open=0,
            settled=0,
            released=0,
            forfeited=0,
        )
        tables.insert_scope(scope, entry)
        return Opened(scope, existed=False)


@dataclass(frozen=True, slots=True)
class Grant:
    scope_id: str
    amount: int
    reason: str
    actor: str

    def apply(self, tables: Tables, now_us: int) -> Statement:
        (scope,) = tables.chain((self.scope_id,))
        if scope.guaranteed + self.amount > MAX_AMOUNT:
            raise InvalidAmount("amount", "with what was granted before, at most 2^62")
        payload = {"scope": self.scope_id, "amount": self.amount, "reason": self.reason, "actor": self.actor}
        tables.append("granted", payload)
        tables.add((self.scope_id,), {"granted": self.amount})
        return replace(scope, granted=scope.granted + self.amount)


@dataclass(frozen=True, slots=True)
class Reserve:
    reservation_id: str
    scope_ids: tuple[str, ...]
    worst_case: int
    lease_us: int
    owner: str
    details: Facts
    scored: bool

    def apply(self, tables: Tables, now_us: int) -> Reservation:
        payload: dict[str, object] = {
            "reservation": self.reservation_id,
            "scopes": list(self.scope_ids),
            "worst_case": self.worst_case,
            "lease_us": self.lease_us,
            "owner": self.owner,
            "scored": self.scored,
            "details": self.details,
        }
        found = tables.reservation(self.reservation_id)
        if found is not None:
            before = json.loads(tables.request(self.reservation_id))
            differing = tuple(sorted(key for key in payload if before[key] != payload[key]))
            if differing:
                raise ReservationConflict(self.reservation_id, differing)
            return _refuse_closed(found)
        _refuse_overdraft(tables.chain(self.scope_ids), self.worst_case)
        entry = tables.append("reserved", payload)
        made = Reservation(
            reservation_id=self.reservation_id,
            scope_ids=self.scope_ids,
            worst_case=self.worst_case,
            state="open",
            scored=self.scored,
            charge=None,
            owner=self.owner,
            reserved_us=entry.time_us,
            expires_us=entry.time_us + self.lease_us,
        )
        tables.insert_reservation(made, entry)
        tables.add(self.scope_ids, {"reserved": self.worst_case, "open": 1})
        return made


@dataclass(frozen=True, slots=True)
class Raise:
    reservation_id: str
    worst_case: int

    def apply(self, tables: Tables, now_us: int) -> Reservation:
        held = _still_open(tables, self.reservation_id)
        more = self.worst_case - held.worst_case
        if more < 0:
            raise InvalidAmount("worst_case", f"at least the {held.worst_case} that are held")
        if more == 0 and held.scored:
            return held
        _refuse_overdraft(tables.chain(held.scope_ids), more)
        tables.append("raised", {"reservation": self.reservation_id, "worst_case": self.worst_case})
        raised = replace(held, worst_case=self.worst_case, scored=True)
        tables.update_reservation(raised, None)
        tables.add(held.scope_ids, {"reserved": more})
        return raised


@dataclass(frozen=True, slots=True)
class MarkScored:
    reservation_id: str

    def apply(self, tables: Tables, now_us: int) -> Reservation:
        held = _still_open(tables, self.reservation_id)
        if held.scored:
            return held
        tables.append("scored", {"reservation": self.reservation_id})
        scored = replace(held, scored=True)
        tables.update_reservation(scored, None)
        return scored


@dataclass(frozen=True, slots=True)
class ExtendLease:
    reservation_id: str
    lease_us: int

    def apply(self, tables: Tables, now_us: int) -> Reservation:
        held = _still_open(tables, self.reservation_id)
        expires_us = now_us + self.lease_us
        if expires_us <= held.expires_us:
            return held
        tables.append("lease_extended", {"reservation": self.reservation_id, "expires_us": expires_us})
        extended = replace(held, expires_us=expires_us)
        tables.update_reservation(extended, None)
        return extended


@dataclass(frozen=True, slots=True)
class Settle:
    reservation_id: str
    charge: int
    details: Facts

    def apply(self, tables: Tables, now_us: int) -> Reservation:
        held = _still_open(tables, self.reservation_id)
        if self.charge > held.worst_case:
            raise SettlementExceedsReservation(self.reservation_id, self.charge, held.worst_case)
        payload = {"reservation": self.reservation_id, "charge": self.charge, "details": self.details}
        return _close(tables, held, "settled", self.charge, tables.append("settled", payload))


@dataclass(frozen=True, slots=True)
class Release:
    reservation_id: str
    owner: str
    reason: str

    def apply(self, tables: Tables, now_us: int) -> Reservation:
        held = _still_open(tables, self.reservation_id)
        if held.scored:
            raise ReleaseRefused(self.reservation_id, "scored")
        if held.owner != self.owner:
            raise ReleaseRefused(self.reservation_id, "owner")
        payload = {"reservation": self.reservation_id, "reason": self.reason}
        return _close(tables, held, "released", 0, tables.append("released", payload))


@dataclass(frozen=True, slots=True)
class Forfeit:
    reservation_id: str
    reason: str

    def apply(self, tables: Tables, now_us: int) -> Reservation:
        held = _still_open(tables, self.reservation_id)
        payload = {"reservation": self.reservation_id, "charge": held.worst_case, "reason": self.reason}
        return _close(tables, held, "forfeited", held.worst_case, tables.append("forfeited", payload))


@dataclass(frozen=True, slots=True)
class ForfeitExpired:
    """Forfeits at most ``limit``, so that no transaction holds up requests for long."""

    expired_us: int
    limit: int

    def apply(self, tables: Tables, now_us: int) -> tuple[Reservation, ...]:
        late = tables.expired(self.expired_us, self.limit)
        return tuple(Forfeit(held.reservation_id, "lease expired").apply(tables, now_us) for held in late)
