"""Servers killed at random points, their database too, and afterwards the ledger against what they answered.

A kill is SIGKILL: the process stops between two instructions, wherever it is. What it had handed to the operating
system is still written. So a drill like this finds an answer that leaves before its settlement, a settlement that is
acknowledged before it is handed over, a transaction that is not one, a lease that is never swept, a second answer under
one key. What it *cannot* find is a settlement that was handed to the operating system and not made durable: a SQLite
ledger with `synchronous=OFF`, or a PostgreSQL server with `fsync=off`, passes, and only a loss of power shows it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from reticent.accounting.drills.chaos_check import Verdict, check
from reticent.accounting.drills.chaos_worker import STAGES
from reticent.accounting.drills.children import hear, start_python, tell
from reticent.accounting.drills.errors import ChaosFailed
from reticent.accounting.drills.places import Place, Store, drill_place, new_ledger, open_scopes
from reticent.accounting.ledger import Ledger
from reticent.accounting.ledger_errors import LedgerDamaged, LedgerUnavailable
from reticent.accounting.store.locate import open_ledger

__all__ = ["ChaosReport", "run_chaos"]

WORKER: Final = ("-m", "reticent.accounting.drills.chaos_worker")
_SWEEP_SECONDS: Final = 0.1
_START_SECONDS: Final = 120.0
_USERS: Final = {"a/a": 10**15, "a/b": 10**15, "b/a": 10**15, "b/small": 50_000, "c/a": 10**15, "c/tiny": 5_000}
"""Two of them are exhausted on the way, so that not to overspend takes doing."""


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What was done and what came of it; ``killed_in`` counts threads by what they were at when they were killed."""

    store: Store
    kills: int
    server_kills: int
    processes: int
    threads: int
    seed: int
    seconds: float
    killed_in: dict[str, int]
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        flat = asdict(self)
        verdict = flat.pop("verdict")
        return {**flat, **verdict}


