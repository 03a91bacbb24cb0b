"""Many threads and processes spend one budget: never more than it, and all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from reticent.accounting.ledger import dataset_scope, tenant_scope, user_scope
from reticent.accounting.ledger_errors import BudgetExhausted, LedgerUnavailable
from reticent.accounting.store import SqliteLedger, sqlite
from reticent.accounting.store.commit import GroupCommitter, Outcome
from reticent.accounting.store.operations import Settle
from reticent.accounting.store.rows import Changes
from reticent.accounting.store.sqlite_rows import SqliteRows

USER = user_scope("demo", "acme", "alice")
CHILD = Path(__file__).with_name("ledger_child.py")


def new_ledger(path: Path, *, dataset: int = 10**6, tenant: int = 10**6, user: int = 10**6) -> SqliteLedger:
    ledger = SqliteLedger(path, create=True)
    ledger.open_dataset("demo", 2.5, "dp")
    for scope, granted in ((dataset_scope("demo"), dataset), (tenant_scope("demo", "acme"), tenant), (USER, user)):
        ledger.open_scope(scope, epsilon=1.0, delta=0.01, overhead=0, granted=granted)
    return ledger


def child(*arguments: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def run(k: int) -> None:
        start.wait()
        try:
            work(k)
        except BaseException as failure:  # noqa: BLE001  -- shown by the test itself
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.001)


@pytest.mark.parametrize("binding", ["dataset", "tenant", "user"])
def test_16_threads_spend_exactly_the_budget(tmp_path: Path, binding: str) -> None:
    budget, charge = 1000, 7
    ledger = new_ledger(tmp_path / "ledger.db", **{binding: budget})
    counts = [0] * 16
    refused_by = set()

    def work(k: int) -> None:
        while True:
            try:
                ledger.reserve(f"{k}-{counts[k]}", USER, charge, lease_seconds=60, owner="o")
            except BudgetExhausted as error:
                refused_by.add(error.scope_kind)
                return
            ledger.settle(f"{k}-{counts[k]}", charge)
            counts[k] += 1

    in_threads(16, work)
    assert sum(counts) == budget // charge
    assert refused_by == {binding}
    assert {(s.spent, s.reserved) for s in ledger.list_scopes()} == {(budget // charge * charge, 0)}
    assert ledger.verify().ok
    ledger.close()


def test_4_processes_spend_exactly_the_budget(tmp_path: Path) -> None:
    budget, charge = 2000, 7
    ledger = new_ledger(tmp_path / "ledger.db", tenant=budget)
    children = [child("hammer", tmp_path / "ledger.db", f"p{k}", charge) for k in range(4)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    counts = [int(process.communicate("go\n", timeout=60)[0]) for process in children]
    assert sum(counts) == budget // charge
    assert {(s.spent, s.reserved) for s in ledger.list_scopes()} == {(budget // charge * charge, 0)}
    assert ledger.verify().ok
    ledger.close()


def test_4_processes_may_make_the_same_ledger_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom reticent.accounting.store import SqliteLedger\n"
        "sys.stdin.readline()\n"
        "ledger = SqliteLedger(sys.argv[1], create=True)\n"
        "print(ledger.open_dataset('demo', 2.5, 'dp').existed)\n"
        "ledger.close()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "ledger.db")]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(4)
    ]
    answers = [process.communicate("go\n", timeout=60)[0].strip() for process in children]
    assert sorted(answers) == ["False", "True", "True", "True"]
    ledger = SqliteLedger(tmp_path / "ledger.db")
    assert (ledger.head().seq, ledger.verify().ok) == (2, True)
    ledger.close()


def test_one_reservation_is_settled_by_one_of_16_threads(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path / "ledger.db")
    outcomes: list[Any] = [None] * 16

    # All reserve before any settles: a closed reservation is not handed out.
    reserved = threading.Barrier(16)

    def both(k: int) -> None:
        ledger.reserve("r", USER, 100, lease_seconds=60, owner="o")
        reserved.wait()
        try:
            outcomes[k] = ledger.settle("r", 40 + k).charge
        except Exception as error:  # noqa: BLE001  -- looked at below
            outcomes[k] = type(error).__name__

    in_threads(16, both)
    charges = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(charges) == 1
    assert outcomes.count("AlreadySettled") == 15
    assert {(s.spent, s.open, s.settled) for s in ledger.list_scopes()} == {(charges[0], 0, 1)}
    ledger.close()


def test_32_threads_share_transactions_and_each_gets_its_own_outcome(tmp_path: Path) -> None:
    """While one waits for the store, 32 come; then all are written together, refused ones among them."""
    ledger = new_ledger(tmp_path / "ledger.db", user=20 * 7)
    batches: list[int] = []
    run = ledger._committer._run_batch

    def counted(take: Callable[[], list[Any]]) -> list[Any]:
        batches.append(-1)

        def take_and_count() -> list[Any]:
            taken = take()
            batches[-1] = len(taken)
            return taken

        return run(take_and_count)

    ledger._committer._run_batch = counted
    outcomes: dict[int, str] = {}

    def work(k: int) -> None:
        try:
            outcomes[k] = ledger.reserve(f"r-{k}", USER, 7, lease_seconds=60, owner=f"o-{k}").owner
        except BudgetExhausted as error:
            outcomes[k] = f"{error.requested} of {error.available}"

    blocker = threading.Thread(target=work, args=(99,))
    with ledger._write_lock:
        blocker.start()
        wait_until(lambda: batches == [-1])  # it has begun, and has taken nothing yet
        threads = [threading.Thread(target=work, args=(k,)) for k in range(32)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(ledger._committer._waiting) == 33)
    for thread in (blocker, *threads):
        thread.join()
    assert batches == [33]
    assert sorted(outcomes.values()) == sorted(
        [f"o-{k}" for k in outcomes if outcomes[k] == f"o-{k}"] + ["7 of 0"] * 13
    )
    assert {(s.reserved, s.open) for s in ledger.list_scopes()} == {(140, 20)}
    assert ledger.verify().ok
    ledger.close()


def test_a_failed_commit_fails_every_call_that_shared_it_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = new_ledger(tmp_path / "ledger.db")
    before = (ledger.head(), ledger.list_scopes())
    errors: list[LedgerUnavailable] = []

    def work(k: int) -> None:
        try:
            ledger.reserve(f"r-{k}", USER, 7, lease_seconds=60, owner="o")
        except LedgerUnavailable as error:
            errors.append(error)

    def failing(rows: SqliteRows, changes: Changes) -> None:
        write(rows, changes)
        raise apsw.IOError("the disk is gone")

    write = SqliteRows.write
    monkeypatch.setattr(SqliteRows, "write", failing)
    in_threads(16, work)
    assert len(errors) == len({id(error) for error in errors}) == 16
    assert {error.outcome for error in errors} == {"nothing_written"}
    assert (ledger.head(), ledger.list_scopes(), ledger.open_reservations()) == (*before, ())
    monkeypatch.undo()
    work(0)
    assert (len(errors), ledger.reservation("r-0").state) == (16, "open")
    ledger.close()


def test_a_commit_that_fails_is_of_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new_ledger(tmp_path / "ledger.db")

    def failing(writer: apsw.Connection) -> None:
        writer.set_commit_hook(lambda: True)  # SQLite then ends the COMMIT with an error
        try:
            commit(writer)
        finally:
            writer.set_commit_hook(None)

    commit = sqlite._commit
    monkeypatch.setattr(sqlite, "_commit", failing)
    with pytest.raises(LedgerUnavailable, match="unknown outcome") as caught:
        ledger.reserve("r", USER, 7, lease_seconds=60, owner="o")
    assert caught.value.outcome == "unknown"
    monkeypatch.undo()
    assert ledger.reserve("r", USER, 7, lease_seconds=60, owner="o").state == "open"
    assert ledger.verify().ok
    ledger.close()


def test_a_store_that_cannot_begin_fails_all_who_wait_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one after the other, each after a wait of its own."""
    ledger = new_ledger(tmp_path / "ledger.db")
    begun: list[int] = []

    @contextmanager
    def unavailable() -> Iterator[None]:
        begun.append(1)
        wait_until(lambda: len(ledger._committer._waiting) == 8)
        if begun:
            raise LedgerUnavailable("locked", "nothing_written")
        yield

    monkeypatch.setattr(ledger, "_writing", unavailable)
    outcomes: list[str] = []

    def work(k: int) -> None:
        try:
            ledger.reserve(f"r-{k}", USER, 7, lease_seconds=60, owner="o")
        except LedgerUnavailable as error:
            outcomes.append(error.outcome)

    in_threads(8, work)
    assert begun == [1]
    assert outcomes == ["nothing_written"] * 8
    ledger.close()


