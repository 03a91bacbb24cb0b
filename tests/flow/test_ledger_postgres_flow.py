"""Replicas on one PostgreSQL ledger: they spend one budget, never more, also while the server is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reticent.accounting import ledger_errors as errors
from reticent.accounting.ledger import dataset_scope, tenant_scope, user_scope

pytest.importorskip("psycopg")

from reticent.accounting.store.postgres import PostgresLedger
from tests.fakes.postgres import running_server

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer

USER = user_scope("demo", "acme", "alice")
CHILD = Path(__file__).with_name("postgres_child.py")


@pytest.fixture
def own_server(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """A server that this test may kill."""
    with running_server(postgres_binaries) as server:
        yield server


def new_ledger(url: str, budget: int = 10**9) -> PostgresLedger:
    ledger = PostgresLedger(url, create=True)
    ledger.open_dataset("demo", 2.5, "dp")
    for scope in (dataset_scope("demo"), tenant_scope("demo", "acme"), USER):
        ledger.open_scope(scope, epsilon=1.0, delta=0.01, overhead=0, granted=budget)
    return ledger


def together(*commands: tuple[object, ...]) -> list[int]:
    """Start a child for each, let them all go at once, and return the numbers that they print."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for command in commands
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return [int(child.communicate(timeout=120)[0]) for child in children]


def test_2_processes_of_8_threads_spend_exactly_the_budget(postgres_url: str) -> None:
    budget, charge = 4000, 7
    ledger = new_ledger(postgres_url, budget)
    counts = together(*(("hammer", postgres_url, f"p{k}", charge, 8) for k in range(2)))
    assert sum(counts) == budget // charge
    assert min(counts) > 0
    assert {(s.spent, s.reserved, s.open) for s in ledger.list_scopes()} == {(budget // charge * charge, 0, 0)}
    assert ledger.verify().findings == ()
    ledger.close()


def test_expired_batches_of_2_processes_do_not_wait_for_each_other(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    ledger = new_ledger(postgres_url)
    names = [f"r{k}" for k in range(600)]
    workers = [threading.Thread(target=_reserve_all, args=(ledger, names[k::16])) for k in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(ledger.open_reservations()) == 600
    assert sum(together(("sweep", postgres_url), ("sweep", postgres_url))) == 600
    assert {(s.spent, s.reserved, s.forfeited) for s in ledger.list_scopes()} == {(600, 0, 600)}
    assert ledger.verify().findings == ()
    assert "deadlock" not in postgres_server.log()
    ledger.close()


def _reserve_all(ledger: PostgresLedger, names: list[str]) -> None:
    for name in names:
        ledger.reserve(name, USER, 1, lease_seconds=0.001, owner="o")


class Replica:
    """Threads that reserve and settle until told to stop, and keep what was acknowledged, as an answer's log would."""

    def __init__(self, url: str, name: str, threads: int) -> None:
        self.ledger = PostgresLedger(url)
        self.name = name
        self.stop = threading.Event()
        self.answers: dict[str, int] = {}
        self.unavailable = 0
        self.failures: list[BaseException] = []
        self.threads = [threading.Thread(target=self._guarded, args=(k,)) for k in range(threads)]

    def _guarded(self, k: int) -> None:
        try:
            self._work(k)
        except BaseException as failure:  # noqa: BLE001  -- shown by the test itself
            self.failures.append(failure)

    def _work(self, k: int) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            request, charge = f"{self.name}-{k}-{number}", 1 + number % 100
            try:
                self.ledger.reserve(request, USER, 100, lease_seconds=600, owner=self.name)
                self.ledger.settle(request, charge)
            except errors.LedgerUnavailable:
                self.unavailable += 1
            else:
                self.answers[request] = charge


def load_while_killed(server: PostgresServer, kills: int, pause: float) -> tuple[list[Replica], PostgresLedger]:
    url = server.new_database()
    ledger = new_ledger(url)
    replicas = [Replica(url, name, 6) for name in "ab"]
    for replica in replicas:
        for thread in replica.threads:
            thread.start()
    for _ in range(kills):
        time.sleep(pause)
        server.kill()
        server.start()
    time.sleep(pause)
    for replica in replicas:
        replica.stop.set()
        for thread in replica.threads:
            thread.join(timeout=60)
        replica.ledger.close()
    return replicas, ledger


def check_answers(replicas: list[Replica], ledger: PostgresLedger) -> None:
    """Every acknowledged settlement is there at its charge, and the auditor finds nothing."""
    for replica in replicas:
        assert replica.failures == []
        assert replica.answers
        for request, charge in replica.answers.items():
            found = ledger.reservation(request)
            assert (found.state, found.charge) == ("settled", charge)
    assert ledger.verify().findings == ()
    assert ledger.statement(USER).spent >= sum(sum(replica.answers.values()) for replica in replicas)
    ledger.close()


def test_a_killed_server_loses_no_acknowledged_settlement(own_server: PostgresServer) -> None:
    check_answers(*load_while_killed(own_server, kills=2, pause=0.5))


def test_an_outcome_that_nobody_can_tell_is_called_unknown(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = own_server.new_database()
    new_ledger(url).close()
    ledger = PostgresLedger(url, connect_seconds=0.2)
    writer = ledger._writer
    assert writer is not None
    execute = writer.execute

    def kill_first(query: str, *rest: object) -> object:
        if query == "COMMIT":
            own_server.kill()
        return execute(query, *rest)  # type: ignore[call-overload]

    monkeypatch.setattr(writer, "execute", kill_first)
    with pytest.raises(errors.LedgerUnavailable, match="unknown outcome") as caught:
        ledger.reserve("r", USER, 1, lease_seconds=60, owner="o")
    assert caught.value.outcome == "unknown"
    with pytest.raises(errors.LedgerUnavailable):
        ledger.statement(USER)
    own_server.start()
    assert ledger.reserve("r", USER, 1, lease_seconds=60, owner="o").state == "open"
    assert ledger.verify().findings == ()
    ledger.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_server_that_is_gone_leaves_nothing_behind(postgres_binaries: Path, killed: bool) -> None:
    with running_server(postgres_binaries) as server:
        assert server.process is not None
        pid = server.process.pid
        shared = int((server.data / "postmaster.pid").read_text().splitlines()[6].split()[1])
        assert shared in shared_memory()
        if killed:
            server.kill()
    assert not server.folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert shared not in shared_memory()


def shared_memory() -> set[int]:
    """Ids of the machine's System V segments."""
    return {int(line.split()[1]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.mark.simulation
def test_20_kills_of_the_server(own_server: PostgresServer) -> None:
    check_answers(*load_while_killed(own_server, kills=20, pause=0.3))
