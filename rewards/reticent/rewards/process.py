"""The worker as a child process of whoever needs it: the server, or a test."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

import reticent

from .address import answers
from .client import RewardClient
from .errors import WorkerUnavailable
from .profile import ModelProfile
from .protocol import SECRET_VARIABLE

__all__ = ["WorkerProcess"]

_GRACE_SECONDS = 10.0


class WorkerProcess:
    """Starts a worker on a Unix socket, waits until it is ready, and stops it at the end; a context manager.

    It runs in a session of its own, so Ctrl-C at the terminal reaches the parent alone, which then stops it in order.
    It stops by itself when the parent dies. Only this process is ever signalled.

    Args:
        model: the head's file, or another model's profile.
        socket: where it will listen; the folder must exist.
        encoder_model, threads: as the worker's own options.
        secret: the shared secret; a fresh random one by default.
        start_timeout: seconds to become ready.
        progress: called with a short line now and then while waiting; None is silent.

    Raises (on entering):
        RuntimeError: it runs already.
        WorkerUnavailable: somebody listens there already, or it ended, or was not ready in time; the message has its
            last words.
    """

    def __init__(
        self,
        model: Path | ModelProfile,
        socket: Path,
        *,
        encoder_model: Path | None = None,
        threads: int = 1,
        secret: str | None = None,
        start_timeout: float = 120.0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.socket = socket
        self.secret = secret or secrets.token_urlsafe(32)
        self._start_timeout = start_timeout
        self._progress = progress
        which = ("--profile", model.to_json()) if isinstance(model, ModelProfile) else ("--head", str(model))
        self._arguments = [*which, "--socket", str(socket), "--threads", str(threads), "--stop-with-stdin"]
        if encoder_model is not None:
            self._arguments += ["--encoder-model", str(encoder_model)]
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_status: int | None = None
        self._given_up = threading.Event()
        self._errors = socket.with_name(socket.name + ".log")

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError outside the context."""
        if self._process is None:
            raise RuntimeError("the worker was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """How the process ended at the last `stop`: 0 is in order, negative by that signal; None before."""
        return self._exit_status

    def client(self, *, reward_max: float = 1.0, timeout: float = 60.0) -> RewardClient:
        """A client of this worker; the caller closes it."""
        return RewardClient(self.secret, socket=self.socket, reward_max=reward_max, timeout=timeout)

    def __enter__(self) -> Self:
        if self._process is not None:
            raise RuntimeError("the worker was started already")
        if self.socket.exists() and answers(self.socket):
            # Its answers would be taken for ours: the probe below cannot tell them apart.
            raise WorkerUnavailable(f"another process listens on {self.socket}; is a server running already?")
        command: Sequence[str] = [sys.executable, "-m", "reticent.rewards.worker", *self._arguments]
        descriptor = os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                env=self._environment(),
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask the process to stop, and kill it if it does not within ten seconds. Does nothing the second time."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._exit_status = process.returncode
        if process.stdin is not None:
            process.stdin.close()

    def restart(self) -> None:
        """Start it once more after it has ended; raises as entering does."""
        if not self._given_up.is_set():
            self.stop()
            self.__enter__()

    def give_up(self) -> None:
        """Let a start that is under way in another thread end soon, with WorkerUnavailable; none begins after it."""
        self._given_up.set()

    def kill(self) -> None:
        """Kill the process at once, as a crash would; for tests of what the server does then."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _environment(self) -> dict[str, str]:
        # The namespace may be on sys.path by hand (a checkout, a test run): the child must find it too.
        roots = [str(Path(folder).parent) for folder in reticent.__path__]
        inherited = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(dict.fromkeys([*roots, *(inherited.split(os.pathsep) if inherited else [])]))
        return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", SECRET_VARIABLE: self.secret}

    def _wait_until_ready(self) -> None:
        started = told = time.monotonic()
        transport = httpx.HTTPTransport(uds=str(self.socket), trust_env=False)
        headers = {"authorization": f"Bearer {self.secret}"}
        with httpx.Client(transport=transport, base_url="http://worker", headers=headers, trust_env=False) as http:
            while time.monotonic() - started < self._start_timeout:
                if self._given_up.is_set():
                    raise WorkerUnavailable("the start of the reward worker was given up")
                if not self.is_running:
                    raise WorkerUnavailable(f"the reward worker ended at its start: {self._last_words()}")
                if answers(self.socket) and self._is_ready(http):
                    return
                if self._progress is not None and time.monotonic() - told >= 2.0:
                    told = time.monotonic()
                    self._progress(f"reward worker: loading, {told - started:.0f} s")
                time.sleep(0.05)
        raise WorkerUnavailable(f"the reward worker was not ready in {self._start_timeout:.0f} s")

    @staticmethod
    def _is_ready(http: httpx.Client) -> bool:
        try:
            return http.get("/ready", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _last_words(self) -> str:
        text = self._errors.read_text(encoding="utf-8", errors="replace").strip()
        return text.splitlines()[-1][:500] if text else "no message"
