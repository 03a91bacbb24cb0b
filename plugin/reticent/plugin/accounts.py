"""The ledger as the server uses it: scopes opened from the configuration, reservations, settlements, leases.

Every call runs in a thread, because a durable write waits for the disk. Nothing awaits between a check and its debit:
that is one transaction inside the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TypeVar

from reticent.accounting.errors import BudgetTooSmallError
from reticent.accounting.filter import PrivacyFilter
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.ledger import ClaimRequest, Ledger, Reservation, Statement, dataset_scope
from reticent.accounting.ledger_errors import (
    AlreadySettled,
    AnswerLost,
    AnswerPending,
    AnswerRecorded,
    BudgetExhausted,
    DatasetConflict,
    KeyReused,
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    ReservationClosed,
)
from reticent.accounting.units import NANO_PER_NAT, to_nano_rounded_up
from reticent.plugin.errors import Conflict, Forbidden, Unavailable
from reticent.plugin.metrics import Metrics
from reticent.plugin.resolve import Plan
from reticent.plugin.selection.base import Selection
from reticent.plugin.settings import BudgetSettings, ConfigurationError, Settings
from reticent.plugin.tenants import Caller

__all__ = ["Accounts", "Exhausted"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_THREADS = 32
"""Calls that may wait for the ledger at once. It makes the writes of all that wait durable together."""
_SWEEP_SECONDS = 5.0
_SETTLE_AGAIN_AFTER = (0.1, 0.5)
"""Pauses, in seconds, before a settlement that failed is tried again."""


@dataclass(eq=False)
class Exhausted(Exception):  # noqa: N818 - it says what happened
    """A scope has too little left for the worst case. `kind` is dataset, tenant or user."""

    kind: str


class Accounts:
    """Budgets of the running server.

    Args:
        ledger: the store; owned by this object, closed by `close`.
        settings: data set, tenants and budgets.
        metrics: where forfeits are counted.
        lattice: R and Δ of the rewards as drawn, for the journal.
    """

    def __init__(self, ledger: Ledger, settings: Settings, metrics: Metrics, lattice: RewardLattice) -> None:
        self._ledger = ledger
        self._lattice = lattice
        self._settings = settings
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ledger")
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        self._held: set[str] = set()  # ids of requests that a reservation is being made for, or was given to
        self._sweeper: asyncio.Task[None] | None = None
        self._users: set[str] = set()
        self._user_count: Counter[str] = Counter()

    async def start(self) -> None:
        """Open the data set and the tenants' scopes (what is there stays as it was); begin to watch leases.

        Raises:
            ConfigurationError: the ledger has this data set with another order or guarantee, or a budget is smaller
                than what it pays once for its δ.
            Unavailable: the ledger cannot be written.
        """
        dataset = self._settings.dataset
        try:
            await self._call(partial(self._ledger.open_dataset, dataset.id, dataset.order, dataset.guarantee))
            await self._open(dataset_scope(dataset.id), dataset)
            for tenant in self._settings.tenants:
                await self._open(Caller(tenant, dataset.id).tenant_scope, tenant.budget)
                self._figures(tenant.user_budget)
        except (DatasetConflict, BudgetTooSmallError) as error:
            raise ConfigurationError(str(error)) from None
        for statement in await self._call(self._ledger.list_scopes):
            if statement.kind == "user" and statement.parent is not None:
                self._users.add(statement.scope_id)
                self._user_count[statement.parent] += 1
        await self.sweep()
        self._sweeper = asyncio.create_task(self._watch_leases())

    async def close(self) -> None:
        """Stop watching; close the ledger. Open reservations stay, and are forfeited when their leases end."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await self._call(self._ledger.close)
        self._pool.shutdown(wait=True)

    async def reserve(self, plan: Plan, request_id: str) -> Reservation:
        """Hold the worst case of all of the plan's choices, in one reservation, in the user's scope and its parents.

        Raises:
            Exhausted: too little left; nothing was written.
            Forbidden: a new user, and the tenant has as many as it may.
            Conflict: the plan's idempotency key is in use.
            Unavailable: the ledger cannot be written.
            ValueError: a request with this id is being answered; its reservation is not for two.
        """
        if request_id in self._held:
            raise ValueError("a request with this id is being answered")
        self._held.add(request_id)
        try:
            return await self._reserve(plan, request_id)
        except BaseException:
            self._held.discard(request_id)
            raise

    async def _reserve(self, plan: Plan, request_id: str) -> Reservation:
        if plan.scope not in self._users:
            await self._open_user(plan)
        # What an auditor needs to compute the worst case again. PrivITP's threshold is not there: it is never written.
        facts: dict[str, str | int | float] = {
            **plan.rule.facts(),
            **plan.rule.charging(),
            "private": int(plan.rule.private),
            "reward_max": self._lattice.reward_max,
            "sensitivity": self._lattice.sensitivity,
            **({} if plan.choices == 1 else {"choices": plan.choices}),
        }
        reserve = partial(
            self._ledger.reserve,
            request_id,
            plan.scope,
            plan.worst_case,
            lease_seconds=self._settings.ledger.lease_seconds,
            owner=self._owner,
            details=facts,
            claim=plan.claim,
        )
        writing = asyncio.ensure_future(self._call(reserve))
        try:
            return await asyncio.shield(writing)
        except BudgetExhausted as error:
            raise Exhausted(error.scope_kind) from None
        except (AnswerRecorded, AnswerPending, AnswerLost, KeyReused) as error:
            raise _conflict(error) from None
        except asyncio.CancelledError:
            # The thread cannot be stopped: what it reserves is let go again, since nobody will use it.
            await asyncio.shield(self._release_when_written(writing))
            raise

    async def recorded(self, claim: ClaimRequest) -> bytes | None:
        """The answer recorded under an idempotency key, None where the request is to be answered now.

        Raises:
            Conflict: the key was used for another request, or its answer is not ready, or is lost.
        """
        try:
            return await self._call(partial(self._ledger.recorded, claim.key, claim.request_digest))
        except (AnswerPending, AnswerLost, KeyReused) as error:
            raise _conflict(error) from None

    async def settle(
        self,
        reservation: Reservation,
        plan: Plan,
        selections: Sequence[Selection],
        outcome: str,
        recording: bytes | None,
    ) -> tuple[Statement, ...]:
        """Post the realised charge of all selections durably; return the accounts after it, leaf first.

        `recording` is what the plan's idempotency key is answered with from then on, None where it has no key.
        Where only that reading fails, there are none: the answer is paid for, and is not thrown away for it.

        Giving up costs the worst case and the answer, so a settlement that the ledger could not take is tried a few
        times, while the lease lasts.

        Raises:
            ReservationClosed: the reservation was closed by another: this answer is not paid for.
            ValueError: the reservation is another server's.
            Unavailable: the ledger cannot be written, or nobody can tell whether the charge was.
        """
        charge = sum(selection.charge for selection in selections)
        # Of several selections the number that fell back, and the halting times in order.
        details: dict[str, str | int | float] = {"outcome": outcome, "fallback": sum(s.fallback for s in selections)}
        halted = [s.halting_time for s in selections if s.halting_time is not None]
        if halted:
            details["halting_time"] = halted[0] if len(halted) == 1 else " ".join(map(str, halted))
        await self._settle(
            reservation,
            charge,
            partial(
                self._ledger.settle,
                reservation.reservation_id,
                charge,
                details=details,
                unprotected=not plan.rule.private,
                answer=recording,
            ),
        )
        self._held.discard(reservation.reservation_id)
        try:
            return await self.statements(reservation.scope_ids[0])
        except (LedgerError, Unavailable):
            return ()

    async def _settle(self, reservation: Reservation, charge: int, settle: Callable[[], Reservation]) -> None:
        """Return once this very settlement is known to be durable.

        After a try of unknown outcome, the ledger may answer that the reservation is settled. That was this try, since
        nobody else settles it: only its owner does, which is this process (the ledger gives a reservation to the owner
        that made it only), and `reserve` has given it to this request only. The charge must be the same as well.
        """
        if reservation.owner != self._owner:
            raise ValueError("a reservation is settled by its owner")
        unknown = False
        for pause in (*_SETTLE_AGAIN_AFTER, None):
            try:
                await self._run(settle)
            except LedgerUnavailable as error:
                unknown = unknown or error.outcome == "unknown"
                late = time.time_ns() // 1000 >= reservation.expires_us
                if pause is None or late or isinstance(error, LedgerDamaged):
                    log.error("reservation %s is not settled: %s", reservation.reservation_id, _told(error))
                    raise Unavailable("The privacy ledger is not available.") from None
                log.warning("a settlement is tried again in %g s: %s", pause, _told(error))
                await asyncio.sleep(pause)
            except AlreadySettled as settled:
                if unknown and settled.charge == charge:
                    return
                raise
            else:
                return

    async def abandon(self, reservation: Reservation, *, rewards_asked: bool, reason: str) -> None:
        """Give up a request: release the reservation if no reward was asked for, else forfeit the worst case.

        If even that fails, the lease ends and the sweep forfeits: the budget is lost, never gained.
        """
        identifier = reservation.reservation_id
        try:
            if rewards_asked:
                await self._run(partial(self._ledger.forfeit, identifier, reason=reason))
                self._metrics.forfeits.inc()
            else:
                await self._run(partial(self._ledger.release, identifier, owner=self._owner, reason=reason))
        except ReservationClosed as closed:
            # A settlement that was under way came first, or another process swept it.
            log.warning("%s", closed)
        except LedgerUnavailable as error:
            log.error("reservation %s is left to its lease: %s", identifier, _told(error))
        except (LedgerError, Unavailable):
            log.exception("reservation %s is left to its lease", identifier)
        finally:
            self._held.discard(identifier)

    async def statements(self, scope: str) -> tuple[Statement, ...]:
        """Accounts of a scope and its parents, leaf first."""
        return await self._call(partial(self._ledger.statements, scope))

    async def all_statements(self) -> tuple[Statement, ...]:
        """Every account, in the order in which they were opened."""
        return await self._call(self._ledger.list_scopes)

    async def caller_statements(self, caller: Caller, user: str | None) -> tuple[Statement, ...]:
        """Accounts that a caller may read: its own, its data set's, and one user's if that user was ever seen."""
        if user is not None:
            with contextlib.suppress(LedgerError):
                return await self.statements(caller.user_scope(user))
        return await self.statements(caller.tenant_scope)

    async def check(self) -> None:
        """Raise `Unavailable` unless the ledger answers."""
        await self._call(self._ledger.head)

    async def sweep(self) -> None:
        """Forfeit what has outlived its lease; erase recorded answers whose time is over."""
        await self._call(self._ledger.erase_expired_claims)
        lost = await self._call(self._ledger.forfeit_expired)
        if lost:
            self._metrics.forfeits.inc(len(lost))
            log.warning("%d reservations outlived their lease and were forfeited at their worst case", len(lost))
        self._metrics.reservations_open.set(len(await self._call(self._ledger.open_reservations)))
        account = await self._call(partial(self._ledger.statement, dataset_scope(self._settings.dataset.id)))
        self._metrics.budget_remaining.labels(scope="dataset").set(account.remaining / 1e9)

    async def _watch_leases(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep()
            except (LedgerError, Unavailable):
                log.exception("the sweep of expired reservations failed; it will be tried again")

    async def _release_when_written(self, writing: asyncio.Future[Reservation]) -> None:
        with contextlib.suppress(LedgerError, Unavailable):
            await self.abandon(await writing, rewards_asked=False, reason="cancelled")

    async def _open_user(self, plan: Plan) -> None:
        """Open a new user's scope. Names cost nothing to invent, so their number is bounded."""
        caller = plan.caller
        if self._user_count[caller.tenant_scope] >= caller.tenant.max_users:
            raise Forbidden(f"This tenant has {caller.tenant.max_users} users and may have no more.", "user")
        await self._open(plan.scope, caller.tenant.user_budget)
        if plan.scope not in self._users:  # two first requests of one user open it once
            self._users.add(plan.scope)
            self._user_count[caller.tenant_scope] += 1

    def _figures(self, budget: BudgetSettings) -> tuple[int, int]:
        """(granted, overhead) of a budget, in 1e-9 nat; together at most ε, or the ledger refuses to open the scope.

        Raises:
            BudgetTooSmallError: ε does not exceed what is paid once for δ.
        """
        dataset = self._settings.dataset
        filter_ = PrivacyFilter(budget.epsilon, budget.delta, dataset.order, dataset.guarantee)
        granted = filter_.spendable_nano
        most = math.floor(Fraction(repr(budget.epsilon)) * NANO_PER_NAT)
        return granted, max(0, min(to_nano_rounded_up(filter_.overhead), most - granted))

    async def _open(self, scope: str, budget: BudgetSettings) -> None:
        granted, overhead = self._figures(budget)
        opened = await self._call(
            partial(
                self._ledger.open_scope,
                scope,
                epsilon=budget.epsilon,
                delta=budget.delta,
                overhead=overhead,
                granted=granted,
                actor="configuration",
            )
        )
        found = opened.value
        if opened.existed and (found.epsilon, found.delta) != (budget.epsilon, budget.delta):
            log.warning(
                "%s was opened with ε = %g, δ = %g, and keeps them; the configuration's %g, %g change nothing",
                scope,
                found.epsilon,
                found.delta,
                budget.epsilon,
                budget.delta,
            )

    async def _call(self, function: Callable[[], T]) -> T:
        try:
            return await self._run(function)
        except LedgerUnavailable as error:
            log.error("the ledger is not available: %s", _told(error))
            raise Unavailable("The privacy ledger is not available.") from None

    async def _run(self, function: Callable[[], T]) -> T:
        """Run it in a thread; its errors pass through."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, function)
        except RuntimeError:  # the pool was shut down
            raise Unavailable("The privacy ledger is closed.") from None
        return await running


def _told(error: LedgerUnavailable) -> str:
    """An error for the log, with what it means for the call that it ended."""
    outcome = {"nothing_written": "nothing was written", "unknown": "whether it was written is unknown"}
    return f"{error} ({outcome[error.outcome]})"


def _conflict(error: LedgerError) -> Conflict:
    """What a client is told of an idempotency key that is in use."""
    match error:
        case KeyReused():
            text = "This idempotency key was used for another request. Use a new key."
            return Conflict(text, code="idempotency_key_reused", retry=False)
        case AnswerLost():
            text = "The request with this idempotency key was charged, and its answer is lost. A new key draws anew."
            return Conflict(text, code="idempotent_answer_lost", retry=False)
        case _:
            return Conflict("The request with this idempotency key is being answered. Try again shortly.")
