"""The worker's queue: one thread that scores whole batches, and the promise that a batch sent away was never scored.

A batch is started or withdrawn, never both. That decides about money on the other side: after a withdrawal the server
releases a reservation whole, and whoever fills the queue makes others wait but does not make them pay.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .encoders.base import Subject
from .errors import BatchNotStarted
from .ports import RewardBackend

__all__ = ["CANARY_SECONDS", "MAX_WAITING", "Batch", "Canary", "ScoringQueue"]

_LOG = logging.getLogger("reticent.rewards.worker")

MAX_WAITING = 64
"""Most batches in the queue, and most probes that wait for one canary."""
CANARY_SECONDS = 5.0
"""How long a canary's verdict holds, and how long a canary waits for its start."""
_CANARY = (
    Subject("Passage: Ada has a cat.\n\nQuestion: Which pet has Ada?", "Which pet has Ada?", ("Ada has a cat.",)),
    ("Ada has a cat.", "It is not stated.", ""),
)
_CANARY_TOLERANCE = 1e-3


class Batch:
    """The candidates of one request. They can be taken once, by whoever starts the batch or whoever withdraws it."""

    def __init__(self, subject: Subject, candidates: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._content: tuple[Subject, list[str]] | None = (subject, list(candidates))

    def take(self) -> tuple[Subject, list[str]] | None:
        """The content the first time, None ever after. Any thread may call it."""
        with self._lock:
            content, self._content = self._content, None
        return content


class ScoringQueue:
    """One thread that scores whole batches, one after another, and bounds what comes out to [0, R].

    Args:
        backend: scores; it is called from this one thread alone.
    """

    def __init__(self, backend: RewardBackend) -> None:
        self._backend = backend
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")
        self._open = 0

    async def score(
        self,
        subject: Subject,
        candidates: Sequence[str],
        *,
        patience: float | None = None,
        gone: asyncio.Future[None] | None = None,
    ) -> list[float]:
        """Rewards of `candidates`, one each.

        Args:
            subject, candidates: the batch.
            patience: seconds that it may wait for its start; None is forever. Once it has started it takes its time.
            gone: done when nobody waits for the answer any more: a batch that has not started is then dropped.

        Raises:
            BatchNotStarted: surely nothing of it was or will be computed.
            RuntimeError: the backend gave another number of rewards. Whatever else it raises passes through.
        """
        if self._open >= MAX_WAITING:
            raise BatchNotStarted("full")
        batch = Batch(subject, candidates)
        scored = asyncio.get_running_loop().run_in_executor(self._pool, self._run, batch)
        # Read here, since a caller that was cancelled does not: unread, its text would be logged.
        scored.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._open += 1
        try:
            events: list[asyncio.Future[Any]] = [scored] if gone is None else [scored, gone]
            await asyncio.wait(events, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not scored.done() and batch.take() is not None:
                raise BatchNotStarted("gone" if gone is not None and gone.done() else "busy")
            return await scored
        finally:
            batch.take()
            self._open -= 1

    def _run(self, batch: Batch) -> list[float]:
        content = batch.take()
        if content is None:
            return []
        subject, candidates = content
        rewards = self._backend.score(subject, candidates)
        if len(rewards) != len(candidates):
            raise RuntimeError("the backend gave another number of rewards than of candidates")
        top = self._backend.reward_max
        return [min(max(r, 0.0), top) if math.isfinite(r) else 0.0 for r in rewards]

    def close(self) -> None:
        """Start nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Canary:
    """A fixed batch whose rewards must stay what they were at the start.

    However many ask, at most one canary is in the queue, and its verdict holds for a while.

    Args:
        queue: where it is scored.
        seconds: how long a verdict holds.
        clock: seconds, monotonic.
    """

    def __init__(
        self, queue: ScoringQueue, seconds: float = CANARY_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._queue = queue
        self._seconds = seconds
        self._clock = clock
        self._expected: list[float] = []
        self._probe: asyncio.Task[str | None] | None = None
        self._probed_at = -math.inf
        self._waiting = 0

    @property
    def is_known(self) -> bool:
        """Whether it was scored at the start."""
        return bool(self._expected)

    async def begin(self) -> None:
        """Score it for the first time. Raises what the backend raises."""
        self._expected = await self._queue.score(*_CANARY)

    async def problem(self) -> str | None:
        """What is wrong, as a short code without a reward in it; None where all is well."""
        if self._probe is None or (self._probe.done() and self._clock() - self._probed_at >= self._seconds):
            self._probe = asyncio.create_task(self._measure())
        if self._waiting >= MAX_WAITING:
            return "busy"
        self._waiting += 1
        try:
            return await asyncio.shield(self._probe)
        finally:
            self._waiting -= 1

    async def _measure(self) -> str | None:
        try:
            rewards = await self._queue.score(*_CANARY, patience=CANARY_SECONDS)
        except BatchNotStarted:
            return "busy"
        except Exception as error:  # noqa: BLE001 - its text may quote a prompt, so only its type may be logged
            _LOG.error("the canary failed: %s", type(error).__name__)
            return "canary_failed"
        finally:
            self._probed_at = self._clock()
        moved = max(abs(a - b) for a, b in zip(rewards, self._expected, strict=True))
        return "canary_moved" if moved > _CANARY_TOLERANCE else None
