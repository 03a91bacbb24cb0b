"""What a ledger does, as values that one writer applies.

An operation is checked when it is made and decided when it is applied, inside a write transaction that the store
has opened: it reads rows, refuses or goes on, appends one journal entry and changes the balances that repeat it.
An operation that raises has its own changes undone and no others, so a transaction may carry many, of many callers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeVar

from reticent.accounting.journal import FORMAT, Entry, canonical
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
    AnswerRecorded,
    BudgetExhausted,
    DatasetConflict,
    InvalidAmount,
    InvalidArgument,
    ReleaseRefused,
    ReservationClosed,
    ReservationConflict,
    SettlementExceedsReservation,
    UnknownDataset,
    UnknownReservation,
    UnknownScope,
)
from reticent.accounting.scope_ids import scope_chain, scope_kind
from reticent.accounting.store.claims import WantedClaim, recall
from reticent.accounting.store.rows import Claim, Wanted
from reticent.accounting.store.work import Account, UnitOfWork

__all__ = [
    "Alone",
    "BeginJournal",
    "ExtendLease",
    "Forfeit",
    "Grant",
    "MarkScored",
    "OpenDataset",
    "OpenScope",
    "Operation",
    "Raise",
    "Recall",
    "Release",
    "Reserve",
    "Settle",
]

Facts = dict[str, str | int | float]
T_co = TypeVar("T_co", covariant=True)


class Operation(Protocol[T_co]):
    """A change to the ledger."""

    alone: ClassVar[bool]
    """Whether it wants a transaction to itself."""

    @property
    def content(self) -> int:
        """Bytes of recorded answers that it writes."""

    def foresee(self, wanted: Wanted) -> None:
        """Name the rows that it is going to read. Only for speed: what is not named is read when it is wanted."""

    def apply(self, work: UnitOfWork, now_us: int) -> T_co:
        """Do it; ``now_us`` is the writer's clock. A ``LedgerError`` refuses it."""


_CLOSED: dict[ReservationState, type[ReservationClosed]] = {
    "settled": AlreadySettled,
    "released": AlreadyReleased,
    "forfeited": AlreadyForfeited,
}


def _still_open(work: UnitOfWork, reservation_id: str) -> Reservation:
    found = work.reservation(reservation_id)
    if found is None:
        raise UnknownReservation(reservation_id)
    return _refuse_closed(found)


def _refuse_closed(found: Reservation) -> Reservation:
    if found.charge is not None:
        raise _CLOSED[found.state](found.reservation_id, found.charge)
    return found


def _refuse_overdraft(chain: list[Account], requested: int) -> None:
    for scope in chain:
        if scope.remaining < requested:
            raise BudgetExhausted(scope.scope_id, scope.kind, scope.remaining, requested)


def _close(
    work: UnitOfWork, held: Reservation, state: ReservationState, charge: int, entry: Entry, *, unprotected: int = 0
) -> Reservation:
    closed = replace(held, state=state, charge=charge)
    work.update_reservation(closed, entry)
    changes = {"reserved": -held.worst_case, "spent": charge, "open": -1, state: 1, "unprotected": unprotected}
    work.add(held.scope_ids, **changes)
    return closed


class Alone:
    """An operation that has a transaction to itself, where there is nothing to foresee."""

    __slots__ = ()
    alone: ClassVar[bool] = True
    content: ClassVar[int] = 0

    def foresee(self, wanted: Wanted) -> None:
        pass


class _Together:
    """An operation that shares its transaction with others, and records no answer."""

    __slots__ = ()
    alone: ClassVar[bool] = False
    content: ClassVar[int] = 0


class _OfReservation(_Together):
    """An operation on one reservation and its scopes."""

    __slots__ = ()
    reservation_id: str

    def foresee(self, wanted: Wanted) -> None:
        wanted.reservations.add(self.reservation_id)


@dataclass(frozen=True, slots=True)
class BeginJournal(Alone):
    """Entry 1, which gives the journal a name of its own: two ledgers never share a chain."""

    ledger_id: str

    def apply(self, work: UnitOfWork, now_us: int) -> None:
        if work.head().seq == 0:
            work.append("ledger_created", canonical({"ledger": self.ledger_id, "format": FORMAT}))


@dataclass(frozen=True, slots=True)
class OpenDataset(_Together):
    dataset_id: str
    order: float
    guarantee: Guarantee
    actor: str

    def foresee(self, wanted: Wanted) -> None:
        wanted.datasets.add(self.dataset_id)

    def apply(self, work: UnitOfWork, now_us: int) -> Opened[Dataset]:
        wanted = Dataset(self.dataset_id, self.order, self.guarantee)
        found = work.dataset(self.dataset_id)
        if found is None:
            payload = {
                "dataset": self.dataset_id,
                "order": repr(self.order),
                "guarantee": self.guarantee,
                "actor": self.actor,
            }
            work.insert_dataset(wanted, work.append("dataset_opened", canonical(payload)))
            return Opened(wanted, existed=False)
        if found.order != self.order:
            raise DatasetConflict(self.dataset_id, "order", repr(found.order), repr(self.order))
        if found.guarantee != self.guarantee:
            raise DatasetConflict(self.dataset_id, "guarantee", found.guarantee, self.guarantee)
        return Opened(found, existed=True)


