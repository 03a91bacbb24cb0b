"""The chaos drill: right servers leave nothing unpaid when they are killed, wrong ones are found.

What it cannot find is said in `reticent.accounting.drills.chaos`: a settlement that was handed to the operating system
and not made durable is lost by a loss of power only, never by a kill.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from reticent.accounting.drills.chaos import ChaosReport, run_chaos
from reticent.accounting.drills.chaos_check import Verdict, check
from reticent.accounting.drills.errors import ChaosFailed
from reticent.accounting.drills.places import DATASET, Store, open_scopes
from reticent.accounting.ledger import Ledger, user_scope
from reticent.accounting.store.locate import open_ledger

TWINS = str(Path(__file__).with_name("ledger_chaos_twins.py"))
USER = user_scope(DATASET, "a", "a")
WRONG = ("overspent", "undercharged", "released_without_reservation", "answered_twice", "lost_reservations")


@pytest.fixture
def drill(request: pytest.FixtureRequest) -> Callable[..., ChaosReport]:
    """The drill, which needs PostgreSQL's programs for that store: skips without them."""

    def begin(store: Store, **arguments: Any) -> ChaosReport:
        if store == "postgresql":
            request.getfixturevalue("postgres_binaries")
        return run_chaos(store, **arguments)

    return begin


@pytest.mark.parametrize(("store", "every"), [("sqlite", 0), ("postgresql", 8)])
def test_20_kills_leave_every_answer_paid(drill: Callable[..., ChaosReport], store: Store, every: int) -> None:
    report = drill(store, kills=20, processes=2, life_seconds=0.2, kills_per_server_kill=every)
    assert report.verdict.examples == ()
    assert {name: getattr(report.verdict, name) for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert report.verdict.ok
    assert (report.kills, sum(report.killed_in.values())) == (20, 20 * report.threads)
    assert report.verdict.answers > 0
    assert report.verdict.forfeits > 0
    assert (report.server_kills > 0) == (every > 0)


@pytest.mark.simulation
@pytest.mark.parametrize(("store", "every"), [("sqlite", 0), ("postgresql", 25)])
def test_200_kills_leave_every_answer_paid(drill: Callable[..., ChaosReport], store: Store, every: int) -> None:
    report = drill(store, kills=200, seed=20310, kills_per_server_kill=every)
    assert report.verdict.examples == ()
    assert report.verdict.ok
    assert report.verdict.replays > 0
    assert all(report.killed_in[stage] > 0 for stage in ("opening", "thinking", "reserve", "raise", "settle"))
    assert (report.server_kills > 2) == (every > 0)


@pytest.mark.parametrize(
    ("twin", "found"),
    [
        ("hasty", "released_without_reservation"),
        ("cheap", "undercharged"),
        ("careless", "released_without_reservation"),
    ],
)
def test_a_server_that_is_wrong_is_found(twin: str, found: str) -> None:
    report = run_chaos("sqlite", kills=20, processes=2, life_seconds=0.2, worker=(TWINS, twin))
    assert not report.verdict.ok
    assert getattr(report.verdict, found) > 0
    assert report.verdict.examples


def test_a_worker_that_fails_ends_the_drill() -> None:
    with pytest.raises(ChaosFailed, match="unheard"):
        run_chaos("sqlite", kills=5, processes=2, worker=("-c", "raise SystemExit('unheard of')"))


# The comparison alone, on ledgers and logs made by hand


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = open_ledger(tmp_path / "ledger.db", create=True)
    open_scopes(made, {"a/a": 10_000})
    for name in ("settled", "open", "released", "forfeited"):
        made.reserve(name, USER, 100, lease_seconds=60, owner="o")
    made.settle("settled", 70)
    made.release("released", owner="o", reason="test")
    made.forfeit("forfeited", reason="test")
    return made


def compared(ledger: Ledger, tmp_path: Path, log: str) -> Verdict:
    ledger.forfeit_expired(time.time_ns() // 1000 + 10**9)
    (tmp_path / "w.log").write_text(log)
    return check(ledger, [tmp_path / "w.log"])


@pytest.mark.parametrize(
    ("log", "wrong"),
    [
        ("answer settled 70 -\n", {}),
        ("answer settled 69 -\n", {}),
        ("answer settled 71 -\n", {"undercharged": 1}),
        ("answer never 70 -\n", {"released_without_reservation": 1}),
        ("answer open 70 -\n", {"released_without_reservation": 1}),
        ("answer released 0 -\n", {"released_without_reservation": 1}),
        ("answer forfeited 100 -\n", {"released_without_reservation": 1}),
        ("answer settled 70 -\nanswer settled 70 -\n", {"answered_twice": 1}),
        ("answer settled 70 long-1\nreplay settled settled 70 long-1\n", {}),
        ("replay settled forfeited 70 long-1\n", {"released_without_reservation": 2}),
        ("replay forfeited forfeited 70 long-1\n", {"released_without_reservation": 1}),
        ("answer settled 70 short-1\nanswer other 0 short-1\n", {"released_without_reservation": 1}),
        ("answer settled 70 long-1\nanswer other 0 long-1\n", {"released_without_reservation": 1, "answered_twice": 1}),
        ("lost settled\n", {"lost_reservations": 1}),
        ("answer settled 70 -\nanswer nev", {}),
    ],
)
def test_the_comparison_finds_each_kind_of_wrong(
    ledger: Ledger, tmp_path: Path, log: str, wrong: dict[str, int]
) -> None:
    verdict = compared(ledger, tmp_path, log)
    assert {name: getattr(verdict, name) for name in WRONG if getattr(verdict, name)} == wrong
    assert verdict.ok == (not wrong)
    ledger.close()


@pytest.mark.parametrize("log", ["paid settled 70 -\n", "answer settled\n", "answer settled much -\n"])
def test_a_log_of_another_form_is_refused(ledger: Ledger, tmp_path: Path, log: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        compared(ledger, tmp_path, log)
    ledger.close()


def test_a_ledger_whose_rows_were_changed_is_overspent(ledger: Ledger, tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    connection.execute("UPDATE scopes SET granted = 10 * granted WHERE scope_id = ?", (USER,))
    connection.close()
    assert compared(ledger, tmp_path, "answer settled 70 -\n").overspent == 1
    ledger.close()


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    """Otherwise an interrupted drill would leave servers behind that go on for ever."""
    ledger = open_ledger(tmp_path / "ledger.db", create=True)
    open_scopes(ledger, {"a/a": 10**9})
    ledger.close()
    (tmp_path / "stages").write_bytes(bytes(1))
    task = f'{{"location": "{tmp_path}/ledger.db", "name": "w", "log": "{tmp_path}/w.log", "seed": 1, "threads": 1,'
    task += f' "stages": "{tmp_path}/stages", "users": ["a/a"]}}\n'
    process = subprocess.Popen(
        [sys.executable, "-m", "reticent.accounting.drills.chaos_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(task)
    process.stdin.flush()
    assert process.stdout.readline().startswith("opening ")
    assert process.stdout.readline() == "serving\n"
    process.stdin.close()
    assert process.stdout.readline() == "ended 0\n"
    assert process.wait(timeout=30) == 0
    process.stdout.close()
