"""One server of the chaos drill: it takes requests, every way they can go, until it is killed.

Its threads reserve, raise, settle and answer. *Answering* is a line in a log of this process's own, written and made
durable the moment the answer would leave, and never read by the ledger: what `chaos_check` compares the ledger with.

    answer  RESERVATION CHARGE KEY    an answer left, for this charge; KEY is "-" without an idempotency key
    replay  FOUND RESERVATION CHARGE KEY    a recorded answer left again: found under FOUND, it says RESERVATION CHARGE
    lost    RESERVATION               the ledger does not know a reservation that it had made durable
"""

from __future__ import annotations

import hashlib
import importlib
import json
import mmap
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

from reticent.accounting.drills.places import DATASET
from reticent.accounting.ledger import ClaimRequest, Ledger, user_scope
from reticent.accounting.ledger_errors import (
    AlreadySettled,
    AnswerLost,
    AnswerPending,
    AnswerRecorded,
    BudgetExhausted,
    KeyReused,
    LedgerDamaged,
    LedgerMissing,
    LedgerUnavailable,
    NotALedger,
    ReleaseRefused,
    ReservationClosed,
    UnknownReservation,
)
from reticent.accounting.store.locate import open_ledger

__all__ = ["LARGEST", "LONG_KEY", "STAGES", "Worker", "main"]

STAGES: Final = ("opening", "thinking", "reserve", "raise", "settle", "answer", "release", "forfeit")
"""Where a thread is when it is killed; the index is its byte in the file of stages."""

LONG_KEY: Final = "long"
"""Idempotency keys that begin so are kept for longer than the drill lasts: at most one answer may ever be theirs."""

LARGEST: Final = 150
"""The largest worst case of a new reservation, 1e-9 nat."""

_WAYS: Final = ("settle", "settle", "settle", "settle", "raise", "raise", "release", "forfeit", "drop")
_LEASES: Final = (0.05, 0.5, 5.0)
_KEYS: Final = {LONG_KEY: 86_400.0, "short": 0.2}


