"""`reticent ledger`: the same commands for a file and for a PostgreSQL database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from reticent.accounting.ledger import Ledger, dataset_scope, tenant_scope, user_scope
from reticent.accounting.store.locate import open_ledger
from reticent.plugin.cli import app

USER = user_scope("demo", "acme", "alice")
BOB = user_scope("demo", "acmeplus", "bob")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ledger", *arguments], env={"COLUMNS": "200"})


def ran(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    return result.output


@pytest.fixture(params=["file", "database"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where no ledger is yet. The database's server asks for no password, and is given one that must not be shown."""
    if request.param == "file":
        return str(tmp_path / "deep" / "ledger.db")
    url: str = request.getfixturevalue("postgres_url")
    return url.replace("tests@", "tests:CANARY@")


@pytest.fixture
def ledger(location: str) -> Iterator[Ledger]:
    """A ledger with two tenants, some charges, one answer without protection."""
    ran("create", location)
    made = open_ledger(location)
    made.open_dataset("demo", 2.5, "dp")
    scopes = (dataset_scope("demo"), tenant_scope("demo", "acme"), tenant_scope("demo", "acmeplus"), USER, BOB)
    for scope in scopes:
        made.open_scope(scope, epsilon=1.0, delta=0.01, overhead=10**8, granted=9 * 10**8)
    made.reserve("r-1", USER, 1000, lease_seconds=60, owner="o", details={"rule": "privitp"})
    made.raise_reservation("r-1", 1500)
    made.settle("r-1", 1234, details={"outcome": "selected"})
    made.reserve("r-2", BOB, 10, lease_seconds=60, owner="o")
    made.settle("r-2", 0, unprotected=True)
    made.reserve("r-3", USER, 70, lease_seconds=60, owner="o")
    made.forfeit("r-3", reason="the worker died")
    yield made
    made.close()


def test_a_ledger_is_made_once(location: str) -> None:
    assert "made" in ran("create", location)
    assert "nothing was done" in refused("create", location)
    assert "CANARY" not in ran("show", location) + ran("verify", location) + refused("create", location)
    ledger = open_ledger(location)
    assert ledger.head().seq == 1
    ledger.close()


def test_a_url_of_something_else_is_refused_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "not mysql://" in refused("create", "mysql://user/deep/ledger")
    assert list(tmp_path.iterdir()) == []


