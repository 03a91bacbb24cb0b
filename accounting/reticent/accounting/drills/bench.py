"""How many reservations and settlements a ledger takes, and how long each waits.

Workers are threads, in one process or several (replicas), that reserve and settle as fast as they can, each its own
requests: first all for one user ("hot": three rows that every request changes), then for many users of many tenants
("spread": the data set's row is still everybody's). Afterwards the auditor recomputes every balance.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final, TextIO

from reticent.accounting.drills.children import hear, start_python, tell
from reticent.accounting.drills.errors import BenchFailed
from reticent.accounting.drills.places import DATASET, Store, drill_place, new_ledger, open_scopes
from reticent.accounting.drills.slow_disk import fsync_milliseconds, postgres_settings, slow_down_sqlite
from reticent.accounting.ledger import Ledger, user_scope
from reticent.accounting.store.locate import open_ledger

__all__ = ["BenchReport", "Latency", "Load", "run_bench"]

_REPLICA: Final = ("-m", "reticent.accounting.drills.bench")
_WARM_UP_SECONDS: Final = 0.5
_BUDGET: Final = 10**16
_WORST: Final = 1000


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one kind of operation, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Load:
    """One scenario. An operation is a reservation or a settlement."""

    operations: int
    seconds: float
    operations_per_second: float
    reserve: Latency
    settle: Latency


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What was measured, and where.

    ``fsync_p50_ms`` and ``fsync_p99_ms`` are of the ledger's disk before the run (None where it is elsewhere);
    ``added_fsync_ms`` is what was added to each of the database's own (`slow_disk`). ``overspent`` counts scopes whose
    charges exceed their grants, and ``findings`` what the auditor found; both must be 0.
    """

    store: Store
    workers: int
    processes: int
    fsync_p50_ms: float | None
    fsync_p99_ms: float | None
    added_fsync_ms: float
    hot: Load
    spread: Load
    journal_entries: int
    overspent: int
    findings: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_bench(
    store: Store,
    *,
    workers: int,
    seconds: float,
    processes: int = 1,
    location: str | None = None,
    tenants: int = 16,
    users: int = 16,
    added_fsync_ms: float = 0.0,
) -> BenchReport:
    """Measure one store.

    Args:
        store: the kind of ledger.
        workers: threads in all, at least one a process.
        seconds: length of each of the two scenarios, after a beginning, half a second at most, that is not counted.
        processes: replicas, each with a connection of its own to the ledger.
        location: see `places.drill_place`.
        tenants: of the spread scenario.
        users: of each of these tenants.
        added_fsync_ms: pretend that the disk is slower; not for a PostgreSQL server that is not the drill's own.

    Raises:
        ValueError: arguments out of range, or a place that is taken.
        BenchFailed: a replica failed.
    """
    if not (1 <= processes <= workers and seconds > 0 and tenants >= 1 and users >= 1 and 0 <= added_fsync_ms <= 100):
        raise ValueError("at least one worker a process, seconds above 0, a tenant and a user, 0 to 100 ms of fsync")
    if added_fsync_ms and store == "postgresql" and location:
        raise ValueError("a PostgreSQL server that is there already cannot be slowed down")
    spread = [f"t{t}/u{u}" for t in range(tenants) for u in range(users)]
    with drill_place(store, location, postgres_settings(added_fsync_ms) if added_fsync_ms else None) as place:
        fsync = fsync_milliseconds(place.folder) if place.folder else (None, None)
        ledger = new_ledger(place)
        open_scopes(ledger, dict.fromkeys(["hot/hot", *spread], _BUDGET))
        crew = _Crew(place.location, workers, processes, added_fsync_ms if store == "sqlite" else 0.0)
        loads = [crew.work(name, names, seconds) for name, names in (("hot", ["hot/hot"]), ("spread", spread))]
        report = ledger.verify()
        overspent = sum(s.spent + s.reserved > s.granted for s in ledger.list_scopes())
        ledger.close()
    return BenchReport(
        store=store,
        workers=workers,
        processes=processes,
        fsync_p50_ms=fsync[0],
        fsync_p99_ms=fsync[1],
        added_fsync_ms=added_fsync_ms,
        hot=loads[0],
        spread=loads[1],
        journal_entries=report.seq,
        overspent=overspent,
        findings=len(report.findings),
    )