class Worker:
    """One thread of a server. The seed decides what it tries; what comes of it, the others and the killer."""

    def __init__(self, ledger: Ledger, task: dict[str, Any], thread: int, log: int, stages: mmap.mmap) -> None:
        self._ledger = ledger
        self._scopes = [user_scope(DATASET, *user.split("/")) for user in task["users"]]
        self._name = f"{task['name']}-{thread}"
        self._owner = task["name"]
        self._draw = Random(f"{task['seed']} {self._name}")  # noqa: S311  -- what to try, not noise
        self._log = log
        self._stages = stages
        self._thread = thread

    def serve(self) -> None:
        """Requests without end."""
        count = 0
        while True:
            self._request(f"{self._name}-{count}", self._draw.choice(_WAYS))
            count += 1

    def _request(self, request: str, way: str) -> None:
        claim = self._claim() if self._draw.random() < 0.5 else None
        worst = self._draw.randint(50, LARGEST)
        if not self._reserve(request, worst, scored=way == "settle", claim=claim):
            return
        self._think()
        try:
            if way in ("settle", "raise"):
                if way == "raise":
                    worst += self._draw.randint(0, 50)
                    self._at("raise")
                    self._ledger.raise_reservation(request, worst)
                    self._think()
                self.finish(request, self._draw.randint(0, worst), claim)
            elif way == "release":
                self._at("release")
                self._ledger.release(request, owner=self._owner, reason="the drill says so")
            elif way == "forfeit":
                self._at("forfeit")
                self._ledger.forfeit(request, reason="the drill says so")
            # "drop": nothing more is done, and the lease forfeits it.
        except UnknownReservation:
            self._write(f"lost {request}")
        except (BudgetExhausted, ReservationClosed, ReleaseRefused):
            pass  # a raise that does not fit; or the sweep came first, and the answer does not leave
        except LedgerUnavailable as error:
            _wait(error)  # left to its lease

    def finish(self, request: str, charge: int, claim: ClaimRequest | None) -> None:
        """Settle, and only then answer."""
        if self.settle(request, charge, claim):
            self.answer(request, charge, claim)

    def settle(self, request: str, charge: int, claim: ClaimRequest | None) -> bool:
        """Whether the answer may leave: this very settlement is durable."""
        self._at("settle")
        answer = f"{request} {charge}".encode() if claim else None
        unknown = False
        while True:
            try:
                self._ledger.settle(request, charge, answer=answer)
            except LedgerUnavailable as error:
                unknown = True
                _wait(error)
            except AlreadySettled as settled:
                # Nobody else settles this thread's requests: it was the try before, whose outcome was unknown.
                if unknown and settled.charge == charge:
                    return True
                raise
            else:
                return True

    def answer(self, request: str, charge: int, claim: ClaimRequest | None) -> None:
        """The answer leaves: from here on it must have been paid for, whatever happens."""
        self._at("answer")
        self._write(f"answer {request} {charge} {claim.key if claim else '-'}")
        os.fsync(self._log)

    def _reserve(self, request: str, worst: int, *, scored: bool, claim: ClaimRequest | None) -> bool:
        self._at("reserve")
        scope, lease = self._draw.choice(self._scopes), self._draw.choice(_LEASES)
        while True:
            try:
                self._ledger.reserve(
                    request, scope, worst, lease_seconds=lease, owner=self._owner, scored=scored, claim=claim
                )
            except LedgerUnavailable as error:
                # It may have been made. A server gives up, or asks again for the very same.
                _wait(error)
                if self._draw.random() < 0.5:
                    return False
            except AnswerRecorded as recorded:
                key = claim.key if claim else "-"
                self._write(f"replay {recorded.reservation_id} {recorded.answer.decode()} {key}")
                return False
            except AnswerPending as pending:
                return pending.reservation_id == request
            except (BudgetExhausted, KeyReused, AnswerLost, ReservationClosed):
                return False
            else:
                return True

    def _claim(self) -> ClaimRequest:
        # Keys of the last seconds: other threads, other servers and those killed before have used them too.
        kind = self._draw.choice(tuple(_KEYS))
        tenth = int(time.time() * 10) - self._draw.randrange(30)
        key = f"{kind}-{tenth}-{self._draw.randrange(10)}"
        body = key if self._draw.random() < 0.95 else "another"
        return ClaimRequest(key, hashlib.sha256(body.encode()).hexdigest(), _KEYS[kind])

    def _at(self, stage: str) -> None:
        self._stages[self._thread] = STAGES.index(stage)

    def _think(self) -> None:
        self._at("thinking")
        time.sleep(0.02 * self._draw.random() ** 4)

    def _write(self, line: str) -> None:
        os.write(self._log, f"{line}\n".encode())


def main(worker: Callable[..., Worker] = Worker) -> None:
    """Play servers, one after the other: for every task, one JSON object a line of standard input, a process is forked
    that serves until it is killed. So each server begins in milliseconds, with everything imported.

    Standard output: ``opening PID``, ``serving``, and ``ended STATUS`` when it was killed.
    """
    for line in sys.stdin:
        task = json.loads(line)
        if "://" in task["location"]:
            importlib.import_module("reticent.accounting.store.postgres")
        child = os.fork()
        if child == 0:
            _or_die(lambda: _serve(task, worker))  # noqa: B023  -- called at once
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


def _serve(task: dict[str, Any], worker: Callable[..., Worker]) -> None:
    print(f"opening {os.getpid()}", flush=True)
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(task["stages"], "r+b") as file:
        stages = mmap.mmap(file.fileno(), 0)
    ledger = _open(task["location"])
    for k in range(task["threads"]):
        threading.Thread(target=_or_die, args=(worker(ledger, task, k, log, stages).serve,), daemon=True).start()
    print("serving", flush=True)
    # The next task comes when this process is gone, so there is something to read only when the supervisor has ended.
    select.select([sys.stdin], [], [])
    os._exit(0)


def _open(location: str) -> Ledger:
    while True:
        try:
            return open_ledger(location)
        except LedgerUnavailable as error:
            _wait(error)


def _wait(error: LedgerUnavailable) -> None:
    """Until the database may be there again; one that came back with less than it had is nothing to wait for."""
    if isinstance(error, LedgerDamaged | LedgerMissing | NotALedger):
        raise error
    time.sleep(0.02)


def _or_die(serve: Callable[[], None]) -> None:
    try:
        serve()
    except BaseException:  # noqa: BLE001  -- the process ends with it
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(70)


if __name__ == "__main__":
    main()
