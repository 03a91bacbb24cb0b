"""The half of a store that is the same for every database: arguments are checked and turned into operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, TypeVar

from reticent.accounting.ledger import Dataset, Details, Guarantee, Opened, Reservation, Statement
from reticent.accounting.ledger_errors import InvalidArgument
from reticent.accounting.scope_ids import check_name, scope_chain
from reticent.accounting.store import checks
from reticent.accounting.store.operations import (
    ExtendLease,
    Forfeit,
    ForfeitExpired,
    Grant,
    MarkScored,
    OpenDataset,
    OpenScope,
    Operation,
    Raise,
    Release,
    Reserve,
    Settle,
)

__all__ = ["OperationLedger"]

_FORFEITS_A_TRANSACTION: Final = 256
_MAX_EPSILON: Final = 4e9  # nat: in 1e-9 nat it stays below 2^62

T = TypeVar("T")


class OperationLedger(ABC):
    """The writing methods of ``ledger.Ledger``, whose docstrings hold; a store says how operations are applied."""

    @abstractmethod
    def _submit(self, operation: Operation[T]) -> T:
        """Apply the operation in a write transaction; return when it is durable."""

    @abstractmethod
    def _now_us(self) -> int:
        """The store's clock."""

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

    def settle(self, reservation_id: str, charge: int, *, details: Details | None = None) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        facts = checks.details({} if details is None else details)
        return self._submit(Settle(reservation_id, checks.amount("charge", charge), facts))

    def release(self, reservation_id: str, *, owner: str, reason: str) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        return self._submit(Release(reservation_id, checks.identifier("owner", owner), checks.text("reason", reason)))

    def forfeit(self, reservation_id: str, *, reason: str) -> Reservation:
        checks.identifier("reservation_id", reservation_id)
        return self._submit(Forfeit(reservation_id, checks.text("reason", reason)))

    def forfeit_expired(self, now_us: int | None = None) -> tuple[Reservation, ...]:
        if now_us is not None and (type(now_us) is not int or not 0 <= now_us < 2**63):
            raise InvalidArgument("now_us", "microseconds since 1970, an int")
        until = self._now_us() if now_us is None else now_us
        forfeited: list[Reservation] = []
        while True:
            batch = self._submit(ForfeitExpired(until, _FORFEITS_A_TRANSACTION))
            forfeited.extend(batch)
            if len(batch) < _FORFEITS_A_TRANSACTION:
                return tuple(forfeited)
