"""The embedded store: one SQLite file, which several processes of one machine may use at once.

Durability: WAL with ``synchronous=FULL``; every commit has reached the disk (as far as the operating system and the
drive tell the truth) before the call returns. All writes of a process go through one connection, those that come
together in one ``BEGIN IMMEDIATE`` transaction, so nothing comes between a check and its debit; other processes wait
for the file's lock. Reads use connections of their own and see the last committed state.
Not for network file systems: WAL needs shared memory.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from reticent.accounting.audit import Report, verify
from reticent.accounting.journal import JournalHead
from reticent.accounting.ledger_errors import LedgerMissing, LedgerUnavailable, UnsupportedSqlite
from reticent.accounting.store import checks
from reticent.accounting.store.base import OperationLedger, wall_clock_us
from reticent.accounting.store.migrate import check_schema, migrate
from reticent.accounting.store.readers import IdleReaders
from reticent.accounting.store.sqlite_rows import SqliteRows

__all__ = ["SqliteLedger"]

_NEEDED: Final = (3, 54)  # earlier ones can corrupt a WAL that two processes write


class SqliteLedger(OperationLedger):
    """``ledger.Ledger`` in one SQLite file.

    ``create=True`` makes the file if there is none. It is off by default, because a mistyped path would otherwise
    give everybody a fresh budget. The file is readable by its owner only (mode 0600, set again at every opening).
    ``busy_seconds`` is how long a call waits for other processes before ``LedgerUnavailable``.
    Do not carry it over a ``fork``: open another one in the child.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        busy_seconds: float = 30.0,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        super().__init__(clock_us)
        _refuse_old_sqlite(apsw.sqlite_lib_version())
        self._path = Path(path).absolute()
        self._busy_seconds = checks.number_in("busy_seconds", busy_seconds, 0.0, 3600.0)
        self._write_lock = threading.Lock()
        self._readers: IdleReaders[apsw.Connection] = IdleReaders()
        with _store_errors():
            _make_private(self._path, create=create)
            self._writer = self._connect()
            try:
                _use_wal(self._writer, self._busy_seconds)
                migrate(self._writer, create=create)
                check_schema(self._writer)
            except BaseException:
                self._writer.close()
                raise
        try:
            self._begin_journal()
        except BaseException:
            self.close()
            raise

    # Transactions

    @contextmanager
    def _writing(self) -> Iterator[SqliteRows]:
        with self._write_lock, _store_errors():
            self._refuse_unusable()
            writer = self._writer
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteRows(writer)
                _commit(writer)
            finally:
                # Also after a failed COMMIT and after KeyboardInterrupt.
                if writer.in_transaction:
                    writer.execute("ROLLBACK")

    @contextmanager
    def _reading(self) -> Iterator[SqliteRows]:
        with _store_errors():
            connection = self._readers.take() or self._connect_reader()
            try:
                connection.execute("BEGIN")
                yield SqliteRows(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._readers.give_back(connection)

    def verify(self, anchor: JournalHead | None = None) -> Report:
        """The independent auditor's report on this file: see ``audit.verify``."""
        self._refuse_unusable()
        return verify(self._path, anchor=None if anchor is None else (anchor.seq, anchor.hash))

    def close(self) -> None:
        with self._write_lock:
            if not self._closed:
                self._closed = True
                self._readers.close()
                self._writer.close()

    # Connections

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_handler(_Patience(self._busy_seconds))
        connection.execute("PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF")
        # What is erased is overwritten: recorded answers are content.
        connection.execute("PRAGMA secure_delete = ON")
        return connection

    def _connect_reader(self) -> apsw.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection


class _Patience:
    """Waits for another process's lock by looking again every half millisecond or so, up to a limit.

    SQLite's own timeout sleeps longer at every try, up to 100 ms, so that under load one process can wait for seconds
    while the others take turns.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._give_up = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._give_up = now + self._seconds
        if now >= self._give_up:
            return False
        time.sleep(random.uniform(0.0002, 0.0008))  # noqa: S311  -- spreads waiting processes, protects nothing
        return True


def _refuse_old_sqlite(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < _NEEDED:
        raise UnsupportedSqlite(version, ".".join(str(part) for part in _NEEDED))


def _commit(writer: apsw.Connection) -> None:
    """COMMIT. Where it fails, the transaction may be in the log all the same, and be found there after a crash."""
    try:
        writer.execute("COMMIT")
    except apsw.Error as error:
        raise LedgerUnavailable(f"unknown outcome: {type(error).__name__}: {error}", "unknown") from error


@contextmanager
def _store_errors() -> Iterator[None]:
    """Errors of SQLite; but for a COMMIT's, nothing was written before them."""
    try:
        yield
    except apsw.Error as error:
        raise LedgerUnavailable(f"{type(error).__name__}: {error}", "nothing_written") from error
    except OSError as error:
        raise LedgerUnavailable(f"{type(error).__name__}: {error.strerror}", "nothing_written") from error


def _make_private(path: Path, *, create: bool) -> None:
    """Make the file (0600 from its first moment) or take other users' access away; SQLite's own files follow it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        raise LedgerMissing(f"no ledger at {path}") from None
    try:
        if os.fstat(handle).st_mode & 0o177:
            os.fchmod(handle, 0o600)
    finally:
        os.close(handle)


def _use_wal(connection: apsw.Connection, busy_seconds: float) -> None:
    # The switch to WAL, needed once in a file's life, does not wait for other processes: it has to be tried again.
    give_up = time.monotonic() + busy_seconds
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").get
        except apsw.BusyError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            text = f"the file system allows no write-ahead log (journal mode {mode})"
            raise LedgerUnavailable(text, "nothing_written")
        return
