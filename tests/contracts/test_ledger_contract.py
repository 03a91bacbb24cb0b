"""What every store of the ledger must do. A new store inherits `LedgerContract` and provides `ledger`.

What it says of idempotency keys is in `ledger_claims`, of bad input in `ledger_refusals`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting import ledger_errors as errors
from reticent.accounting.ledger import MAX_AMOUNT, Dataset, JournalHead, dataset_scope, tenant_scope, user_scope
from reticent.accounting.ledger_errors import LedgerError
from reticent.accounting.store import SqliteLedger
from reticent.accounting.store.operations import Grant, OpenDataset, OpenScope, Reserve, Settle
from tests.contracts.ledger_parts import (
    ACME,
    ALICE,
    BOB,
    DATASET,
    FIGURES,
    ZETA,
    Clock,
    balances,
    clock,
    open_demo,
    reserve,
)
from tests.contracts.ledger_refusals import RefusalsContract

__all__ = ["Clock", "LedgerContract", "clock"]


class LedgerContract(RefusalsContract):
    """Inherited by one `Test...` class a store."""

    @pytest.fixture
    def ledger(self) -> Any:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def audited(self, ledger: Any) -> Iterator[None]:
        """Every test ends with the independent auditor, unless it closed the ledger."""
        open_demo(ledger)
        yield
        assert ledger.verify().findings == ()

    # Opening

    def test_an_existing_data_set_is_found_as_it_was(self, ledger: Any) -> None:
        head = ledger.head()
        opened = ledger.open_dataset("demo", 3.5, "dp")
        assert opened.existed
        assert opened.value == ledger.dataset("demo") == Dataset("demo", 3.5, "dp")
        assert ledger.head() == head

    def test_a_data_set_keeps_its_order_and_guarantee(self, ledger: Any) -> None:
        error = self.refuses(ledger, errors.DatasetConflict, lambda: ledger.open_dataset("demo", 3.6, "dp"))
        assert (error.field, error.existing, error.requested) == ("order", "3.5", "3.6")
        almost = math.nextafter(3.5, 4)
        self.refuses(ledger, errors.DatasetConflict, lambda: ledger.open_dataset("demo", almost, "dp"))
        error = self.refuses(ledger, errors.DatasetConflict, lambda: ledger.open_dataset("demo", 3.5, "probabilistic"))
        assert error.field == "guarantee"

    def test_an_order_is_kept_to_its_last_bit(self, ledger: Any) -> None:
        order = math.nextafter(1.1, 2)
        ledger.open_dataset("other", order, "probabilistic")
        assert ledger.dataset("other").order == order

    def test_an_existing_scope_keeps_its_figures(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        before, head = ledger.statement(ACME), ledger.head()
        opened = ledger.open_scope(ACME, epsilon=9.0, delta=0.5, overhead=1, granted=10**9)
        assert (opened.existed, opened.value) == (True, before)
        assert (ledger.statement(ACME), ledger.head()) == (before, head)
        assert not ledger.open_scope(user_scope("demo", "acme", "new"), granted=1, **FIGURES).existed

    def test_a_scope_needs_its_parent_and_its_data_set(self, ledger: Any) -> None:
        orphan = user_scope("demo", "nobody", "x")
        error = self.refuses(ledger, errors.UnknownScope, lambda: ledger.open_scope(orphan, granted=1, **FIGURES))
        assert error.scope_id == tenant_scope("demo", "nobody")
        root = dataset_scope("missing")
        self.refuses(ledger, errors.UnknownDataset, lambda: ledger.open_scope(root, granted=1, **FIGURES))

    def test_a_budget_whose_overhead_was_not_taken_off_is_refused(self, ledger: Any) -> None:
        name = tenant_scope("demo", "gross")
        figures = {"epsilon": 0.3, "delta": 0.01, "overhead": 10**8}
        self.refuses(ledger, errors.InvalidAmount, lambda: ledger.open_scope(name, granted=3 * 10**8, **figures))
        self.refuses(ledger, errors.InvalidAmount, lambda: ledger.open_scope(name, granted=2 * 10**8 + 1, **figures))
        assert ledger.open_scope(name, granted=2 * 10**8, **figures).value.guaranteed == 3 * 10**8

    def test_a_grant_adds_to_what_remains(self, ledger: Any) -> None:
        before = ledger.statement(ACME)
        after = ledger.grant(ACME, 50, reason="renewal 2031", actor="officer")
        assert after == ledger.statement(ACME)
        assert (after.granted, after.remaining) == (before.granted + 50, before.remaining + 50)
        assert after.guaranteed == before.guaranteed + 50
        assert ledger.statement(DATASET).granted == 1000
        self.refuses(ledger, errors.InvalidAmount, lambda: ledger.grant(ACME, MAX_AMOUNT, reason="a", actor="b"))

    # Reserving

    def test_a_reservation_is_held_in_all_nested_scopes(self, ledger: Any) -> None:
        made = reserve(ledger, "r", 100)
        assert made.scope_ids == (ALICE, ACME, DATASET)
        assert made == ledger.reservation("r")
        assert ledger.open_reservations() == (made,)
        assert balances(ledger) == {DATASET: (0, 100), ACME: (0, 100), ZETA: (0, 0), ALICE: (0, 100), BOB: (0, 0)}
        assert [s.open for s in ledger.statements(ALICE)] == [1, 1, 1]

    @pytest.mark.parametrize(
        ("held", "asked", "scope_id", "available"),
        [((), 501, ALICE, 500), (((BOB, 200),), 401, ACME, 400), (((BOB, 200), (ZETA, 600)), 201, DATASET, 200)],
    )
    def test_the_first_scope_that_has_too_little_refuses(
        self, ledger: Any, held: tuple[tuple[str, int], ...], asked: int, scope_id: str, available: int
    ) -> None:
        for k, (other, amount) in enumerate(held):
            reserve(ledger, f"held-{k}", amount, other)
        error = self.refuses(ledger, errors.BudgetExhausted, lambda: reserve(ledger, "r", asked))
        kind = scope_id.partition(":")[0]
        assert (error.scope_id, error.scope_kind, error.available, error.requested) == (
            scope_id,
            kind,
            available,
            asked,
        )
        assert reserve(ledger, "r", asked - 1).worst_case == asked - 1

    def test_two_tenants_do_not_touch_each_other(self, ledger: Any) -> None:
        reserve(ledger, "r", 500)
        before = ledger.statement(ZETA)
        ledger.settle("r", 500)
        assert ledger.statement(ZETA) == before
        assert ledger.statement(DATASET).remaining == 500

    def test_a_tenant_may_reserve_without_a_user(self, ledger: Any) -> None:
        assert reserve(ledger, "r", 600, ACME).scope_ids == (ACME, DATASET)

    def test_reserving_again_with_the_same_arguments_changes_nothing(self, ledger: Any, clock: Clock) -> None:
        made, head = reserve(ledger, "r", 100), ledger.head()
        clock.advance(10)
        assert reserve(ledger, "r", 100) == made
        ledger.raise_reservation("r", 150)
        assert reserve(ledger, "r", 100).worst_case == 150
        assert ledger.head().seq == head.seq + 1

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"worst_case": 99}, "worst_case"),
            ({"scope_id": BOB}, "scopes"),
            ({"owner": "host-2"}, "owner"),
            ({"lease_seconds": 61}, "lease_us"),
            ({"details": {"rule": "privitp", "candidates": 8}}, "details"),
            ({"scored": True}, "scored"),
        ],
    )
    def test_reserving_again_with_another_argument_conflicts(
        self, ledger: Any, changes: dict[str, Any], field: str
    ) -> None:
        reserve(ledger, "r", 100)
        error = self.refuses(
            ledger, errors.ReservationConflict, lambda: reserve(ledger, "r", **({"worst_case": 100} | changes))
        )
        assert error.fields == (field,)

    def test_a_closed_reservation_is_not_handed_out_again(self, ledger: Any) -> None:
        closings: tuple[tuple[str, Callable[[], object], type[errors.ReservationClosed]], ...] = (
            ("settled", lambda: ledger.settle("settled", 1), errors.AlreadySettled),
            ("released", lambda: ledger.release("released", owner="host-1", reason="x"), errors.AlreadyReleased),
            ("forfeited", lambda: ledger.forfeit("forfeited", reason="x"), errors.AlreadyForfeited),
        )
        for name, close, error in closings:
            reserve(ledger, name, 10)
            close()
            self.refuses(ledger, error, partial(reserve, ledger, name, 10))

    # Raising

    def test_a_raise_takes_the_difference_and_marks_scored(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        raised = ledger.raise_reservation("r", 250)
        assert (raised.worst_case, raised.scored) == (250, True)
        assert balances(ledger)[ALICE] == balances(ledger)[DATASET] == (0, 250)
        head = ledger.head()
        assert ledger.raise_reservation("r", 250) == raised
        assert ledger.head() == head
        assert ledger.settle("r", 250).charge == 250

    def test_a_raise_that_does_not_fit_leaves_the_reservation_open(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        error = self.refuses(ledger, errors.BudgetExhausted, lambda: ledger.raise_reservation("r", 501))
        assert (error.scope_id, error.available, error.requested) == (ALICE, 400, 401)
        self.refuses(ledger, errors.InvalidAmount, lambda: ledger.raise_reservation("r", 99))
        assert ledger.settle("r", 100).state == "settled"

    # Settling

    def test_a_settlement_returns_what_was_not_charged(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        closed = ledger.settle("r", 30, details={"halting_time": 3, "fallback": "no"})
        assert (closed.state, closed.charge, closed.worst_case) == ("settled", 30, 100)
        assert closed == ledger.reservation("r")
        assert [(s.spent, s.reserved, s.open, s.settled) for s in ledger.statements(ALICE)] == [(30, 0, 0, 1)] * 3
        assert ledger.open_reservations() == ()

    def test_a_settlement_may_be_free_or_the_whole_worst_case(self, ledger: Any) -> None:
        for name, charge in (("free", 0), ("dear", 100)):
            reserve(ledger, name, 100)
            assert ledger.settle(name, charge).charge == charge
        assert ledger.statement(DATASET).spent == 100
        reserve(ledger, "nothing", 0)
        assert ledger.settle("nothing", 0).charge == 0

    def test_settlement_never_exceeds_its_reservation(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        error = self.refuses(ledger, errors.SettlementExceedsReservation, lambda: ledger.settle("r", 101))
        assert (error.charge, error.reserved) == (101, 100)

    @pytest.mark.parametrize("charge", [30, 31])
    def test_nothing_is_settled_twice(self, ledger: Any, charge: int) -> None:
        reserve(ledger, "r", 100)
        ledger.settle("r", 30)
        error = self.refuses(ledger, errors.AlreadySettled, lambda: ledger.settle("r", charge))
        assert error.charge == 30

    def test_nothing_happens_to_a_closed_reservation(self, ledger: Any) -> None:
        closings: dict[str, tuple[Callable[[str], object], type[errors.ReservationClosed]]] = {
            "settled": (lambda name: ledger.settle(name, 1), errors.AlreadySettled),
            "released": (lambda name: ledger.release(name, owner="host-1", reason="x"), errors.AlreadyReleased),
            "forfeited": (lambda name: ledger.forfeit(name, reason="x"), errors.AlreadyForfeited),
        }
        others: list[Callable[[str], object]] = [close for close, _ in closings.values()]
        others += [
            lambda name: ledger.raise_reservation(name, 20),
            ledger.mark_scored,
            lambda name: ledger.extend_lease(name, 600),
        ]
        for name, (close, error) in closings.items():
            reserve(ledger, name, 10)
            close(name)
            for other in others:
                self.refuses(ledger, error, partial(other, name))
        assert ledger.statement(ALICE).spent == 11

    def test_an_unprotected_answer_voids_every_guarantee_of_its_chain(self, ledger: Any) -> None:
        for name, unprotected in (("a", False), ("b", True), ("c", True), ("d", False)):
            reserve(ledger, name, 10)
            ledger.settle(name, 0, unprotected=unprotected)
        assert [(s.unprotected, s.void, s.settled) for s in ledger.statements(ALICE)] == [(2, True, 4)] * 3
        assert [(s.unprotected, s.void) for s in (ledger.statement(BOB), ledger.statement(ZETA))] == [(0, False)] * 2
        ledger.grant(ACME, 1, reason="more", actor="officer")
        reserve(ledger, "e", 10)
        ledger.forfeit("e", reason="x")
        assert ledger.statement(ACME).unprotected == 2

    @pytest.mark.parametrize("bad", [1, 0, None, "yes"])
    def test_unprotected_is_yes_or_no(self, ledger: Any, bad: Any) -> None:
        reserve(ledger, "r", 10)
        self.refuses(ledger, errors.InvalidArgument, lambda: ledger.settle("r", 1, unprotected=bad))

    # Many in one transaction

    def test_of_operations_committed_together_each_is_done_or_refused_for_itself(self, ledger: Any) -> None:
        def asks(name: str, amount: int, scope_ids: tuple[str, ...] = (ALICE, ACME, DATASET)) -> Reserve:
            return Reserve(name, scope_ids, amount, 60_000_000, "host-1", {}, False, None)

        before = ledger.head()
        outcomes = ledger._run_batch(
            lambda: [
                asks("a", 300),
                asks("too-much", 300),
                Settle("a", 100, {}, False, None),
                asks("fits-now", 300),
                Settle("a", 100, {}, False, None),
                Settle("nothing", 1, {}, False, None),
                Grant(BOB, 5, "more", "officer"),
                asks("b", 10, (BOB, ACME, DATASET)),
                asks("over-tenant", 200, (BOB, ACME, DATASET)),
            ]
        )
        refusals = [None if outcome.error is None else type(outcome.error) for outcome in outcomes]
        exhausted, settled, unknown = errors.BudgetExhausted, errors.AlreadySettled, errors.UnknownReservation
        assert refusals == [None, exhausted, None, None, settled, unknown, None, None, exhausted]
        assert balances(ledger) == {
            DATASET: (100, 310),
            ACME: (100, 310),
            ZETA: (0, 0),
            ALICE: (100, 300),
            BOB: (0, 10),
        }
        assert ledger.head().seq == before.seq + 5
        assert [r.reservation_id for r in ledger.open_reservations()] == ["fits-now", "b"]
        assert ledger.verify(before).ok

    def test_a_scope_opened_and_used_in_one_transaction_is_there(self, ledger: Any) -> None:
        new = (tenant_scope("other", "t"), dataset_scope("other"))
        outcomes = ledger._run_batch(
            lambda: [
                OpenScope(new[0], 1.0, 0.1, 0, 10, "a"),  # too early: its parent is not there
                OpenDataset("other", 2.0, "dp", "a"),
                OpenScope(new[1], 1.0, 0.1, 0, 10, "a"),
                OpenScope(new[0], 1.0, 0.1, 0, 5, "a"),
                Reserve("r", new, 6, 60_000_000, "o", {}, False, None),
                Reserve("r", new, 5, 60_000_000, "o", {}, False, None),
            ]
        )
        refusals = [type(o.error) if o.error else None for o in outcomes]
        assert refusals == [errors.UnknownScope, None, None, None, errors.BudgetExhausted, None]
        assert [(s.scope_id, s.reserved) for s in ledger.statements(new[0])] == [(new[0], 5), (new[1], 5)]

    def test_an_operation_that_fails_in_an_unforeseen_way_fails_alone(self, ledger: Any) -> None:
        class Odd(Grant):
            def apply(self, work: Any, now_us: int) -> Any:
                super().apply(work, now_us)
                raise ZeroDivisionError

        good = Grant(ACME, 1, "more", "officer")
        outcomes = ledger._run_batch(lambda: [good, Odd(ACME, 100, "more", "officer"), good])
        assert [type(outcome.error) for outcome in outcomes] == [type(None), ZeroDivisionError, type(None)]
        assert ledger.statement(ACME).granted == 602

    def test_one_of_many_threads_gets_the_last_of_a_budget(self, ledger: Any) -> None:
        def work(k: int) -> str:
            try:
                reserve(ledger, f"r-{k}", 300)
            except LedgerError as error:
                return type(error).__name__
            return "reserved"

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(work, range(8)))
        assert sorted(outcomes) == ["BudgetExhausted"] * 7 + ["reserved"]

    def test_an_audit_takes_an_anchor_and_misses_one_that_is_not_there(self, ledger: Any) -> None:
        anchor = ledger.head()
        reserve(ledger, "r", 10)
        assert ledger.verify(anchor).ok
        assert not ledger.verify(JournalHead(anchor.seq, "0" * 64)).ok

    # Releasing and forfeiting

    def test_a_release_returns_everything(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        closed = ledger.release("r", owner="host-1", reason="worker is down")
        assert (closed.state, closed.charge) == ("released", 0)
        assert balances(ledger)[ALICE] == balances(ledger)[DATASET] == (0, 0)
        assert [s.released for s in ledger.statements(ALICE)] == [1, 1, 1]

    def test_only_the_owner_releases(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        error = self.refuses(
            ledger, errors.ReleaseRefused, lambda: ledger.release("r", owner="host-2", reason="not mine")
        )
        assert error.reason == "owner"

    def test_nothing_is_released_once_it_was_scored(self, ledger: Any) -> None:
        reserve(ledger, "marked", 10)
        assert ledger.mark_scored("marked").scored
        reserve(ledger, "raised", 10)
        ledger.raise_reservation("raised", 10)
        reserve(ledger, "at-once", 10, scored=True)
        for name in ("marked", "raised", "at-once"):
            error = self.refuses(
                ledger,
                errors.ReleaseRefused,
                partial(ledger.release, name, owner="host-1", reason="x"),
            )
            assert error.reason == "scored"
        head = ledger.head()
        ledger.mark_scored("marked")
        assert ledger.head() == head

    def test_a_forfeit_spends_the_worst_case(self, ledger: Any) -> None:
        reserve(ledger, "r", 100)
        ledger.raise_reservation("r", 120)
        closed = ledger.forfeit("r", reason="worker died")
        assert (closed.state, closed.charge) == ("forfeited", 120)
        assert [(s.spent, s.reserved, s.forfeited) for s in ledger.statements(ALICE)] == [(120, 0, 1)] * 3

    def test_expired_leases_are_forfeited_and_others_are_not(self, ledger: Any, clock: Clock) -> None:
        reserve(ledger, "short", 10, lease_seconds=5)
        reserve(ledger, "scored", 20, lease_seconds=5, scored=True)
        reserve(ledger, "long", 40, lease_seconds=50)
        assert ledger.forfeit_expired() == ()
        clock.advance(5)
        late = ledger.forfeit_expired()
        assert {(r.reservation_id, r.state, r.charge) for r in late} == {
            ("short", "forfeited", 10),
            ("scored", "forfeited", 20),
        }
        assert balances(ledger)[DATASET] == (30, 40)
        self.refuses(ledger, errors.AlreadyForfeited, lambda: ledger.settle("short", 1))
        assert len(ledger.forfeit_expired(clock.now_us + 10**9)) == 1

    def test_many_expired_leases_are_all_forfeited(self, ledger: Any, clock: Clock) -> None:
        for k in range(300):
            reserve(ledger, f"r-{k}", 1)
        clock.advance(61)
        assert len(ledger.forfeit_expired()) == 300
        assert balances(ledger)[ALICE] == (300, 0)

    def test_an_expired_lease_that_nobody_forfeited_can_be_settled(self, ledger: Any, clock: Clock) -> None:
        reserve(ledger, "r", 10, lease_seconds=5)
        clock.advance(100)
        assert ledger.settle("r", 3).charge == 3
        assert ledger.forfeit_expired() == ()

    def test_a_lease_can_be_extended_but_not_shortened(self, ledger: Any, clock: Clock) -> None:
        made = reserve(ledger, "r", 10, lease_seconds=60)
        assert ledger.extend_lease("r", 30) == made
        clock.advance(40)
        assert ledger.extend_lease("r", 30).expires_us == clock.now_us + 30_000_000
        clock.advance(29)
        assert ledger.forfeit_expired() == ()

    def test_a_clock_that_falls_back_refunds_nothing(self, ledger: Any, clock: Clock) -> None:
        reserve(ledger, "r", 10, lease_seconds=5)
        clock.advance(-3600)
        assert ledger.forfeit_expired() == ()
        assert balances(ledger)[ALICE] == (0, 10)
        reserve(ledger, "s", 10, lease_seconds=5)
        clock.advance(6)
        assert [r.reservation_id for r in ledger.forfeit_expired()] == ["s"]

    def test_a_details_value_comes_back_from_an_equal_request_only(self, ledger: Any) -> None:
        facts = {"sigma": 0.1 + 0.2, "rule": "privitp é \u2028", "low": -(2**63), "zero": 0}
        made = reserve(ledger, "r", 1, details=facts)
        assert reserve(ledger, "r", 1, details=dict(reversed(facts.items()))) == made
        self.refuses(
            ledger, errors.ReservationConflict, lambda: reserve(ledger, "r", 1, details=facts | {"sigma": 0.3})
        )

    def test_reads_of_a_chain_are_leaf_first(self, ledger: Any) -> None:
        assert [s.kind for s in ledger.statements(ALICE)] == ["user", "tenant", "dataset"]
        assert [s.parent for s in ledger.statements(ALICE)] == [ACME, DATASET, None]
        assert [s.scope_id for s in ledger.list_scopes()] == [DATASET, ACME, ZETA, ALICE, BOB]


class TestSqliteLedger(LedgerContract):
    @pytest.fixture
    def ledger(self, tmp_path: Path, clock: Clock) -> Iterator[SqliteLedger]:
        opened = SqliteLedger(tmp_path / "ledger.db", create=True, clock_us=clock)
        yield opened
        opened.close()
