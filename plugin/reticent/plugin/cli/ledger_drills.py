"""`reticent ledger bench` and `reticent ledger chaos`: how fast a ledger is, and whether it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer

from reticent.accounting.drills.bench import BenchReport, Load, run_bench
from reticent.accounting.drills.chaos import ChaosReport, run_chaos
from reticent.accounting.drills.errors import DrillFailed
from reticent.accounting.ledger_errors import LedgerError
from reticent.plugin.cli.common import fail, say

__all__ = ["bench", "chaos"]


class StoreName(StrEnum):
    """The kinds of ledger."""

    sqlite = "sqlite"
    postgresql = "postgresql"


StoreOption = Annotated[StoreName, typer.Option("--store", help="The kind of ledger.")]
LocationOption = Annotated[
    str | None,
    typer.Option(
        envvar="RETICENT_DRILL_LOCATION",
        help="A file that does not exist yet, or the URL of an empty database; default: a temporary one, "
        "with a PostgreSQL server of its own.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def bench(
    store: StoreOption,
    workers: Annotated[int, typer.Option(min=1, help="Threads in all that reserve and settle.")] = 32,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each scenario.")] = 10.0,
    processes: Annotated[int, typer.Option(min=1, help="Replicas that the threads are divided over.")] = 1,
    location: LocationOption = None,
    tenants: Annotated[int, typer.Option(min=1, help="Tenants of the spread scenario.")] = 16,
    users: Annotated[int, typer.Option(min=1, help="Users of each of them.")] = 16,
    fsync_ms: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Pretend that every durable write takes so much longer.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Measure reservations and settlements a second and what each waits, for one user and for many.

    At the end the auditor recomputes every balance; exit 1 if anything is overspent or does not agree.
    """
    with _messages():
        report = run_bench(
            store.value,
            workers=workers,
            seconds=seconds,
            processes=processes,
            location=location,
            tenants=tenants,
            users=users,
            added_fsync_ms=fsync_ms,
        )
    _print(report.to_json(), as_json, lambda: _bench_lines(report))
    if report.overspent or report.findings:
        raise typer.Exit(1)


def chaos(
    store: StoreOption,
    kills: Annotated[int, typer.Option(min=1, help="How many worker processes are killed.")] = 1000,
    processes: Annotated[int, typer.Option(min=1, help="Workers at a time.")] = 4,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker.")] = 3,
    seed: Annotated[int, typer.Option(help="Of kills and requests; the machine's own timing remains.")] = 0,
    life_seconds: Annotated[float, typer.Option(min=0.001, help="A worker is killed within this time.")] = 0.4,
    server_kills_every: Annotated[
        int, typer.Option(min=0, help="A PostgreSQL server of the drill's own is killed once in so many kills.")
    ] = 50,
    location: LocationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Kill servers, and their database, at random points, then compare the ledger with the answers that left.

    Exit 1 unless nothing is overspent, every answer was paid for in full, and none left without its reservation.
    """

    def told(done: int) -> None:
        if done % 100 == 0:
            say(f"{done} of {kills} kills")

    with _messages():
        report = run_chaos(
            store.value,
            kills=kills,
            processes=processes,
            threads=threads,
            seed=seed,
            life_seconds=life_seconds,
            kills_per_server_kill=server_kills_every,
            location=location,
            told=told,
        )
    _print(report.to_json(), as_json, lambda: _chaos_lines(report))
    if not report.verdict.ok:
        raise typer.Exit(1)


@contextmanager
def _messages() -> Iterator[None]:
    try:
        yield
    except (LedgerError, DrillFailed, ValueError, OSError) as error:
        raise fail(f"{type(error).__name__}: {error}") from None


def _print(content: dict[str, Any], as_json: bool, lines: Callable[[], Iterator[str]]) -> None:
    for line in [json.dumps(content)] if as_json else lines():
        typer.echo(line)


def _bench_lines(report: BenchReport) -> Iterator[str]:
    yield f"{report.store}, {report.workers} workers in {report.processes} processes"
    if report.fsync_p50_ms is not None:
        yield f"fsync of the disk: {report.fsync_p50_ms:.3f} ms (p99 {report.fsync_p99_ms:.3f} ms)"
    if report.added_fsync_ms:
        yield f"pretended: {report.added_fsync_ms:g} ms more"
    for name, load in (("one user", report.hot), ("many users", report.spread)):
        yield f"{name}: {load.operations_per_second:.0f} operations a second; {_waits(load)}"
    yield f"audit: {report.journal_entries} entries, {report.overspent} overspent, {report.findings} findings"


def _waits(load: Load) -> str:
    parts = (("reserve", load.reserve), ("settle", load.settle))
    return ", ".join(f"{name} p50 {wait.p50_ms:.2f} ms, p99 {wait.p99_ms:.2f} ms" for name, wait in parts)


def _chaos_lines(report: ChaosReport) -> Iterator[str]:
    verdict = report.verdict
    yield f"{report.store}: {report.kills} workers and {report.server_kills} servers killed in {report.seconds:g} s"
    yield "killed while: " + ", ".join(f"{stage} {count}" for stage, count in report.killed_in.items())
    yield f"{verdict.answers} answers, {verdict.replays} repeated answers, {verdict.forfeits} forfeits"
    for name in ("overspent", "undercharged", "released_without_reservation", "answered_twice", "lost_reservations"):
        yield f"{name} {getattr(verdict, name)}"
    yield from (f"FOUND {example}" for example in verdict.examples)
