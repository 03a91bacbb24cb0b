"""The bench counts what was written, and its slower disk is slower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reticent.accounting.drills.bench import run_bench
from reticent.accounting.drills.errors import BenchFailed
from reticent.accounting.drills.places import DATASET
from reticent.accounting.ledger import dataset_scope
from reticent.accounting.store.locate import open_ledger


@pytest.mark.parametrize("processes", [1, 2])
def test_what_it_counts_is_in_the_ledger(tmp_path: Path, processes: int) -> None:
    path = tmp_path / "ledger.db"
    report = run_bench("sqlite", workers=4, seconds=0.3, processes=processes, location=str(path), tenants=2, users=2)
    ledger = open_ledger(path)
    account = ledger.statement(dataset_scope(DATASET))
    ledger.close()
    counted = report.hot.operations + report.spread.operations
    assert 0 < counted <= 2 * account.settled  # and not those of the warm-up
    assert (account.open, report.overspent, report.findings) == (0, 0, 0)
    assert report.journal_entries == 2 * account.settled + 2 + 1 + 2 * 3 + 2
    assert report.hot.operations_per_second == pytest.approx(report.hot.operations / 0.3, rel=1e-3)
    for wait in (report.hot.reserve, report.hot.settle, report.spread.reserve, report.spread.settle):
        assert 0 < wait.p50_ms <= wait.p99_ms <= wait.max_ms
    assert json.loads(json.dumps(report.to_json()))["hot"]["reserve"]["p50_ms"] == report.hot.reserve.p50_ms


def test_it_runs_on_a_postgresql_database(postgres_url: str) -> None:
    report = run_bench("postgresql", workers=4, seconds=0.3, location=postgres_url, tenants=2, users=2)
    assert report.hot.operations > 0
    assert (report.fsync_p50_ms, report.overspent, report.findings) == (None, 0, 0)


def test_no_write_is_faster_than_the_disk_that_it_pretends() -> None:
    report = run_bench("sqlite", workers=2, seconds=0.3, added_fsync_ms=20.0, tenants=1, users=1)
    assert min(report.hot.reserve.p50_ms, report.hot.settle.p50_ms, report.spread.reserve.p50_ms) >= 20.0


@pytest.mark.simulation
@pytest.mark.usefixtures("postgres_server")  # skips without one
def test_no_commit_of_a_temporary_server_is_faster_than_the_disk_that_it_pretends() -> None:
    report = run_bench("postgresql", workers=2, seconds=0.3, added_fsync_ms=20.0, tenants=1, users=1)
    assert min(report.hot.reserve.p50_ms, report.hot.settle.p50_ms, report.spread.reserve.p50_ms) >= 20.0


def test_a_place_that_is_taken_is_refused(tmp_path: Path, postgres_url: str) -> None:
    open_ledger(tmp_path / "ledger.db", create=True).close()
    ledger = open_ledger(postgres_url, create=True)
    ledger.open_dataset("another", 2.0, "dp")
    ledger.close()
    for store, location in (("sqlite", str(tmp_path / "ledger.db")), ("postgresql", postgres_url)):
        with pytest.raises(ValueError, match="of its own"):
            run_bench(store, workers=1, seconds=0.1, location=location)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a place"):
        run_bench("sqlite", workers=1, seconds=0.1, location=postgres_url)
    with pytest.raises(ValueError, match="slowed down"):
        run_bench("postgresql", workers=1, seconds=0.1, location=postgres_url, added_fsync_ms=1.0)


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"workers": 1, "processes": 2}, {"seconds": 0.0}, {"tenants": 0}, {"added_fsync_ms": -1}]
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        run_bench("sqlite", **({"workers": 1, "seconds": 0.1} | wrong))  # type: ignore[arg-type]


def test_a_replica_that_fails_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    from reticent.accounting.drills import bench

    monkeypatch.setattr(bench, "_REPLICA", ("-c", "raise SystemExit('unheard of')"))
    with pytest.raises(BenchFailed, match="unheard"):
        run_bench("sqlite", workers=1, seconds=0.1)
