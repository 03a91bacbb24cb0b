"""A disk slower than the one that is there: every write that must be durable takes longer by a fixed time.

What a ledger's speed hangs on is the time of one fsync, and that differs a hundredfold between disks. This adds to it
where the database itself asks for durability:

* SQLite: a file system layer (VFS) of SQLite that sleeps after every sync of the operating system's one;
* PostgreSQL: `commit_delay`, which sleeps before every flush of the write-ahead log while the flushing process holds
  the place, as a slow disk would make it wait.

Not simulated: throughput, writes of the database's own in the background, a disk whose times vary.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import apsw

__all__ = ["fsync_milliseconds", "postgres_settings", "slow_down_sqlite"]

_NAME = "reticent-slow-disk"


class _SlowFile(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], seconds: float) -> None:
        super().__init__(base, name, flags)
        self._seconds = seconds

    def xSync(self, flags: int) -> None:  # noqa: N802  -- SQLite's name
        super().xSync(flags)
        time.sleep(self._seconds)


class _SlowDisk(apsw.VFS):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._base = apsw.vfs_names()[0]  # the default until now
        super().__init__(_NAME, self._base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _SlowFile:  # noqa: N802
        return _SlowFile(self._base, name, flags, self._seconds)


def slow_down_sqlite(milliseconds: float) -> object:
    """Make every SQLite database that this process opens from now on slower. It lasts as long as the result is kept."""
    return _SlowDisk(milliseconds / 1e3)


def postgres_settings(milliseconds: float) -> dict[str, str]:
    """`postgresql.conf` of a server on a slower disk (at most 100 ms)."""
    return {"commit_delay": str(min(100_000, round(milliseconds * 1e3))), "commit_siblings": "0"}


def fsync_milliseconds(folder: Path, times: int = 200) -> tuple[float, float]:
    """How long the disk under `folder` takes to make 8 KiB durable: median and 99th percentile, in ms."""
    path = folder / f"fsync-{os.getpid()}"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    taken = []
    try:
        for _ in range(times):
            os.pwrite(handle, b"x" * 8192, 0)
            start = time.perf_counter()
            os.fsync(handle)
            taken.append((time.perf_counter() - start) * 1e3)
    finally:
        os.close(handle)
        path.unlink()
    taken.sort()
    return round(taken[times // 2], 4), round(taken[int(times * 0.99)], 4)