class _Crew:
    """Starts the replicas of one scenario together and gathers what they measured."""

    def __init__(self, location: str, workers: int, processes: int, added_fsync_ms: float) -> None:
        self._location = location
        self._shares = [workers // processes + (k < workers % processes) for k in range(processes)]
        self._added_fsync_ms = added_fsync_ms

    def work(self, name: str, users: Sequence[str], seconds: float) -> Load:
        with tempfile.TemporaryFile("w+") as said:
            replicas = [start_python(_REPLICA, said) for _ in self._shares]
            try:
                for k, (replica, share) in enumerate(zip(replicas, self._shares, strict=True)):
                    task = {"location": self._location, "name": f"{name}{k}", "workers": share, "users": users}
                    tell(replica, json.dumps(task | {"seconds": seconds, "slower": self._added_fsync_ms}))
                for replica in replicas:
                    _hear(replica, said)
                for replica in replicas:
                    tell(replica, "go")
                taken = [pair for replica in replicas for pair in json.loads(_hear(replica, said))]
            finally:
                for replica in replicas:
                    replica.kill()
                    replica.communicate()
        rate = 2 * len(taken) / seconds
        return Load(2 * len(taken), seconds, round(rate, 1), *(_latency([p[k] for p in taken]) for k in (0, 1)))


def _hear(replica: subprocess.Popen[str], said: TextIO) -> str:
    line = hear(replica)
    if not line:
        said.seek(0)
        raise BenchFailed(f"a replica ended early: {said.read().strip()[-500:]}")
    return line


def _latency(microseconds: list[int]) -> Latency:
    ordered = sorted(microseconds) or [0]
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.99))
    return Latency(p50 / 1e3, p99 / 1e3, ordered[-1] / 1e3)


# In a replica


def _replica() -> None:
    task = json.loads(sys.stdin.readline())
    slow_disk = slow_down_sqlite(task["slower"]) if task["slower"] else None
    ledger = open_ledger(task["location"])
    print("ready", flush=True)
    sys.stdin.readline()
    taken = _measure(ledger, task["name"], task["workers"], task["users"], task["seconds"])
    ledger.close()
    del slow_disk
    print(json.dumps(taken), flush=True)


def _measure(ledger: Ledger, name: str, workers: int, users: list[str], seconds: float) -> list[tuple[int, int]]:
    """(reserve, settle) of each request that began and ended in the counted time, in microseconds."""
    scopes = [user_scope(DATASET, *user.split("/")) for user in users]
    begin = time.perf_counter() + min(_WARM_UP_SECONDS, seconds)
    taken: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
    failures: list[Exception] = []

    def work(k: int) -> None:
        draw, count = Random(f"{name} {k}"), 0  # noqa: S311  -- which user asks, not noise
        while (start := time.perf_counter()) < begin + seconds and not failures:
            request, count = f"{name}-{k}-{count}", count + 1
            ledger.reserve(request, draw.choice(scopes), _WORST, lease_seconds=600, owner=name)
            between = time.perf_counter()
            ledger.settle(request, draw.randint(0, _WORST))
            end = time.perf_counter()
            if start >= begin and end <= begin + seconds:
                taken[k].append((round((between - start) * 1e6), round((end - between) * 1e6)))

    def guarded(k: int) -> None:
        try:
            work(k)
        except Exception as failure:  # noqa: BLE001  -- raised again below, in the main thread
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [pair for pairs in taken for pair in pairs]


if __name__ == "__main__":
    _replica()
