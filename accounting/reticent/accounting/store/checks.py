"""Checks of arguments, made before a store is touched. Each returns the value it accepts, or raises."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

from reticent.accounting.ledger import MAX_AMOUNT, Details
from reticent.accounting.ledger_errors import InvalidAmount, InvalidArgument

__all__ = [
    "amount",
    "budget_within_epsilon",
    "details",
    "identifier",
    "lease_us",
    "microseconds",
    "moment_us",
    "number_in",
    "text",
]

_MAX_LEASE_SECONDS: Final = 7 * 24 * 3600.0
_MAX_DETAILS: Final = 32
_MAX_TEXT: Final = 512
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_IDENTIFIER = re.compile(r"[!-~]{1,128}")


def amount(argument: str, value: int, *, least: int = 0) -> int:
    """An integer of 1e-9 nat in [least, 2^62]. A bool, a float, or an array's scalar is not one."""
    if type(value) is not int or not least <= value <= MAX_AMOUNT:
        raise InvalidAmount(argument, f"an int from {least} to 2^62, in 1e-9 nat")
    return value


def text(argument: str, value: object, *, longest: int = _MAX_TEXT) -> str:
    """A text of 1 to ``longest`` characters without control characters or halves of surrogate pairs."""
    if isinstance(value, str) and 1 <= len(value) <= longest and _UNPRINTABLE.search(value) is None:
        return value
    raise InvalidArgument(argument, f"1 to {longest} characters, no control characters")


def identifier(argument: str, value: object) -> str:
    """A reservation's id or owner: 1 to 128 printable ASCII characters, no spaces."""
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None:
        raise InvalidArgument(argument, "1 to 128 printable ASCII characters without spaces")
    return value


def number_in(argument: str, value: float, low: float, high: float) -> float:
    """A finite number strictly between ``low`` and ``high``, as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(argument, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and low < number < high):
        raise InvalidArgument(argument, f"a finite number above {low:g} and below {high:g}")
    return number


def lease_us(value: float) -> int:
    """A lease in seconds, above 0 and below a week, as microseconds rounded up."""
    return microseconds("lease_seconds", value, _MAX_LEASE_SECONDS)


def microseconds(argument: str, seconds: float, most: float) -> int:
    """A number of seconds above 0 and below ``most``, as microseconds rounded up."""
    numerator, denominator = number_in(argument, seconds, 0.0, most).as_integer_ratio()
    return -(-numerator * 10**6 // denominator)


def moment_us(argument: str, value: int) -> int:
    """A moment in microseconds since 1970."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise InvalidArgument(argument, "microseconds since 1970, an int")
    return value


def budget_within_epsilon(epsilon: float, overhead: int, granted: int) -> None:
    """``granted`` and ``overhead`` together are at most ε: a caller who forgot to take u off is stopped here.

    ε may have been read as the float it is or as the decimal it is written as; the larger reading is allowed.
    """
    most = max(Fraction(epsilon), Fraction(repr(epsilon))) * 10**9
    if overhead + granted > most:
        raise InvalidAmount("granted", f"granted and overhead together at most epsilon ({epsilon!r} nat)")


def details(value: Details) -> dict[str, str | int | float]:
    """At most 32 public facts: lower-case names; texts, 64-bit integers, finite floats."""
    if not isinstance(value, dict) or len(value) > _MAX_DETAILS:
        raise InvalidArgument("details", f"a dict of at most {_MAX_DETAILS} entries")
    for key, fact in value.items():
        if not isinstance(key, str) or _KEY.fullmatch(key) is None:
            raise InvalidArgument("details", "keys of 1 to 64 of a-z 0-9 _, the first a letter")
        if type(fact) is str:
            text("details", fact)
        elif type(fact) is float:
            if not math.isfinite(fact):
                raise InvalidArgument("details", f"{key}: a finite number")
        elif type(fact) is not int or not -(2**63) <= fact < 2**63:
            raise InvalidArgument("details", f"{key}: a str, a 64-bit int or a finite float")
    return dict(value)
