"""The ledger against a model of a few lines, over random sequences of calls, right and wrong ones."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from reticent.accounting.ledger import dataset_scope, scope_chain, tenant_scope, user_scope
from reticent.accounting.ledger_errors import (
    AlreadyForfeited,
    AlreadyReleased,
    AlreadySettled,
    BudgetExhausted,
    InvalidAmount,
    LedgerError,
    ReleaseRefused,
    ReservationConflict,
    SettlementExceedsReservation,
)
from reticent.accounting.store import SqliteLedger

LEAVES = (
    user_scope("d", "a", "x/y"),
    user_scope("d", "a", "x"),
    user_scope("d", "b", "x"),
    tenant_scope("d", "b"),
    dataset_scope("d"),
)
SCOPES = (dataset_scope("d"), tenant_scope("d", "a"), tenant_scope("d", "b"), *LEAVES[:3])
CLOSED = {"settled": AlreadySettled, "released": AlreadyReleased, "forfeited": AlreadyForfeited}
amounts = st.integers(0, 60)


@dataclass
class Held:
    leaf: str
    asked: int
    asked_scored: bool
    worst: int
    scored: bool
    owner: str
    expires: int
    state: str = "open"
    charge: int = 0


@dataclass
class Model:
    """Balances are sums over all reservations, never carried along: nothing here can drift."""

    granted: dict[str, int] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)

    def totals(self, scope: str) -> tuple[int, int]:
        mine = [h for h in self.held.values() if scope in scope_chain(h.leaf)]
        return sum(h.charge for h in mine), sum(h.worst for h in mine if h.state == "open")

    def fits(self, leaf: str, more: int) -> bool:
        return all(sum(self.totals(scope)) + more <= self.granted[scope] for scope in scope_chain(leaf))


class LedgerMachine(RuleBasedStateMachine):
    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ledger.db"
        self.now = 10**15
        self.ledger = self.open(create=True)
        self.model = Model()
        self.last_seq = 0

    def open(self, *, create: bool = False) -> SqliteLedger:
        return SqliteLedger(self.path, create=create, clock_us=lambda: self.now)

    def teardown(self) -> None:
        assert self.ledger.verify().findings == ()
        self.ledger.close()
        self.folder.cleanup()

    def refused(self, error: type[LedgerError], call: Any) -> None:
        head = self.ledger.head()
        with pytest.raises(error):
            call()
        assert self.ledger.head() == head

    @initialize(budgets=st.lists(st.integers(0, 150), min_size=len(SCOPES), max_size=len(SCOPES)))
    def open_all(self, budgets: list[int]) -> None:
        self.ledger.open_dataset("d", 2.5, "dp")
        for scope, granted in zip(SCOPES, budgets, strict=True):
            self.ledger.open_scope(scope, epsilon=1.0, delta=1e-6, overhead=7, granted=granted)
            self.model.granted[scope] = granted

    @rule(target=names, leaf=st.sampled_from(LEAVES), worst=amounts, scored=st.booleans(), owner=st.sampled_from("pq"))
    def reserve(self, leaf: str, worst: int, scored: bool, owner: str) -> str:
        name = f"r{len(self.model.held)}"
        arguments: dict[str, Any] = {"lease_seconds": 2, "owner": owner, "scored": scored}
        if not self.model.fits(leaf, worst):
            self.refused(BudgetExhausted, lambda: self.ledger.reserve(name, leaf, worst, **arguments))
            return "none"
        self.ledger.reserve(name, leaf, worst, **arguments)
        self.model.held[name] = Held(leaf, worst, scored, worst, scored, owner, self.now + 2_000_000)
        return name

    @rule(name=names, other=st.booleans())
    def reserve_again(self, name: str, other: bool) -> None:
        held = self.model.held.get(name)
        if held is None:
            return

        def call() -> object:
            asked = held.asked + other
            return self.ledger.reserve(
                name, held.leaf, asked, lease_seconds=2, owner=held.owner, scored=held.asked_scored
            )

        if other:
            self.refused(ReservationConflict, call)
        elif held.state != "open":
            self.refused(CLOSED[held.state], call)
        else:
            head = self.ledger.head()
            call()
            assert self.ledger.head() == head

    def open_or_refused(self, name: str, call: Any) -> Held | None:
        held = self.model.held.get(name)
        if held is not None and held.state != "open":
            self.refused(CLOSED[held.state], call)
            return None
        return held

    @rule(name=names, charge=amounts)
    def settle(self, name: str, charge: int) -> None:
        held = self.open_or_refused(name, lambda: self.ledger.settle(name, charge))
        if held is None:
            return
        if charge > held.worst:
            self.refused(SettlementExceedsReservation, lambda: self.ledger.settle(name, charge))
        else:
            self.ledger.settle(name, charge)
            held.state, held.charge = "settled", charge

    @rule(name=names, worst=amounts)
    def raise_reservation(self, name: str, worst: int) -> None:
        held = self.open_or_refused(name, lambda: self.ledger.raise_reservation(name, worst))
        if held is None:
            return
        if worst < held.worst:
            self.refused(InvalidAmount, lambda: self.ledger.raise_reservation(name, worst))
        elif not self.model.fits(held.leaf, worst - held.worst):
            self.refused(BudgetExhausted, lambda: self.ledger.raise_reservation(name, worst))
        else:
            self.ledger.raise_reservation(name, worst)
            held.worst, held.scored = worst, True

    @rule(name=names)
    def mark_scored(self, name: str) -> None:
        held = self.open_or_refused(name, lambda: self.ledger.mark_scored(name))
        if held is not None:
            self.ledger.mark_scored(name)
            held.scored = True

    @rule(name=names, owner=st.sampled_from("pq"))
    def release(self, name: str, owner: str) -> None:
        def call() -> object:
            return self.ledger.release(name, owner=owner, reason="test")

        held = self.open_or_refused(name, call)
        if held is None:
            return
        if held.scored or held.owner != owner:
            self.refused(ReleaseRefused, call)
        else:
            call()
            held.state = "released"

    @rule(name=names)
    def forfeit(self, name: str) -> None:
        held = self.open_or_refused(name, lambda: self.ledger.forfeit(name, reason="test"))
        if held is not None:
            self.ledger.forfeit(name, reason="test")
            held.state, held.charge = "forfeited", held.worst

    @rule(name=names, seconds=st.integers(1, 4))
    def extend_lease(self, name: str, seconds: int) -> None:
        held = self.open_or_refused(name, lambda: self.ledger.extend_lease(name, seconds))
        if held is not None:
            self.ledger.extend_lease(name, seconds)
            held.expires = max(held.expires, self.now + seconds * 1_000_000)

    @rule(seconds=st.integers(-2, 4))
    def let_time_pass_and_sweep(self, seconds: int) -> None:
        self.now += seconds * 1_000_000
        late = {name: h for name, h in self.model.held.items() if h.state == "open" and h.expires <= self.now}
        assert {r.reservation_id for r in self.ledger.forfeit_expired()} == late.keys()
        for held in late.values():
            held.state, held.charge = "forfeited", held.worst

    @rule(scope=st.sampled_from(SCOPES), amount=st.integers(1, 40))
    def grant(self, scope: str, amount: int) -> None:
        self.ledger.grant(scope, amount, reason="test", actor="officer")
        self.model.granted[scope] += amount

    @rule()
    def close_and_open_again(self) -> None:
        head = self.ledger.head()
        self.ledger.close()
        self.ledger = self.open()
        assert self.ledger.head() == head

    @invariant()
    def balances_are_the_models_and_nothing_is_overspent(self) -> None:
        for scope in self.ledger.list_scopes():
            spent, reserved = self.model.totals(scope.scope_id)
            assert (scope.granted, scope.spent, scope.reserved) == (
                self.model.granted[scope.scope_id],
                spent,
                reserved,
            )
            assert scope.spent + scope.reserved <= scope.granted
        states = {r.reservation_id for r in self.ledger.open_reservations()}
        assert states == {name for name, held in self.model.held.items() if held.state == "open"}

    @invariant()
    def the_auditor_agrees_and_the_journal_only_grows(self) -> None:
        report = self.ledger.verify()
        assert report.findings == ()
        assert report.seq >= self.last_seq
        self.last_seq = report.seq


LedgerMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerFollowsItsModel = LedgerMachine.TestCase
