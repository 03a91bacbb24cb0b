"""Keeps the worker's process running: a crash is followed by a new start, a crash loop by a pause."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from .breaker import CircuitBreaker
from .errors import WorkerError

__all__ = ["Restartable", "Supervisor"]


class Restartable(Protocol):
    """What is kept running: `WorkerProcess`."""

    @property
    def is_running(self) -> bool: ...

    def restart(self) -> None: ...

    def give_up(self) -> None: ...


class Supervisor:
    """Watches a started worker from a thread and starts it again when it has ended; a context manager.

    Every end and every start that fails counts as a failure. After `failures` of them within `window` the circuit is
    open: nothing is started for `cooldown` seconds, in which requests are refused and cost nothing, then one start is
    tried. It never stops trying, so that a model server that comes back late is found.

    Args:
        worker: started; it must outlive this.
        say: called with a short line at every end, start and pause.
        breaker: counts; by default 3 failures in 5 minutes open it for 2 minutes.
        interval: seconds between looks.
    """

    def __init__(
        self,
        worker: Restartable,
        say: Callable[[str], None] = lambda line: None,
        *,
        breaker: CircuitBreaker | None = None,
        interval: float = 0.3,
    ) -> None:
        self._worker = worker
        self._say = say
        self._breaker = breaker or CircuitBreaker(failures=3, window=300.0, cooldown=120.0)
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="worker supervisor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._worker.give_up()
        self._thread.join()

    def _watch(self) -> None:
        was_running = True
        while not self._stop.wait(self._interval):
            if self._worker.is_running:
                continue
            if was_running:
                self._failed("the reward worker has ended")
                was_running = False
            if self._breaker.may_try:
                was_running = self._start()

    def _start(self) -> bool:
        try:
            self._worker.restart()
        except (WorkerError, OSError) as error:
            if not self._stop.is_set():
                self._failed(f"the reward worker did not start: {error}")
            return False
        self._say("the reward worker runs again")
        return True

    def _failed(self, what: str) -> None:
        self._breaker.failed()
        self._say(what + ("; it is left alone for a while" if self._breaker.is_open else "; starting it again"))
