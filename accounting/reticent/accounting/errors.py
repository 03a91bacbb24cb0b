"""Errors of the accounting package. Every one carries the values that explain it, and none of them is private."""

from __future__ import annotations

import math

__all__ = [
    "AccountingError",
    "BudgetTooSmallError",
    "CalibrationError",
    "InvalidQuantityError",
    "NoiseError",
    "require_finite",
    "require_integer",
    "require_non_negative",
    "require_positive",
]


class AccountingError(Exception):
    """Base of all errors of `reticent.accounting`."""


class InvalidQuantityError(AccountingError, ValueError):
    """A quantity lies outside the range in which the formula means anything.

    `name` is the argument, `value` what was given, `requirement` the range in words.
    """

    def __init__(self, name: str, value: object, requirement: str) -> None:
        self.name = name
        self.value = value
        self.requirement = requirement
        super().__init__(f"{name} must be {requirement}, got {value!r}")


class BudgetTooSmallError(AccountingError, ValueError):
    """A budget `epsilon` does not exceed the filter's `overhead` (both in nats), so that nothing could be spent."""

    def __init__(self, epsilon: float, overhead: float, order: float, delta: float) -> None:
        self.epsilon = epsilon
        self.overhead = overhead
        self.order = order
        self.delta = delta
        super().__init__(
            f"a budget of {epsilon:g} nats does not exceed the overhead of {overhead:g} nats "
            f"at order {order:g} and delta {delta:g}; take a larger budget or a larger order"
        )


class CalibrationError(AccountingError, RuntimeError):
    """No noise scale within the searched range satisfies (`epsilon`, `delta`)."""

    def __init__(self, epsilon: float, delta: float, searched: str) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.searched = searched
        super().__init__(f"no scale for epsilon {epsilon:g}, delta {delta:g} in {searched}")


class NoiseError(AccountingError, RuntimeError):
    """The exact sampler refused its input. Its message does not repeat the scores."""


def require_finite(name: str, value: float) -> float:
    """`value` as a float if it is finite, `InvalidQuantityError` otherwise."""
    number = float(value)
    if not math.isfinite(number):
        raise InvalidQuantityError(name, value, "a finite number")
    return number


def require_integer(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """`value` if it is an int (no bool) with low ≤ value ≤ high, `InvalidQuantityError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidQuantityError(name, value, "an integer")
    if (low is not None and value < low) or (high is not None and value > high):
        limits = " and ".join(
            [*([f"at least {low}"] if low is not None else []), *([f"at most {high}"] if high is not None else [])]
        )
        raise InvalidQuantityError(name, value, f"an integer of {limits}")
    return value


def require_positive(name: str, value: float) -> float:
    """`value` as a float if it is finite and above 0, `InvalidQuantityError` otherwise."""
    number = float(value)
    if not (math.isfinite(number) and number > 0.0):
        raise InvalidQuantityError(name, value, "finite and above 0")
    return number


def require_non_negative(name: str, value: float) -> float:
    """`value` as a float if it is finite and at least 0, `InvalidQuantityError` otherwise."""
    number = float(value)
    if not (math.isfinite(number) and number >= 0.0):
        raise InvalidQuantityError(name, value, "finite and at least 0")
    return number
