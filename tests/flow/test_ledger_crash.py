"""Servers killed with SIGKILL at random points, then the ledger against an independent log of released answers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reticent.accounting.ledger import dataset_scope, tenant_scope, user_scope
from reticent.accounting.ledger_errors import AlreadyForfeited, AnswerLost
from reticent.accounting.store import SqliteLedger

USER = user_scope("demo", "acme", "alice")
CHILD = Path(__file__).with_name("ledger_child.py")


def new_ledger(path: Path) -> SqliteLedger:
    ledger = SqliteLedger(path, create=True)
    ledger.open_dataset("demo", 2.5, "dp")
    for scope in (dataset_scope("demo"), tenant_scope("demo", "acme"), USER):
        ledger.open_scope(scope, epsilon=1.0, delta=0.01, overhead=0, granted=10**9)
    return ledger


def serve(path: Path, name: str, log: Path, seed: int) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(CHILD), "serve", str(path), name, str(log), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def kill_after(processes: list[subprocess.Popen[str]], seconds: list[float]) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process, wait in zip(processes, seconds, strict=True):
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.communicate()
        assert process.returncode == -signal.SIGKILL


def released(log: Path) -> dict[str, int]:
    lines = log.read_text().splitlines() if log.exists() else []
    return {name: int(charge) for name, charge in (line.split() for line in lines)}


def check_after_crash(ledger: SqliteLedger, logs: list[Path]) -> int:
    """Answers that left were settled at their charge; what was open is forfeited whole. Returns the forfeits."""
    assert ledger.verify().findings == ()
    for log in logs:
        for name, charge in released(log).items():
            found = ledger.reservation(name)
            assert (found.state, found.charge) == ("settled", charge)
            assert ledger.recorded(name, "0" * 64) == str(charge).encode()
    left_open = ledger.open_reservations()
    spent = ledger.statement(USER).spent
    forfeited = ledger.forfeit_expired(time.time_ns() // 1000 + 601 * 10**6)
    assert [(r.reservation_id, r.charge) for r in forfeited] == [(r.reservation_id, r.worst_case) for r in left_open]
    for lost in forfeited:
        if lost.owner != "c":
            with pytest.raises(AnswerLost):
                ledger.recorded(lost.reservation_id, "0" * 64)
    after = {(s.spent, s.reserved) for s in ledger.list_scopes()}
    assert after == {(spent + sum(r.worst_case for r in left_open), 0)}
    assert ledger.verify().findings == ()
    return len(forfeited)


def test_a_killed_server_leaves_every_answer_paid_and_the_rest_forfeited(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    new_ledger(path).close()
    rng = random.Random(20310)
    forfeits, logs = 0, []
    for k in range(6):
        logs.append(tmp_path / f"released-{k}")
        kill_after([serve(path, f"s{k}", logs[-1], k)], [rng.uniform(0.0, 0.15)])
        ledger = SqliteLedger(path)
        forfeits += check_after_crash(ledger, logs)
        ledger.close()
    assert forfeits > 0
    assert sum(len(released(log)) for log in logs) > 0


def test_two_servers_killed_while_a_third_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    survivor = new_ledger(path)
    logs = [tmp_path / "released-a", tmp_path / "released-b"]
    servers = [serve(path, name, log, seed) for name, log, seed in zip("ab", logs, (1, 2), strict=True)]
    kill_after(servers, [0.1, 0.05])
    assert survivor.reserve("mine", USER, 5, lease_seconds=600, owner="c").state == "open"
    check_after_crash(survivor, logs)
    with pytest.raises(AlreadyForfeited):
        survivor.settle("mine", 1)
    survivor.close()


@pytest.mark.simulation
def test_100_kills(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    new_ledger(path).close()
    rng = random.Random(7)
    for k in range(50):
        logs = [tmp_path / f"released-{k}-{j}" for j in range(2)]
        servers = [serve(path, f"s{k}-{j}", log, 1000 + 2 * k + j) for j, log in enumerate(logs)]
        kill_after(servers, [rng.uniform(0.0, 0.05) for _ in servers])
        ledger = SqliteLedger(path)
        check_after_crash(ledger, logs)
        ledger.close()
