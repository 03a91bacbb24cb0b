"""The ledger's protocol and its values: who may spend how much, and what became of it.

Amounts are integers of 1e-9 nat ("nano") of Rényi loss at the data set's one order. The caller rounds charges and
worst cases up, grants down; the ledger only adds and compares integers.

A request's life::

    reserve(worst case) -> [raise_reservation] -> settle(charge)        the ordinary way
                                               -> forfeit(worst case)   the owner failed after rewards were read
            -> release                                                  the owner failed before that

One reservation is held in a scope and all its parents (user, tenant, data set), in one transaction, or nowhere.

When may a reservation be released?
    Only while no reward has been computed under it, which the ledger cannot see. It asks for two things: the caller
    names the *owner* that made the reservation (choose one that dies with the process that knows what was computed,
    such as host, process id and a random number; nobody else can then release), and the reservation is not *scored*.
    ``raise_reservation`` marks it scored in the same transaction, because a raise follows a first phase.
    So a single-stage server need not call ``mark_scored``, at one more durable write a request: the one process that
    could release knows in memory whether it asked for rewards, and if it dies the lease forfeits the worst case.
    Call ``mark_scored`` (or reserve with ``scored=True``, which costs nothing) where several processes share an owner.

Idempotency keys: a reservation can be made for a *claim*, the key and the digest of the request's body. It is decided
in the same transaction, so of any number of requests with one key exactly one gets a reservation. The settlement
records the answer in the transaction that pays for it, and whoever comes again is handed it without a charge. Answers
are content: they are not in the journal, and ``erase_expired_claims`` erases them with their claims.

What a ledger does *not* promise:
    that a charge is right; that the caller computed no reward before ``reserve`` returned; that time runs evenly
    (a clock that jumps ahead forfeits open reservations early, one that falls back forfeits them late: budget is
    held or lost, never gained); that a scope's user exists, or that a tenant cannot name many users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, Protocol, TypeVar

from reticent.accounting.audit import Report
from reticent.accounting.journal import JournalHead
from reticent.accounting.scope_ids import ScopeKind, dataset_scope, scope_chain, tenant_scope, user_scope

__all__ = [
    "MAX_AMOUNT",
    "MAX_ANSWER",
    "ClaimRequest",
    "Dataset",
    "Details",
    "Guarantee",
    "JournalHead",
    "Ledger",
    "Opened",
    "Report",
    "Reservation",
    "ReservationState",
    "ScopeKind",
    "Statement",
    "dataset_scope",
    "scope_chain",
    "tenant_scope",
    "user_scope",
]

MAX_AMOUNT: Final = 2**62
"""Largest amount, and largest ``granted``, in 1e-9 nat; sums of two still fit in 64 bits."""

MAX_ANSWER: Final = 2**20
"""Longest recorded answer, in bytes."""

Guarantee = Literal["dp", "probabilistic"]
"""Which overhead a data set's budgets were opened with: (ε, δ)-DP, or probabilistic DP."""

ReservationState = Literal["open", "settled", "released", "forfeited"]

Details = Mapping[str, str | int | float]
"""Public facts for the record, such as rule and number of candidates. Never a reward, nor anything made from one
that was not released: the journal is kept for ever and auditors read it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A protected data set; ``order`` (Rényi, above 1) and ``guarantee`` are fixed for its life."""

    dataset_id: str
    order: float
    guarantee: Guarantee


@dataclass(frozen=True, slots=True)
class Statement:
    """A scope's account at one moment.

    ``granted`` is what charges may use, *net* of ``overhead`` (the u paid once for δ); all amounts in 1e-9 nat.
    ``epsilon`` and ``delta`` are the figures of the opening, for reports. ``open``, ``settled``, ``released`` and
    ``forfeited`` count reservations, those of the scopes below included. ``unprotected`` counts those settled although
    rewards chose their answer by a rule without noise, so that no charge covers it; it never falls.
    """

    scope_id: str
    kind: ScopeKind
    parent: str | None
    dataset_id: str
    epsilon: float
    delta: float
    overhead: int
    granted: int
    spent: int
    reserved: int
    open: int
    settled: int
    released: int
    forfeited: int
    unprotected: int

    @property
    def void(self) -> bool:
        """Whether the scope's guarantee is void: some answer was released unprotected, whatever the budget says."""
        return self.unprotected > 0

    @property
    def remaining(self) -> int:
        """What can still be reserved."""
        return self.granted - self.spent - self.reserved

    @property
    def guaranteed(self) -> int:
        """The ε that this scope's guarantee now states, with all later grants: granted and overhead together."""
        return self.granted + self.overhead


