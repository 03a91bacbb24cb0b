"""A real `vllm serve` with the plugin, the real reward worker and a real ledger, once for all tests of this folder."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / ".reticent" / "model"
START_SECONDS = 300


@dataclass
class RunningServer:
    """What a test may know of the server: its address, keys, state folder, process and log."""

    base_url: str
    keys: dict[str, str]
    operator_key: str
    state: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.db"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_model() -> None:
    """Skip where there is no vLLM, or no converted model."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (make install)")
    if not MODEL.is_dir():
        pytest.skip("the embedded model is not converted (make test does that)")


@contextlib.contextmanager
def running_server(state: Path, **environment: str) -> Iterator[RunningServer]:
    """Start `reticent embedded serve` on a free port with its state in `state`; stop it by its process id."""
    require_model()
    state.mkdir(parents=True, exist_ok=True)
    if not (state / "model").exists():
        (state / "model").symlink_to(MODEL)
    port = free_port()
    log = state / "server.log"
    command = [sys.executable, "-m", "reticent.plugin.cli", "embedded", "serve", "--state", str(state)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "RETICENT_SERVER__PORT": str(port), **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        root = f"http://127.0.0.1:{port}"
        _wait(process, root, log)
        keys = json.loads((state / "demo-keys.json").read_text())
        yield RunningServer(f"{root}/v1", keys["tenants"], keys["operator"], state, process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            pytest.fail("the server did not stop within a minute of SIGINT")


def _wait(process: subprocess.Popen[bytes], root: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{root}/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.5)
    pytest.fail(f"the server did not become ready (status {process.poll()}):\n{log.read_text()[-4000:]}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("embedded")) as started:
        yield started
