"""What the contract tests of the ledger share: one small world, and a clock that stands still."""

from __future__ import annotations

from typing import Any

import pytest

from reticent.accounting.ledger import dataset_scope, tenant_scope, user_scope

__all__ = ["ACME", "ALICE", "BOB", "DATASET", "FIGURES", "ZETA", "Clock", "balances", "clock", "open_demo", "reserve"]

DATASET = dataset_scope("demo")
ACME = tenant_scope("demo", "acme")
ZETA = tenant_scope("demo", "zeta")
ALICE = user_scope("demo", "acme", "alice")
BOB = user_scope("demo", "acme", "bob")
FIGURES: dict[str, Any] = {"epsilon": 1.0, "delta": 0.01, "overhead": 1000}


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def open_demo(ledger: Any) -> None:
    """Data set 1000, tenants 600 and 600, users 500 and 500."""
    ledger.open_dataset("demo", 3.5, "dp")
    for scope_id, granted in ((DATASET, 1000), (ACME, 600), (ZETA, 600), (ALICE, 500), (BOB, 500)):
        ledger.open_scope(scope_id, granted=granted, **FIGURES)


def reserve(ledger: Any, name: str, worst_case: int, scope_id: str = ALICE, **changes: Any) -> Any:
    arguments = {"lease_seconds": 60, "owner": "host-1", "details": {"rule": "privbon", "candidates": 8}}
    return ledger.reserve(name, scope_id, worst_case, **(arguments | changes))


def balances(ledger: Any) -> dict[str, tuple[int, int]]:
    return {s.scope_id: (s.spent, s.reserved) for s in ledger.list_scopes()}