@dataclass(frozen=True, slots=True)
class OpenScope(_Together):
    scope_id: str
    epsilon: float
    delta: float
    overhead: int
    granted: int
    actor: str

    def foresee(self, wanted: Wanted) -> None:
        chain = scope_chain(self.scope_id)
        wanted.scopes.update(chain)
        wanted.datasets.add(chain[-1].partition(":")[2])

    def apply(self, work: UnitOfWork, now_us: int) -> Opened[Statement]:
        parents = scope_chain(self.scope_id)[1:]
        dataset_id = scope_chain(self.scope_id)[-1].partition(":")[2]
        try:
            return Opened(work.accounts((self.scope_id,))[0].statement(), existed=True)
        except UnknownScope:
            work.accounts(parents)  # raises for the parent that is missing
        if work.dataset(dataset_id) is None:
            raise UnknownDataset(dataset_id)
        figures = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "overhead": self.overhead,
            "granted": self.granted,
        }
        entry = work.append("scope_opened", canonical({"scope": self.scope_id, "actor": self.actor, **figures}))
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
            unprotected=0,
        )
        work.insert_scope(scope, entry)
        return Opened(scope, existed=False)


@dataclass(frozen=True, slots=True)
class Grant(_Together):
    scope_id: str
    amount: int
    reason: str
    actor: str

    def foresee(self, wanted: Wanted) -> None:
        wanted.scopes.add(self.scope_id)

    def apply(self, work: UnitOfWork, now_us: int) -> Statement:
        (account,) = work.accounts((self.scope_id,))
        if account.statement().guaranteed + self.amount > MAX_AMOUNT:
            raise InvalidAmount("amount", "with what was granted before, at most 2^62")
        payload = {"scope": self.scope_id, "amount": self.amount, "reason": self.reason, "actor": self.actor}
        work.append("granted", canonical(payload))
        work.add((self.scope_id,), granted=self.amount)
        return account.statement()


@dataclass(frozen=True, slots=True)
class Reserve(_Together):
    reservation_id: str
    scope_ids: tuple[str, ...]
    worst_case: int
    lease_us: int
    owner: str
    details: Facts
    scored: bool
    claim: WantedClaim | None
    payload: str = field(init=False)  # made by the caller's thread, not by the one that writes for all

    def __post_init__(self) -> None:
        payload: dict[str, object] = {
            "reservation": self.reservation_id,
            "scopes": list(self.scope_ids),
            "worst_case": self.worst_case,
            "lease_us": self.lease_us,
            "owner": self.owner,
            "scored": self.scored,
            "details": self.details,
        }
        if self.claim is not None:
            payload["claim"] = self.claim.claim_id
        object.__setattr__(self, "payload", canonical(payload))

    def foresee(self, wanted: Wanted) -> None:
        wanted.reservations.add(self.reservation_id)
        wanted.scopes.update(self.scope_ids)
        if self.claim is not None:
            wanted.claims.add(self.claim.claim_id)

    def apply(self, work: UnitOfWork, now_us: int) -> Reservation:
        if self.claim is not None:
            self._refuse_claimed(work, self.claim, now_us)
        found = work.reservation(self.reservation_id)
        if found is not None:
            return self._again(found, work.request(self.reservation_id))
        _refuse_overdraft(work.accounts(self.scope_ids), self.worst_case)
        entry = work.append("reserved", self.payload)
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
        claim = self.claim
        work.insert_reservation(made, None if claim is None else claim.claim_id, entry)
        work.add(self.scope_ids, reserved=self.worst_case, open=1)
        if claim is not None:
            expires_us = now_us + claim.keep_us
            work.put_claim(Claim(claim.claim_id, claim.request_digest, self.reservation_id, None, expires_us))
        return made

    def _again(self, found: Reservation, request: str) -> Reservation:
        if request != self.payload:
            before, now = json.loads(request), json.loads(self.payload)
            # By their text: 1 and 1.0 are not the same fact.
            differing = (key for key in before.keys() | now.keys() if repr(before.get(key)) != repr(now.get(key)))
            raise ReservationConflict(self.reservation_id, tuple(sorted(differing)))
        return _refuse_closed(found)

    def _refuse_claimed(self, work: UnitOfWork, wanted: WantedClaim, now_us: int) -> None:
        claim = work.claim(wanted.claim_id)
        if claim is None:
            return
        held = work.reservation(claim.reservation_id)
        mine = claim.reservation_id == self.reservation_id and claim.request_digest == wanted.request_digest
        if mine and held is not None and held.state == "open":
            return  # the same call again, after an outcome that its caller does not know
        answer = recall(claim, held, wanted.request_digest, now_us)
        if answer is not None:
            raise AnswerRecorded(claim.reservation_id, answer)


