"""A circuit breaker: after a few failures in a row of time nothing is tried for a while.

It decides about money: a call of the reward worker that fails after it was sent forfeits a reservation, while one that
is not made releases it. Without a breaker a worker that crashes at every request would empty budgets without an answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["CircuitBreaker"]


class CircuitBreaker:
    """Closed until `failures` failures fell within `window` seconds; then open for `cooldown` seconds; then a trial.

    After the cooldown `may_try` is true for a trial: a success closes the breaker, a failure opens it again at once.
    A success in between does not forgive earlier failures: a worker that fails at every other request is broken too.

    Args:
        failures: how many, at least 1.
        window, cooldown: seconds.
        clock: seconds, monotonic.

    Not promised: safety for several threads.
    """

    def __init__(
        self,
        failures: int = 5,
        window: float = 60.0,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if failures < 1 or not window > 0 or not cooldown > 0:
            raise ValueError(f"a breaker needs positive numbers: {failures}, {window}, {cooldown}")
        self._failures = failures
        self._window = window
        self._cooldown = cooldown
        self._clock = clock
        self._failed_at: deque[float] = deque(maxlen=failures)
        self._opened_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has opened and no trial has succeeded since."""
        return self._opened_at is not None

    @property
    def may_try(self) -> bool:
        """Whether something may be tried now; while it `is_open` that is the trial."""
        return self._opened_at is None or self._clock() - self._opened_at >= self._cooldown

    def failed(self) -> None:
        """Note a failure."""
        now = self._clock()
        self._failed_at.append(now)
        full = len(self._failed_at) == self._failures and now - self._failed_at[0] <= self._window
        if full or self._opened_at is not None:
            self._opened_at = now

    def succeeded(self) -> None:
        """Note a success; closes the breaker where it was open."""
        if self._opened_at is not None:
            self._opened_at = None
            self._failed_at.clear()
