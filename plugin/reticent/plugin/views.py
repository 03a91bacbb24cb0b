"""What of a scope's account is shown to whom.

A tenant sees its own and its users' accounts exactly: what they tell, its own budget has paid for. The data set's
account moves with other tenants' charges, and a realised charge of PrivITP tells the halting time and the threshold of
somebody else's answer. So a tenant sees of it only hundredths of what was granted; the operator sees all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reticent.accounting.ledger import Statement

__all__ = ["account", "remaining", "shown_remaining"]

_STEPS = 100


def shown_remaining(statement: Statement) -> float:
    """What a tenant is told is left, in nats: exact for its own scopes, rounded down for the data set's."""
    return _remaining(statement) / 1e9


def remaining(statements: Sequence[Statement]) -> dict[str, float]:
    """What a tenant is told is left in a scope and its parents, in nats, by kind of scope."""
    return {statement.kind: shown_remaining(statement) for statement in statements}


def account(statement: Statement, *, operator: bool) -> dict[str, Any]:
    """A scope's account for a tenant, or for the operator."""
    exact = operator or statement.kind != "dataset"
    return {
        "kind": statement.kind,
        "scope": statement.scope_id,
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "guaranteed_epsilon": statement.guaranteed / 1e9,
        "void": statement.void,
        "granted": statement.granted / 1e9,
        "spent": statement.spent / 1e9 if exact else None,
        "reserved": statement.reserved / 1e9 if exact else None,
        "remaining": (statement.remaining if exact else _remaining(statement)) / 1e9,
    }


def _remaining(statement: Statement) -> int:
    if statement.kind != "dataset":
        return statement.remaining
    step = max(1, statement.granted // _STEPS)
    return statement.remaining // step * step