@dataclass(frozen=True, slots=True)
class Reservation:
    """A worst case held in ``scope_ids`` (leaf first), or what became of it.

    ``charge`` is None while open, then what was spent: the settled charge, 0 when released, ``worst_case`` when
    forfeited. Times are UTC microseconds since 1970; after ``expires_us`` anyone may forfeit it.
    """

    reservation_id: str
    scope_ids: tuple[str, ...]
    worst_case: int
    state: ReservationState
    scored: bool
    charge: int | None
    owner: str
    reserved_us: int
    expires_us: int


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """An idempotency key and what it is to be answered with.

    Attributes:
        key: 1 to 512 printable ASCII characters. The caller puts its own name before what a client sent (1 to 255
            characters), so that no two callers share a key. The ledger keeps the key's SHA-256 only.
        request_digest: SHA-256 of the request's body, 64 lower-case hexadecimal digits.
        keep_seconds: how long the answer is kept, from the reservation on; above 0, below 32 days.
    """

    key: str
    request_digest: str
    keep_seconds: float


@dataclass(frozen=True, slots=True)
class Opened(Generic[T]):
    """What an opening found or made; ``existed`` tells which. What existed keeps its own figures."""

    value: T
    existed: bool


class Ledger(Protocol):
    """Budgets of data sets, tenants and users. Methods may be called from any thread and block while they write.

    A method that writes returns once the change is durable. Any of them raises ``InvalidArgument`` (or
    ``InvalidAmount``) before touching the store, and ``LedgerUnavailable`` where the store fails.
    After an error nothing was written, unless ``LedgerUnavailable`` says that this is unknown.
    """

    def open_dataset(self, dataset_id: str, order: float, guarantee: Guarantee, *, actor: str = ...) -> Opened[Dataset]:
        """Record a data set, or find it. ``DatasetConflict`` if it has another order or guarantee."""

    def open_scope(
        self, scope_id: str, *, epsilon: float, delta: float, overhead: int, granted: int, actor: str = ...
    ) -> Opened[Statement]:
        """Open a scope with its first budget, or find it as it was, whatever figures are given now.

        The parent must be open (``UnknownScope``), a root's data set too (``UnknownDataset``). ``InvalidArgument``
        if ``granted + overhead`` is more than ``epsilon``: ``granted`` is net of the overhead.
        """

    def grant(self, scope_id: str, amount: int, *, reason: str, actor: str) -> Statement:
        """Add to a scope's budget, for ever. ``amount`` is above 0; ``InvalidAmount`` if the sum passes 2^62.

        Not idempotent. The guarantee grows with it: see ``Statement.guaranteed``.
        """

    def reserve(
        self,
        reservation_id: str,
        scope_id: str,
        worst_case: int,
        *,
        lease_seconds: float,
        owner: str,
        details: Details = ...,
        scored: bool = ...,
        claim: ClaimRequest | None = ...,
    ) -> Reservation:
        """Hold ``worst_case`` in a scope and all its parents, before any reward is computed.

        ``BudgetExhausted`` names the first scope, leaf first, that has too little. Called again with the same
        arguments, it returns the open reservation unchanged (its lease not prolonged); ``ReservationConflict``
        with other arguments; ``ReservationClosed`` if it was settled, released or forfeited since, so that no
        answer is made under a closed reservation.

        With a ``claim``, its key is taken for this reservation if it is free: never used, or used for a reservation
        that was released (no reward was read), or its time is over and its reservation closed. If the budget refuses
        the reservation, the key stays as it was. Otherwise nothing is reserved: ``KeyReused`` if the key was used
        for another body; for the same body ``AnswerRecorded`` carries the answer, ``AnswerPending`` says that the
        reservation is still open, ``AnswerLost`` that it was forfeited, or settled without recording an answer.
        """

    def raise_reservation(self, reservation_id: str, worst_case: int) -> Reservation:
        """Replace the worst case by one that is not lower, once phase 1 has told it; marks it scored.

        ``BudgetExhausted`` (``requested`` is the difference) leaves the reservation as it was. ``InvalidAmount``
        for a lower one: keep what is held, and settle for less.
        """

    def mark_scored(self, reservation_id: str) -> Reservation:
        """Record that rewards may be read from here on: no release after this. Writes nothing the second time."""

    def extend_lease(self, reservation_id: str, lease_seconds: float) -> Reservation:
        """Let the lease end ``lease_seconds`` from now, if that is later than it did."""

    def settle(
        self,
        reservation_id: str,
        charge: int,
        *,
        details: Details = ...,
        unprotected: bool = ...,
        answer: bytes | None = ...,
    ) -> Reservation:
        """Spend ``charge`` and return the rest. Durable on return: only then may the answer leave.

        ``unprotected`` says that rewards chose the answer by a rule without noise; it is counted in every scope of
        the chain, whose guarantees are void from here on. ``answer`` (at most 2^20 bytes) is recorded for the
        reservation's claim, in the same transaction; ``InvalidArgument`` if it has none.

        ``SettlementExceedsReservation`` above the worst case. A second settlement is ``AlreadySettled`` even for the
        same amount: of two callers that hold one reservation only one may release an answer. The error carries
        the settled charge, for who retries after an unknown outcome. An expired lease that nobody forfeited yet
        can still be settled; after forfeiture it is ``AlreadyForfeited``, and the answer must not leave.
        """

    def release(self, reservation_id: str, *, owner: str, reason: str) -> Reservation:
        """Return all of it: the caller states that no reward was computed. ``ReleaseRefused`` as explained above."""

    def forfeit(self, reservation_id: str, *, reason: str) -> Reservation:
        """Spend all of it: noise may have been drawn and the outcome is lost."""

    def recorded(self, key: str, request_digest: str) -> bytes | None:
        """The recorded answer to a request that came before, or None if ``reserve`` would find the key free.

        A look-up, which takes nothing; an answer is returned once its settlement is known to be durable. Raises
        ``KeyReused``, ``AnswerPending`` and ``AnswerLost`` as ``reserve`` does.
        """

    def erase_expired_claims(self, now_us: int | None = None) -> int:
        """Erase claims and their answers whose time was over at ``now_us`` (default: now); how many there were.

        A claim whose reservation is still open stays. After this the key is free again.
        """

    def forfeit_expired(self, now_us: int | None = None) -> tuple[Reservation, ...]:
        """Forfeit every open reservation, scored or not, whose lease ended at ``now_us`` or before (default: now)."""

    def dataset(self, dataset_id: str) -> Dataset:
        """The data set; ``UnknownDataset``."""

    def statement(self, scope_id: str) -> Statement:
        """The scope's account; ``UnknownScope``."""

    def statements(self, scope_id: str) -> tuple[Statement, ...]:
        """Accounts of the scope and its parents at one moment, leaf first; ``UnknownScope``."""

    def list_scopes(self) -> tuple[Statement, ...]:
        """All accounts, in the order in which they were opened."""

    def reservation(self, reservation_id: str) -> Reservation:
        """The reservation, open or closed; ``UnknownReservation``."""

    def open_reservations(self) -> tuple[Reservation, ...]:
        """All open reservations, the first to expire first."""

    def head(self) -> JournalHead:
        """The journal's last entry; kept elsewhere, it pins everything before it."""

    def verify(self, anchor: JournalHead | None = None) -> Report:
        """The independent auditor's report on the store, read in one snapshot: see ``audit``.

        ``anchor`` is an earlier ``head``, kept elsewhere.
        """

    def close(self) -> None:
        """Close the store. Open reservations stay as they are. Further calls raise ``LedgerUnavailable``."""