def run_chaos(
    store: Store,
    *,
    kills: int,
    processes: int = 4,
    threads: int = 3,
    seed: int = 0,
    life_seconds: float = 0.4,
    kills_per_server_kill: int = 50,
    location: str | None = None,
    worker: Sequence[str] = WORKER,
    told: Callable[[int], None] = lambda kills: None,
) -> ChaosReport:
    """Run the drill.

    Args:
        store: the kind of ledger.
        kills: of worker processes.
        processes: workers at a time.
        threads: of each of them.
        seed: of kills and requests. What comes of them hangs on the machine too, so no two runs are the same.
        life_seconds: a worker is killed at a random time up to this after it began to serve, one in ten while it opens
            the ledger.
        kills_per_server_kill: the drill's own PostgreSQL server is killed about once in so many kills; 0 for never.
        location: see `places.drill_place`. A server that is there already is not killed.
        worker: arguments for Python that start another worker than `chaos_worker`.
        told: is called with the number of kills now and then.

    Raises:
        ValueError: arguments out of range, or a place that is taken.
        ChaosFailed: the drill itself broke down.
    """
    if min(kills, processes, threads) < 1 or life_seconds <= 0 or kills_per_server_kill < 0:
        raise ValueError("kills, processes and threads must be at least 1, life_seconds above 0")
    begin = time.monotonic()
    with drill_place(store, location) as place, tempfile.TemporaryDirectory(prefix="reticent-chaos-") as folder:
        ledger = new_ledger(place)
        open_scopes(ledger, _USERS)
        ledger.close()
        drill = _Drill(place, Path(folder), kills, threads, seed, life_seconds, worker, told)
        drill.run(processes, kills_per_server_kill)
        ledger = open_ledger(place.location)
        ledger.forfeit_expired(time.time_ns() // 1000 + 3600 * 10**6)
        verdict = check(ledger, sorted(Path(folder).glob("*.log")))
        ledger.close()
    seconds = round(time.monotonic() - begin, 1)
    killed_in = {stage: drill.killed_in[stage] for stage in STAGES}
    return ChaosReport(store, kills, drill.server_kills, processes, threads, seed, seconds, killed_in, verdict)


class _Drill:
    def __init__(
        self,
        place: Place,
        folder: Path,
        kills: int,
        threads: int,
        seed: int,
        life_seconds: float,
        worker: Sequence[str],
        told: Callable[[int], None],
    ) -> None:
        self._place, self._folder, self._worker, self._told = place, folder, worker, told
        self._threads, self._seed, self._life_seconds = threads, seed, life_seconds
        self._left = kills
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self.kills = 0
        self.server_kills = 0
        self.killed_in: Counter[str] = Counter()

    def run(self, processes: int, kills_per_server_kill: int) -> None:
        slots = [threading.Thread(target=self._guarded, args=(self._slot, k)) for k in range(processes)]
        others = [threading.Thread(target=self._guarded, args=(self._sweep,))]
        if self._place.server is not None and kills_per_server_kill:
            others.append(threading.Thread(target=self._guarded, args=(self._kill_server, kills_per_server_kill)))
        for thread in (*slots, *others):
            thread.start()
        try:
            for thread in slots:
                thread.join()
        finally:
            self._over.set()
            for thread in (*slots, *others):
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Callable[..., None], *arguments: int) -> None:
        try:
            work(*arguments)
        except BaseException as failure:  # noqa: BLE001  -- raised again in the main thread
            self._failures.append(failure)
            self._over.set()

    def _slot(self, slot: int) -> None:
        """One worker after the other, each killed."""
        draw = Random(f"{self._seed} {slot}")  # noqa: S311  -- when to kill, not noise
        with tempfile.TemporaryFile("w+") as said:
            nursery = start_python(self._worker, said)
            late = _Deadline(nursery)
            try:
                for count in itertools.count():
                    if not self._take():
                        break
                    with late:
                        alive = self._live_and_die(f"w{slot}-{count}", nursery, draw)
                    if not alive:
                        said.seek(0)
                        raise ChaosFailed(f"worker w{slot}-{count} ended by itself: {said.read().strip()[-1000:]}")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(nursery.pid, signal.SIGKILL)  # and its child
                nursery.communicate()

    def _take(self) -> bool:
        with self._lock:
            taken = self._left > 0 and not self._over.is_set()
            self._left -= taken
            return taken

    def _live_and_die(self, name: str, nursery: subprocess.Popen[str], draw: Random) -> bool:
        """Whether it lived until it was killed."""
        stages = self._folder / f"{name}.stages"
        stages.write_bytes(bytes(self._threads))
        task: dict[str, Any] = {
            "location": self._place.location,
            "name": name,
            "log": str(self._folder / f"{name}.log"),
        }
        task |= {"stages": str(stages), "seed": self._seed, "threads": self._threads, "users": list(_USERS)}
        opening = draw.random() < 0.1
        life = 0.03 * draw.random() ** 2 if opening else draw.uniform(0.0, self._life_seconds)
        tell(nursery, json.dumps(task))
        word, _, pid = hear(nursery).strip().partition(" ")
        if word != "opening" or (not opening and hear(nursery) != "serving\n"):
            return False
        self._over.wait(life)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        while (line := hear(nursery)) == "serving\n":
            pass
        with self._lock:
            self.kills += 1
            self.killed_in.update(STAGES[stage] for stage in stages.read_bytes())
        stages.unlink()
        self._told(self.kills)
        return line == f"ended {-signal.SIGKILL}\n"

    def _sweep(self) -> None:
        """What a server that lives on does: forfeit what has outlived its lease, erase recorded answers in time."""
        ledger: Ledger | None = None
        while not self._over.wait(_SWEEP_SECONDS):
            try:
                ledger = ledger or open_ledger(self._place.location)
                ledger.forfeit_expired()
                ledger.erase_expired_claims()
            except LedgerDamaged:
                raise
            except LedgerUnavailable:
                continue
        if ledger is not None:
            ledger.close()

    def _kill_server(self, kills_per_server_kill: int) -> None:
        server = self._place.server
        draw = Random(f"{self._seed} server")  # noqa: S311  -- when to kill, not noise
        after = draw.uniform(0.5, 1.5) * kills_per_server_kill
        while server is not None and not self._over.wait(0.01):
            if self.kills >= after:
                server.kill()
                time.sleep(draw.uniform(0.0, 0.2))
                server.start()
                self.server_kills += 1
                after = self.kills + draw.uniform(0.5, 1.5) * kills_per_server_kill


class _Deadline:
    """Kills a nursery whose worker does not begin, or does not end, in good time; then `hear` hears nothing."""

    def __init__(self, nursery: subprocess.Popen[str]) -> None:
        self._nursery = nursery
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        self._timer = threading.Timer(_START_SECONDS, os.killpg, (self._nursery.pid, signal.SIGKILL))
        self._timer.daemon = True
        self._timer.start()

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
