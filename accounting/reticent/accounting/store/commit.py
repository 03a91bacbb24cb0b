"""Group commit, the same for every store: callers that wait at the same time share one durable transaction.

The first caller that finds nobody writing leads: it takes everything that waits, its own operation first, has it
applied and committed, and wakes each caller with its own result or its own refusal. Then the first of those who came
meanwhile leads. A caller alone writes at once and in its own thread.

What waits is taken when the transaction holds the store, not before: whoever comes while another process has it is
still in time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from reticent.accounting.ledger_errors import LedgerDamaged, LedgerUnavailable
from reticent.accounting.store.operations import Operation
from reticent.accounting.store.rows import Rows, Wanted
from reticent.accounting.store.work import UnitOfWork

__all__ = ["MOST_BYTES_TOGETHER", "MOST_TOGETHER", "GroupCommitter", "Outcome", "RunBatch", "apply_all"]

MOST_TOGETHER: Final = 256
"""Most operations of one transaction."""

MOST_BYTES_TOGETHER: Final = 8 * 2**20
"""Most bytes of recorded answers in one transaction of several operations."""

T = TypeVar("T")

RunBatch = Callable[[Callable[[], list[Operation[Any]]]], "list[Outcome[Any]]"]


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What an operation returned, or the error that refused it."""

    value: T | None
    error: Exception | None


def apply_all(rows: Rows, operations: Sequence[Operation[Any]], now_us: int) -> list[Outcome[Any]]:
    """Apply the operations in order and write what they changed; the caller commits.

    An operation that raises is undone, and refused alone. An error of the store itself passes through: then nothing
    of the transaction may be committed.
    """
    work = UnitOfWork(rows, now_us)
    wanted = Wanted()
    for operation in operations:
        operation.foresee(wanted)
    work.prefetch(wanted)
    outcomes = [_outcome(work, operation, now_us) for operation in operations]
    changes = work.changes()
    if changes is not None:
        rows.write(changes)
    return outcomes


def _outcome(work: UnitOfWork, operation: Operation[T], now_us: int) -> Outcome[T]:
    work.begin()
    try:
        return Outcome(operation.apply(work, now_us), None)
    except Exception as error:
        if work.store_failed:
            raise
        # Also an error that nobody thought of: it concerns this caller, and must not refuse the others.
        work.undo()
        return Outcome(None, error)


class _Call:
    """An operation that waits, and what became of it."""

    __slots__ = ("appointed", "operation", "outcome", "signal")

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.outcome: Outcome[Any] | None = None
        self.appointed = False
        self.signal = threading.Lock()  # a plain lock wakes its one waiter faster than a condition does
        self.signal.acquire()


class GroupCommitter:
    """Applies operations of many threads in few transactions.

    Args:
        run_batch: begins a transaction, then calls what it is given for the operations, applies them, and returns
            their outcomes when they are durable. It is never called by two threads at once. If it raises, nothing is
            known of any operation of the batch but what a `LedgerUnavailable` says.
    """

    def __init__(self, run_batch: RunBatch) -> None:
        self._run_batch = run_batch
        self._mutex = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._led = False

    def submit(self, operation: Operation[T]) -> T:
        """Apply the operation; return its result, or raise its error, once that is durable.

        Raises:
            LedgerUnavailable: the transaction failed; see there for what that means.
        """
        call = _Call(operation)
        with self._mutex:
            self._waiting.append(call)
            if not self._led:
                self._led = call.appointed = True
        try:
            if not call.appointed:
                call.signal.acquire()
            if call.outcome is None:
                self._lead(call)
        except BaseException:
            # Interrupted while it waited, or while it led.
            self._withdraw(call)
            raise
        return cast(T, _result(call))

    def _withdraw(self, call: _Call) -> None:
        """Drop what is not being written yet, and let another lead if it was this one's turn."""
        with self._mutex:
            if call in self._waiting:
                self._waiting.remove(call)
            if call.appointed:
                self._pass_on(call)

    def _lead(self, call: _Call) -> None:
        batch: list[_Call] = []

        def take() -> list[Operation[Any]]:
            batch.extend(self._take())
            return [member.operation for member in batch]

        try:
            outcomes = self._run_batch(take)
            for member, outcome in zip(batch, outcomes, strict=True):
                member.outcome = outcome
        except BaseException as error:
            if not batch:
                take()  # nobody shall wait for the store once more, after all who were here before
            for member in batch:
                if member.outcome is None:
                    member.outcome = Outcome(None, _failure(error))
            if not isinstance(error, LedgerUnavailable):
                raise
        finally:
            for member in batch:
                if member is not call:
                    member.signal.release()
            with self._mutex:
                self._pass_on(call)

    def _take(self) -> list[_Call]:
        with self._mutex:
            batch = [self._waiting.popleft()]
            if batch[0].operation.alone:
                return batch
            content = batch[0].operation.content
            while self._waiting and len(batch) < MOST_TOGETHER:
                following = self._waiting[0].operation
                content += following.content
                if following.alone or content > MOST_BYTES_TOGETHER:
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _pass_on(self, call: _Call) -> None:
        call.appointed = False
        if self._waiting:
            self._waiting[0].appointed = True
            self._waiting[0].signal.release()
        else:
            self._led = False


def _failure(error: BaseException) -> LedgerUnavailable:
    """The store's error for one of several callers: each raises an exception of its own."""
    kind = LedgerDamaged if isinstance(error, LedgerDamaged) else LedgerUnavailable
    if isinstance(error, LedgerUnavailable):
        mine = kind(str(error), error.outcome)
    else:
        mine = kind(f"the write was broken off: {type(error).__name__}: {error}", "unknown")
    mine.__cause__ = error
    return mine


def _result(call: _Call) -> Any:
    outcome = cast(Outcome[Any], call.outcome)
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