@dataclass(frozen=True, slots=True)
class Recall(_Together):
    """Looks a claim's answer up in a write transaction, though it writes nothing.

    A snapshot may show a settlement whose own commit is not known to have reached the standbys. This one's commit
    waits for them, as that of any refusal does.
    """

    claim_id: str
    request_digest: str

    def foresee(self, wanted: Wanted) -> None:
        wanted.claims.add(self.claim_id)

    def apply(self, work: UnitOfWork, now_us: int) -> bytes | None:
        claim = work.claim(self.claim_id)
        if claim is None:
            return None
        return recall(claim, work.reservation(claim.reservation_id), self.request_digest, now_us)


@dataclass(frozen=True, slots=True)
class Raise(_OfReservation):
    reservation_id: str
    worst_case: int

    def apply(self, work: UnitOfWork, now_us: int) -> Reservation:
        held = _still_open(work, self.reservation_id)
        more = self.worst_case - held.worst_case
        if more < 0:
            raise InvalidAmount("worst_case", f"at least the {held.worst_case} that are held")
        if more == 0 and held.scored:
            return held
        _refuse_overdraft(work.accounts(held.scope_ids), more)
        work.append("raised", canonical({"reservation": self.reservation_id, "worst_case": self.worst_case}))
        raised = replace(held, worst_case=self.worst_case, scored=True)
        work.update_reservation(raised, None)
        work.add(held.scope_ids, reserved=more)
        return raised


@dataclass(frozen=True, slots=True)
class MarkScored(_OfReservation):
    reservation_id: str

    def apply(self, work: UnitOfWork, now_us: int) -> Reservation:
        held = _still_open(work, self.reservation_id)
        if held.scored:
            return held
        work.append("scored", canonical({"reservation": self.reservation_id}))
        scored = replace(held, scored=True)
        work.update_reservation(scored, None)
        return scored


@dataclass(frozen=True, slots=True)
class ExtendLease(_OfReservation):
    reservation_id: str
    lease_us: int

    def apply(self, work: UnitOfWork, now_us: int) -> Reservation:
        held = _still_open(work, self.reservation_id)
        expires_us = now_us + self.lease_us
        if expires_us <= held.expires_us:
            return held
        work.append("lease_extended", canonical({"reservation": self.reservation_id, "expires_us": expires_us}))
        extended = replace(held, expires_us=expires_us)
        work.update_reservation(extended, None)
        return extended


@dataclass(frozen=True, slots=True)
class Settle:
    alone: ClassVar[bool] = False
    reservation_id: str
    charge: int
    details: Facts
    unprotected: bool
    answer: bytes | None
    payload: str = field(init=False)

    def __post_init__(self) -> None:
        payload: dict[str, object] = {
            "reservation": self.reservation_id,
            "charge": self.charge,
            "details": self.details,
        }
        if self.unprotected:
            payload["unprotected"] = True
        object.__setattr__(self, "payload", canonical(payload))

    @property
    def content(self) -> int:
        return 0 if self.answer is None else len(self.answer)

    def foresee(self, wanted: Wanted) -> None:
        wanted.reservations.add(self.reservation_id)
        if self.answer is not None:
            wanted.answered.add(self.reservation_id)

    def apply(self, work: UnitOfWork, now_us: int) -> Reservation:
        held = _still_open(work, self.reservation_id)
        if self.charge > held.worst_case:
            raise SettlementExceedsReservation(self.reservation_id, self.charge, held.worst_case)
        if self.answer is not None:
            claim = work.claim_of(self.reservation_id)
            if claim is None:
                raise InvalidArgument("answer", "only for a reservation that was made for a claim")
            work.put_claim(replace(claim, answer=self.answer))
        entry = work.append("settled", self.payload)
        return _close(work, held, "settled", self.charge, entry, unprotected=int(self.unprotected))


@dataclass(frozen=True, slots=True)
class Release(_OfReservation):
    reservation_id: str
    owner: str
    reason: str

    def apply(self, work: UnitOfWork, now_us: int) -> Reservation:
        held = _still_open(work, self.reservation_id)
        if held.scored:
            raise ReleaseRefused(self.reservation_id, "scored")
        if held.owner != self.owner:
            raise ReleaseRefused(self.reservation_id, "owner")
        payload = {"reservation": self.reservation_id, "reason": self.reason}
        return _close(work, held, "released", 0, work.append("released", canonical(payload)))


@dataclass(frozen=True, slots=True)
class Forfeit(_OfReservation):
    reservation_id: str
    reason: str

    def apply(self, work: UnitOfWork, now_us: int) -> Reservation:
        held = _still_open(work, self.reservation_id)
        payload = {"reservation": self.reservation_id, "charge": held.worst_case, "reason": self.reason}
        return _close(work, held, "forfeited", held.worst_case, work.append("forfeited", canonical(payload)))