def test_the_location_may_come_from_the_environment(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETICENT_LEDGER_LOCATION", location)
    assert "made" in ran("create")
    assert "every balance agrees" in ran("verify")


def test_a_ledger_that_is_not_there_is_not_made_by_reading(location: str) -> None:
    for command in ("show", "verify", "log"):
        assert "CANARY" not in refused(command, location)
    assert "CANARY" not in refused("grant", location, USER, "1", "--reason", "r", "--actor", "a")
    assert "made" in ran("create", location)


def test_show_marks_the_scopes_whose_guarantee_is_void(location: str, ledger: Ledger) -> None:
    shown = ran("show", location)
    void = [line for line in shown.splitlines() if line.startswith("VOID")]
    assert [line.split()[1] for line in void] == ["dataset:demo:", "tenant:demo/acmeplus:", f"{BOB}:"]
    assert all("1 answer was chosen by rewards without noise" in line for line in void)
    words = [line.split() for line in shown.splitlines()]
    rows = {w[0]: w[1] for w in words if w and w[0].startswith(("tenant:", "dataset:"))}
    assert rows == {"dataset:demo": "(1)", "tenant:demo/acme": "1", "tenant:demo/acmeplus": "(1)"}
    granted = ran("grant", location, BOB, "0.5", "--reason", "more", "--actor", "officer")
    assert "ε = 1.5" in granted
    assert f"VOID {BOB}" in granted


def test_a_grant_is_recorded_and_needs_a_scope(location: str, ledger: Ledger) -> None:
    assert "VOID" not in ran("grant", location, USER, "0.25", "--reason", "a renewal", "--actor", "officer")
    assert ledger.statement(USER).granted == 9 * 10**8 + 25 * 10**7
    assert "(reason a renewal, actor officer)" in ran("log", location, "--scope", USER, "--last", "1")
    assert "no scope" in refused("grant", location, "tenant:demo/else", "1", "--reason", "r", "--actor", "a")
    assert "amount" in refused("grant", location, USER, "0", "--reason", "r", "--actor", "a")


def test_verify_tells_an_anchor_that_the_next_one_takes(location: str, ledger: Ledger) -> None:
    anchor = ran("verify", location).split("anchor ")[1].strip()
    ledger.grant(USER, 1, reason="r", actor="a")
    assert "every balance agrees" in ran("verify", location, "--anchor", anchor)
    seq, _, digest = anchor.partition(":")
    other = ("0" if digest[0] != "0" else "1") + digest[1:]
    assert "FINDING" in refused("verify", location, "--anchor", f"{seq}:{other}")
    assert "SEQ:HASH" in refused("verify", location, "--anchor", "17")


def test_the_log_follows_a_charge(location: str, ledger: Ledger) -> None:
    lines = ran("log", location, "--reservation", "r-1").splitlines()
    assert [line.split()[3:5] for line in lines] == [["reserved", "r-1"], ["raised", "r-1"], ["settled", "r-1"]]
    assert f"holds 0.000001000 nats in {USER} for 60 s (rule privitp, owner o)" in lines[0]
    assert "holds 0.000001500 nats now" in lines[1]
    assert f"charged 0.000001234 nats to {USER} (outcome selected)" in lines[2]
    assert "WITHOUT PROTECTION" in ran("log", location, "--reservation", "r-2").splitlines()[-1]
    forfeit = ran("log", location, "--last", "1")
    assert f"charged 0.000000070 nats, its worst case, to {USER} (reason the worker died)" in forfeit


def test_the_log_of_a_scope_holds_what_is_below_it_and_nothing_else(location: str, ledger: Ledger) -> None:
    def entries(*options: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in ran("log", location, "--json", *options).splitlines()]

    everything = entries()
    assert [entry["seq"] for entry in everything] == list(range(1, ledger.head().seq + 1))
    assert everything[-1]["hash"] == ledger.head().hash
    assert everything[0]["kind"] == "ledger_created"
    reservations = {
        scope: {e["payload"].get("reservation") for e in entries("--scope", scope)} - {None}
        for scope in ("dataset:demo", "tenant:demo/acme", "tenant:demo/acmeplus", USER, BOB)
    }
    assert reservations == {
        "dataset:demo": {"r-1", "r-2", "r-3"},
        "tenant:demo/acme": {"r-1", "r-3"},
        "tenant:demo/acmeplus": {"r-2"},
        USER: {"r-1", "r-3"},
        BOB: {"r-2"},
    }
    spent = {s.scope_id: s.spent for s in ledger.list_scopes()}
    for scope, amount in spent.items():
        assert sum(e["payload"].get("charge", 0) for e in entries("--scope", scope)) == amount
    assert "no such entries" in refused("log", location, "--scope", "tenant:demo/acm")


def test_bench_and_chaos_print_one_object() -> None:
    bench = json.loads(ran("bench", "--store", "sqlite", "--workers", "2", "--seconds", "0.2", "--json"))
    assert bench["hot"]["operations_per_second"] > 0
    assert (bench["overspent"], bench["findings"]) == (0, 0)
    chaos = json.loads(ran("chaos", "--store", "sqlite", "--kills", "3", "--processes", "1", "--json"))
    wrong = ("overspent", "undercharged", "released_without_reservation")
    assert [chaos[name] for name in ("kills", *wrong)] == [3, 0, 0, 0]
    said = ran("bench", "--store", "sqlite", "--workers", "1", "--seconds", "0.2", "--fsync-ms", "1")
    assert "pretended: 1 ms more" in said


def test_a_drill_keeps_away_from_a_ledger_that_is_there(location: str, ledger: Ledger) -> None:
    store = "postgresql" if "://" in location else "sqlite"
    before = ledger.head()
    for command in (("bench", "--seconds", "0.1"), ("chaos", "--kills", "1")):
        assert "of its own" in refused(*command, "--store", store, "--location", location)
    assert ledger.head() == before
