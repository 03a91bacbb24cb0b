"""Amounts of privacy loss: integers of 1e-9 nat.

Charges and reservations are rounded up, budgets and what may be spent are rounded down, so that a sum of integers
never promises more than the real numbers behind it (privacy.md, section 6). The conversion of a float is exact:
a float is a fraction, and the fraction is rounded once, in the direction that the name says.
"""

from __future__ import annotations

import math
from fractions import Fraction

from reticent.accounting.errors import InvalidQuantityError, require_integer, require_non_negative

__all__ = ["NANO_PER_NAT", "float_rounded_up", "to_nano_rounded_down", "to_nano_rounded_up", "to_nats"]

NANO_PER_NAT = 10**9
"""Ledger units in one nat."""


def to_nano_rounded_up(nats: float) -> int:
    """Smallest integer of 1e-9 nat that is at least `nats`.

    `nats` is a finite number, at least 0; NaN, infinities and negative numbers raise `InvalidQuantityError`.
    """
    return math.ceil(Fraction(require_non_negative("nats", nats)) * NANO_PER_NAT)


def to_nano_rounded_down(nats: float) -> int:
    """Largest integer of 1e-9 nat that is at most `nats`; same range and errors as `to_nano_rounded_up`."""
    return math.floor(Fraction(require_non_negative("nats", nats)) * NANO_PER_NAT)


def to_nats(nano: int) -> float:
    """Nats of an amount, the nearest float: for people to read, not to add up. `nano` may be negative."""
    return float(Fraction(require_integer("nano", nano), NANO_PER_NAT))


def float_rounded_up(value: Fraction) -> float:
    """Smallest float that is at least the fraction `value`. `InvalidQuantityError` if there is no finite one."""
    try:
        nearest = float(value)
    except OverflowError:
        raise InvalidQuantityError("value", value, "within the range of floats") from None
    if Fraction(nearest) >= value:
        return nearest
    above = math.nextafter(nearest, math.inf)
    if not math.isfinite(above):
        raise InvalidQuantityError("value", value, "within the range of floats")
    return above
