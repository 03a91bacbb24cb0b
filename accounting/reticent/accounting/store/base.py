"""What is the same for every store: arguments are checked and turned into operations, and operations committed.

A store says how a write transaction and a snapshot are had; all rules are in `operations`.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from reticent.accounting.audit import Report
from reticent.accounting.journal import JournalHead
from reticent.accounting.ledger import (
    MAX_ANSWER,
    ClaimRequest,
    Dataset,
    Details,
    Guarantee,
    Opened,
    Reservation,
    Statement,
)
from reticent.accounting.ledger_errors import (
    InvalidArgument,
    LedgerUnavailable,
    UnknownDataset,
    UnknownReservation,
    UnknownScope,
)
from reticent.accounting.scope_ids import check_name, scope_chain
from reticent.accounting.store import checks
from reticent.accounting.store.claims import checked_claim, checked_digest, claim_id_of, recall
from reticent.accounting.store.commit import GroupCommitter, Outcome, apply_all
from reticent.accounting.store.operations import (
    BeginJournal,
    ExtendLease,
    Forfeit,
    Grant,
    MarkScored,
    OpenDataset,
    OpenScope,
    Operation,
    Raise,
    Recall,
    Release,
    Reserve,
    Settle,
)
from reticent.accounting.store.rows import Reads, Rows
from reticent.accounting.store.upkeep import EraseExpiredClaims, ForfeitExpired

__all__ = ["OperationLedger", "wall_clock_us"]

_SWEPT_TOGETHER: Final = 256
_ALL: Final = 2**31 - 1
_MAX_EPSILON: Final = 4e9  # nat: in 1e-9 nat it stays below 2^62

T = TypeVar("T")


def wall_clock_us() -> int:
    """UTC microseconds since 1970."""
    return time.time_ns() // 1000


class OperationLedger(ABC):
    """``ledger.Ledger``, whose docstrings hold, but for what depends on the database.

    Args:
        clock_us: the clock, in UTC microseconds since 1970.
    """

    def __init__(self, clock_us: Callable[[], int] = wall_clock_us) -> None:
        self._now_us = clock_us
        self._committer = GroupCommitter(self._run_batch)
        self._pid = os.getpid()
        self._closed = False

    # What a store provides

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Rows]:
        """A write transaction: committed durably when left, rolled back when left by an exception.

        Never entered by two threads at once. Errors of the database leave it as ``LedgerUnavailable``.
        """

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Reads]:
        """One committed state, for reading; from any thread, several at once. Errors as above."""

    @abstractmethod
    def verify(self, anchor: JournalHead | None = None) -> Report: ...

    @abstractmethod
    def close(self) -> None:
        """Sets ``_closed``."""

    def _refuse_unusable(self) -> None:
        """``LedgerUnavailable`` if the ledger was closed, or carried over a fork."""
        if self._closed:
            raise LedgerUnavailable("the ledger is closed", "nothing_written")
        if os.getpid() != self._pid:
            text = "the ledger was opened by another process; open it again after a fork"
            raise LedgerUnavailable(text, "nothing_written")

    # Writing

    def _submit(self, operation: Operation[T]) -> T:
        self._refuse_unusable()
        return self._committer.submit(operation)

    def _run_batch(self, take: Callable[[], list[Operation[Any]]]) -> list[Outcome[Any]]:
        with self._writing() as rows:
            return apply_all(rows, take(), self._now_us())

    def _begin_journal(self) -> None:
        """To be called once the store is open: names a journal that is empty."""
        if self.head().seq == 0:
            self._submit(BeginJournal(os.urandom(16).hex()))

    def open_dataset(
        self, dataset_id: str, order: float, guarantee: Guarantee, *, actor: str = "configuration"
    ) -> Opened[Dataset]:
        check_name("dataset_id", dataset_id)
        alpha = checks.number_in("order", order, 1.0, float("inf"))
        if guarantee not in ("dp", "probabilistic"):
            raise InvalidArgument("guarantee", "dp or probabilistic")
        return self._submit(OpenDataset(dataset_id, alpha, guarantee, checks.text("actor", actor)))

    def open_scope(
        self,
        scope_id: str,
        *,
        epsilon: float,
        delta: float,
        overhead: int,
        granted: int,
        actor: str = "configuration",
    ) -> Opened[Statement]:
        scope_chain(scope_id)
        eps = checks.number_in("epsilon", epsilon, 0.0, _MAX_EPSILON)
        checks.amount("overhead", overhead)
        checks.amount("granted", granted)
        checks.budget_within_epsilon(eps, overhead, granted)
        delta = checks.number_in("delta", delta, 0.0, 1.0)
        return self._submit(OpenScope(scope_id, eps, delta, overhead, granted, checks.text("actor", actor)))

    def grant(self, scope_id: str, amount: int, *, reason: str, actor: str) -> Statement:
        scope_chain(scope_id)
        checks.amount("amount", amount, least=1)
        return self._submit(Grant(scope_id, amount, checks.text("reason", reason), checks.text("actor", actor)))

    def reserve(
        self,
        reservation_id: str,
        scope_id: str,
        worst_case: int,
        *,
        lease_seconds: float,
        owner: str,
        details: Details | None = None,
        scored: bool = False,
        claim: ClaimRequest | None = None,
    ) -> Reservation:
        if not isinstance(scored, bool):
            raise InvalidArgument("scored", "a bool")
        return self._submit(
            Reserve(
                reservation_id=checks.identifier("reservation_id", reservation_id),
                scope_ids=scope_chain(scope_id),
                worst_case=checks.amount("worst_case", worst_case),
                lease_us=checks.lease_us(lease_seconds),
                owner=checks.identifier("owner", owner),
                details=checks.details({} if details is None else details),
                scored=scored,
                claim=None if claim is None else checked_claim(claim),
            )
        )

    def raise_reservation(self, reservation_id: str, worst_case: int) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        return self._submit(Raise(reservation_id, checks.amount("worst_case", worst_case)))

    def mark_scored(self, reservation_id: str) -> Reservation:
        return self._submit(MarkScored(checks.identifier("reservation_id", reservation_id)))

    def extend_lease(self, reservation_id: str, lease_seconds: float) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        return self._submit(ExtendLease(reservation_id, checks.lease_us(lease_seconds)))

    def settle(
        self,
        reservation_id: str,
        charge: int,
        *,
        details: Details | None = None,
        unprotected: bool = False,
        answer: bytes | None = None,
    ) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        facts = checks.details({} if details is None else details)
        if not isinstance(unprotected, bool):
            raise InvalidArgument("unprotected", "a bool")
        if answer is not None and (type(answer) is not bytes or len(answer) > MAX_ANSWER):
            raise InvalidArgument("answer", f"at most {MAX_ANSWER} bytes")
        return self._submit(Settle(reservation_id, checks.amount("charge", charge), facts, unprotected, answer))

    def release(self, reservation_id: str, *, owner: str, reason: str) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        return self._submit(Release(reservation_id, checks.identifier("owner", owner), checks.text("reason", reason)))

    def forfeit(self, reservation_id: str, *, reason: str) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        return self._submit(Forfeit(reservation_id, checks.text("reason", reason)))

    def forfeit_expired(self, now_us: int | None = None) -> tuple[Reservation, ...]:
        until = self._now_us() if now_us is None else checks.moment_us("now_us", now_us)
        forfeited: list[Reservation] = []
        while True:
            batch = self._submit(ForfeitExpired(until, _SWEPT_TOGETHER))
            forfeited.extend(batch)
            if len(batch) < _SWEPT_TOGETHER:
                return tuple(forfeited)

    def erase_expired_claims(self, now_us: int | None = None) -> int:
        until = self._now_us() if now_us is None else checks.moment_us("now_us", now_us)
        erased = 0
        while True:
            count = self._submit(EraseExpiredClaims(until, _SWEPT_TOGETHER))
            erased += count
            if count < _SWEPT_TOGETHER:
                return erased

    # Reading

    def dataset(self, dataset_id: str) -> Dataset:
        with self._snapshot() as rows:
            found = rows.datasets((dataset_id,)).get(dataset_id)
        if found is None:
            raise UnknownDataset(dataset_id)
        return found

    def statement(self, scope_id: str) -> Statement:
        return self.statements(scope_id)[0]

    def statements(self, scope_id: str) -> tuple[Statement, ...]:
        chain = scope_chain(scope_id)
        with self._snapshot() as rows:
            found = rows.scopes(chain)
        for name in chain:
            if name not in found:
                raise UnknownScope(name)
        return tuple(found[name] for name in chain)

    def list_scopes(self) -> tuple[Statement, ...]:
        with self._snapshot() as rows:
            return rows.all_scopes()

    def reservation(self, reservation_id: str) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        with self._snapshot() as rows:
            found = rows.reservations((reservation_id,)).get(reservation_id)
        if found is None:
            raise UnknownReservation(reservation_id)
        return found.reservation

    def open_reservations(self) -> tuple[Reservation, ...]:
        with self._snapshot() as rows:
            return tuple(found.reservation for found in rows.expired(2**63 - 1, _ALL))

    def recorded(self, key: str, request_digest: str) -> bytes | None:
        claim_id = claim_id_of(key)
        checked_digest(request_digest)
        if self._seen_recorded(claim_id, request_digest) is None:
            return None
        # An answer may leave only when its settlement is durable, and that is more than to be seen.
        return self._submit(Recall(claim_id, request_digest))

    def _seen_recorded(self, claim_id: str, request_digest: str) -> bytes | None:
        with self._snapshot() as rows:
            claim = rows.claims((claim_id,)).get(claim_id)
            if claim is None:
                return None
            held = rows.reservations((claim.reservation_id,)).get(claim.reservation_id)
        return recall(claim, None if held is None else held.reservation, request_digest, self._now_us())

    def head(self) -> JournalHead:
        with self._snapshot() as rows:
            return rows.head()

    def _snapshot(self) -> AbstractContextManager[Reads]:
        self._refuse_unusable()
        return self._reading()
