"""From a charge as computed to what the ledger is asked for: a margin for floating error, then rounded up."""

from __future__ import annotations

from reticent.accounting.units import to_nano_rounded_up

__all__ = ["RELATIVE_MARGIN", "charge_rounded_up"]

RELATIVE_MARGIN = 1e-9
"""Added to every charge before it is rounded up to 1e-9 nat: far above the floating error of the formulas here."""


def charge_rounded_up(nats: float, slack: float = 0.0) -> int:
    """`nats` with a relative margin of 1e-9, and `slack` nats more, rounded up to an integer of 1e-9 nat."""
    return to_nano_rounded_up(nats * (1.0 + RELATIVE_MARGIN) + slack)