def test_recorded_answers_of_one_transaction_are_bounded() -> None:
    """Nine of a mebibyte each are at most eight together, in their order; a small one that came later waits too."""
    batches: list[int] = []
    answers = [b"x" * 2**20] * 9 + [b"x"]

    def run(take: Callable[[], list[Any]]) -> list[Outcome[Any]]:
        if not batches:
            wait_until(lambda: len(committer._waiting) == len(answers))
        taken = take()
        batches.append(len(taken))
        return [Outcome(None, None) for _ in taken]

    committer = GroupCommitter(run)
    threads = []
    for k, answer in enumerate(answers):
        operation = Settle(f"r-{k}", 0, {}, False, answer)
        threads.append(threading.Thread(target=committer.submit, args=(operation,)))
        threads[k].start()
        wait_until(lambda: k + 1 == len(answers) or len(committer._waiting) == k + 1)  # noqa: B023  -- called at once
    for thread in threads:
        thread.join()
    assert batches == [8, 2]


def test_a_writer_that_is_interrupted_passes_the_lead_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new_ledger(tmp_path / "ledger.db")
    outcomes: list[str] = []
    write = SqliteRows.write
    interrupted = threading.Event()

    def interrupt_once(rows: SqliteRows, changes: Changes) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        write(rows, changes)

    monkeypatch.setattr(SqliteRows, "write", interrupt_once)

    def work(k: int) -> None:
        try:
            outcomes.append(ledger.reserve(f"r-{k}", USER, 7, lease_seconds=60, owner="o").state)
        except (KeyboardInterrupt, LedgerUnavailable) as error:
            outcomes.append(type(error).__name__)

    in_threads(16, work)
    assert outcomes.count("KeyboardInterrupt") == 1
    reserved = outcomes.count("open")
    assert reserved + outcomes.count("LedgerUnavailable") == 15
    assert ledger.statement(USER).open == reserved
    assert ledger.reserve("after", USER, 7, lease_seconds=60, owner="o").state == "open"
    ledger.close()


