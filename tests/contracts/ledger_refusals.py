"""What every store refuses: arguments that are none, and names of what is not there. Nothing is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from reticent.accounting import ledger_errors as errors
from reticent.accounting.ledger import user_scope
from tests.contracts.ledger_claims import ClaimsContract
from tests.contracts.ledger_parts import ACME, reserve

__all__ = ["RefusalsContract"]


class RefusalsContract(ClaimsContract):
    """Inherited by `LedgerContract`."""

    @pytest.mark.parametrize("bad", [-1, True, 1.0, math.nan, 2**62 + 1, 2**200, "1", None])
    def test_an_amount_that_is_not_one_is_refused(self, ledger: Any, bad: Any) -> None:
        reserve(ledger, "r", 10)
        new = user_scope("demo", "acme", "new")
        calls: list[Callable[[], object]] = [
            lambda: reserve(ledger, "bad", bad),
            lambda: ledger.settle("r", bad),
            lambda: ledger.raise_reservation("r", bad),
            lambda: ledger.grant(ACME, bad, reason="a", actor="b"),
            lambda: ledger.open_scope(new, epsilon=1.0, delta=0.1, overhead=0, granted=bad),
            lambda: ledger.open_scope(new, epsilon=1.0, delta=0.1, overhead=bad, granted=0),
        ]
        for call in calls:
            self.refuses(ledger, errors.InvalidAmount, call)
        self.refuses(ledger, errors.InvalidAmount, lambda: ledger.grant(ACME, 0, reason="a", actor="b"))

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1", None, 10**400])
    def test_a_number_out_of_range_is_refused(self, ledger: Any, bad: Any) -> None:
        new = user_scope("demo", "acme", "new")
        calls: list[Callable[[], object]] = [
            lambda: ledger.open_dataset("new", bad, "dp"),
            lambda: ledger.open_scope(new, epsilon=bad, delta=0.1, overhead=0, granted=0),
            lambda: ledger.open_scope(new, epsilon=1.0, delta=bad, overhead=0, granted=0),
            lambda: reserve(ledger, "bad", 1, lease_seconds=bad),
        ]
        for call in calls:
            self.refuses(ledger, errors.InvalidArgument, call)
        self.refuses(ledger, errors.InvalidArgument, lambda: ledger.open_dataset("new", 1.0, "dp"))
        self.refuses(ledger, errors.InvalidArgument, lambda: ledger.open_dataset("new", 2.0, "pure"))

    @pytest.mark.parametrize("bad", ["", "x" * 129, "a b", "a\n", "é", 7, None])
    def test_an_id_that_is_not_one_is_refused(self, ledger: Any, bad: Any) -> None:
        calls: list[Callable[[], object]] = [
            lambda: reserve(ledger, bad, 1),
            lambda: reserve(ledger, "bad", 1, owner=bad),
            lambda: ledger.settle(bad, 1),
            lambda: ledger.raise_reservation(bad, 1),
            lambda: ledger.mark_scored(bad),
            lambda: ledger.forfeit(bad, reason="x"),
            lambda: ledger.release(bad, owner="o", reason="x"),
            lambda: ledger.reservation(bad),
            lambda: ledger.open_dataset(bad, 2.0, "dp"),
            lambda: reserve(ledger, "bad", 1, bad),
            lambda: ledger.statement(bad),
            lambda: ledger.grant(bad, 1, reason="a", actor="b"),
        ]
        for call in calls:
            self.refuses(ledger, errors.InvalidArgument, call)

    @pytest.mark.parametrize("bad", ["", "x" * 513, "a\x00b", "a\nb", "\ud800", 7, None])
    def test_a_reason_that_is_not_one_is_refused(self, ledger: Any, bad: Any) -> None:
        reserve(ledger, "r", 10)
        calls: list[Callable[[], object]] = [
            lambda: ledger.grant(ACME, 1, reason=bad, actor="b"),
            lambda: ledger.grant(ACME, 1, reason="a", actor=bad),
            lambda: ledger.forfeit("r", reason=bad),
            lambda: ledger.release("r", owner="host-1", reason=bad),
        ]
        for call in calls:
            self.refuses(ledger, errors.InvalidArgument, call)

    @pytest.mark.parametrize(
        "bad",
        [
            {"x": math.nan},
            {"x": math.inf},
            {"x": True},
            {"x": None},
            {"x": [1]},
            {"x": 2**63},
            {"x": "a\nb"},
            {"x": "\udc00"},
            {"x": ""},
            {"X": 1},
            {"": 1},
            {1: 1},
            {f"k{k}": k for k in range(33)},
            [("x", 1)],
            "x",
        ],
    )
    def test_details_that_are_not_public_facts_are_refused(self, ledger: Any, bad: Any) -> None:
        reserve(ledger, "r", 10)
        self.refuses(ledger, errors.InvalidArgument, lambda: reserve(ledger, "bad", 1, details=bad))
        self.refuses(ledger, errors.InvalidArgument, lambda: ledger.settle("r", 1, details=bad))

    def test_what_is_not_there_is_named(self, ledger: Any) -> None:
        nobody = user_scope("demo", "acme", "nobody")
        for call in (
            lambda: reserve(ledger, "r", 1, nobody),
            lambda: ledger.statement(nobody),
            lambda: ledger.grant(nobody, 1, reason="a", actor="b"),
        ):
            assert self.refuses(ledger, errors.UnknownScope, call).scope_id == nobody
        for call in (
            lambda: ledger.settle("nothing", 1),
            lambda: ledger.raise_reservation("nothing", 1),
            lambda: ledger.mark_scored("nothing"),
            lambda: ledger.extend_lease("nothing", 1),
            lambda: ledger.release("nothing", owner="o", reason="x"),
            lambda: ledger.forfeit("nothing", reason="x"),
            lambda: ledger.reservation("nothing"),
        ):
            assert self.refuses(ledger, errors.UnknownReservation, call).reservation_id == "nothing"
        assert self.refuses(ledger, errors.UnknownDataset, lambda: ledger.dataset("x")).dataset_id == "x"
