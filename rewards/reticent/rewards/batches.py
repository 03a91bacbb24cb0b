"""The worker's queue: one thread that scores whole batches, and the promise that a batch sent away was never scored.

A batch is started or withdrawn, never both. That decides about money on the other side: after a withdrawal the server
releases a reservation whole, and whoever fills the queue makes others wait but does not make them pay.

Batches that wait while another is scored are scored together, as many as fit, where the backend can do that. Nobody
waits for a batch to fill: an idle worker starts at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .encoders.base import Pair, Subject
from .errors import BatchNotStarted
from .ports import PairBackend, RewardBackend
from .worker_metrics import WorkerMetrics

__all__ = ["CANARY_SECONDS", "MAX_TOGETHER", "MAX_WAITING", "Batch", "Canary", "ScoringQueue"]

_LOG = logging.getLogger("reticent.rewards.worker")

MAX_WAITING = 64
"""Most batches in the queue, and most probes that wait for one canary."""
MAX_TOGETHER = 64
"""Most candidates of several requests in one pass. A request of more than these goes alone."""
CANARY_SECONDS = 5.0
"""How long a canary's verdict holds, and how long a canary waits for its start."""
_CANARY = (
    Subject("Passage: Ada has a cat.\n\nQuestion: Which pet has Ada?", "Which pet has Ada?", ("Ada has a cat.",)),
    ("Ada has a cat.", "It is not stated.", ""),
)
_CANARY_TOLERANCE = 1e-3


class Batch:
    """The candidates of one request. They can be taken once, by whoever starts the batch or whoever withdraws it.

    Attributes:
        size: how many candidates there are.
        rewards: what comes of them once they were taken to be scored.
    """

    def __init__(self, subject: Subject, candidates: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._content: tuple[Subject, list[str]] | None = (subject, list(candidates))
        self.size = len(candidates)
        self.rewards: Future[list[float]] = Future()

    def take(self) -> tuple[Subject, list[str]] | None:
        """The content the first time, None ever after. Any thread may call it."""
        with self._lock:
            content, self._content = self._content, None
        return content


class ScoringQueue:
    """One thread that scores whole batches, one after another or several together, and bounds rewards to [0, R].

    Args:
        backend: scores; it is called from this one thread alone.
        metrics: counts; its own by default.
    """

    def __init__(self, backend: RewardBackend, metrics: WorkerMetrics | None = None) -> None:
        self._backend = backend
        self._metrics = metrics or WorkerMetrics()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")
        self._waiting: deque[Batch] = deque()
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
            raise self._refused("full")
        batch = Batch(subject, candidates)
        scored = asyncio.wrap_future(batch.rewards)
        # Read here, since a caller that was cancelled does not: unread, its text would be logged.
        scored.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._waiting.append(batch)
        self._pool.submit(self._run)
        self._open += 1
        self._metrics.waiting.set(self._open)
        try:
            events: list[asyncio.Future[Any]] = [scored] if gone is None else [scored, gone]
            await asyncio.wait(events, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not scored.done() and batch.take() is not None:
                raise self._refused("gone" if gone is not None and gone.done() else "busy")
            return await asyncio.shield(scored)
        finally:
            batch.take()
            self._open -= 1
            self._metrics.waiting.set(self._open)

    def _refused(self, reason: str) -> BatchNotStarted:
        self._metrics.refused.labels(reason=reason).inc()
        return BatchNotStarted(reason)

    def _run(self) -> None:
        """In the scoring thread, once for each batch ever queued; an earlier run may have taken it along."""
        started = self._start_next()
        if not started:
            return
        if len(started) > 1:
            try:
                pairs = [(subject, answer) for _, subject, answers in started for answer in answers]
                rewards = iter(self._bounded(pairs))
            except Exception as error:  # noqa: BLE001 - whatever it was, one of them may score alone
                # Only its type: a text may quote a prompt. None of the others shall fail with the one that is broken.
                _LOG.error("a shared batch failed, its parts are scored alone: %s", type(error).__name__)
            else:
                for batch, _, answers in started:
                    batch.rewards.set_result([next(rewards) for _ in answers])
                return
        for batch, subject, answers in started:
            try:
                batch.rewards.set_result(self._bounded([(subject, answer) for answer in answers]))
            except BaseException as error:  # noqa: BLE001 - belongs to whoever waits
                self._metrics.failures.inc()
                batch.rewards.set_exception(error)

    def _start_next(self) -> list[tuple[Batch, Subject, list[str]]]:
        """The next batch that was not withdrawn and, where the backend takes several, those after it that fit."""
        started: list[tuple[Batch, Subject, list[str]]] = []
        total = 0
        while self._waiting:
            size = self._waiting[0].size
            if started and (total + size > MAX_TOGETHER or not isinstance(self._backend, PairBackend)):
                break
            batch = self._waiting.popleft()
            content = batch.take()
            if content is not None:
                started.append((batch, *content))
                total += size
        return started

    def _bounded(self, pairs: Sequence[Pair]) -> list[float]:
        """Rewards of one pass, in [0, R]."""
        with self._metrics.pass_seconds.time():
            if isinstance(self._backend, PairBackend):
                rewards = self._backend.score_pairs(pairs)
            else:
                rewards = self._backend.score(pairs[0][0], [answer for _, answer in pairs])
        if len(rewards) != len(pairs):
            raise RuntimeError("the backend gave another number of rewards than of candidates")
        self._metrics.candidates.inc(len(pairs))
        top = self._backend.reward_max
        return [min(max(r, 0.0), top) if math.isfinite(r) else 0.0 for r in rewards]

    def close(self) -> None:
        """Start nothing more; what waits is told that it was not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for batch in tuple(self._waiting):
            if batch.take() is not None:
                batch.rewards.set_exception(BatchNotStarted("gone"))


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