def test_a_ledger_closed_under_its_callers_refuses_them_and_hangs_nobody(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path / "ledger.db")
    settled = [0] * 8

    def work(k: int) -> None:
        try:
            while True:
                ledger.reserve(f"{k}-{settled[k]}", USER, 1, lease_seconds=60, owner="o")
                ledger.settle(f"{k}-{settled[k]}", 1)
                settled[k] += 1
                if k == 0 and settled[k] == 20:
                    ledger.close()
        except LedgerUnavailable:
            pass

    in_threads(8, work)
    again = SqliteLedger(tmp_path / "ledger.db")
    assert again.statement(USER).spent == sum(settled)
    assert again.verify().ok
    again.close()


@pytest.mark.parametrize("together", [1, 4])
def test_processes_with_one_key_make_one_reservation(tmp_path: Path, together: int) -> None:
    ledger = new_ledger(tmp_path / "ledger.db")
    children = [child("claim", tmp_path / "ledger.db", f"p{k}", 40) for k in range(together)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = [int(process.communicate(timeout=60)[0]) for process in children]
    assert sum(counts) == ledger.statement(USER).spent == ledger.statement(USER).settled == 40
    assert ledger.verify().ok
    ledger.close()


class NaiveStore:
    """Checks, then increments: what the ledger's one transaction is there to prevent."""

    def __init__(self, budget: int, between: Callable[[], object]) -> None:
        self.budget = budget
        self.spent = 0
        self.between = between

    def charge(self, amount: int) -> None:
        if self.spent + amount > self.budget:
            raise ValueError("exhausted")
        self.between()
        self.spent += amount


def test_the_twin_that_checks_and_then_increments_overspends() -> None:
    """Both threads have checked before either increments, as will happen sooner or later."""
    together = threading.Barrier(2)
    store = NaiveStore(10, lambda: together.wait(timeout=10))
    in_threads(2, lambda _: store.charge(7))
    assert store.spent == 14 > store.budget
