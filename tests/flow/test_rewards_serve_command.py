"""`reticent rewards serve` as a real process with a real (tiny) classifier, and the worker started with a profile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from reticent.plugin.rewards_source import load_reward_model, open_rewards, worker_model
from reticent.plugin.settings import Settings, load_settings
from reticent.rewards.backends import build_backend
from reticent.rewards.encoders.base import Subject
from reticent.rewards.errors import WorkerUnavailable
from reticent.rewards.process import WorkerProcess
from reticent.rewards.profile import ModelProfile
from tests.fakes.build import settings_document

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.anyio

SUBJECT = Subject("What pet has Ada?")
CANDIDATES = ["Ada has a cat.", "", "It is not stated.", "Ada " * 400]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.fakes.tiny_rewards import make_classifier

    folder = tmp_path_factory.mktemp("serve")
    make_classifier("llama", folder / "rm")
    (folder / "worker.secret").write_text("s" * 40)
    (folder / "worker.secret").chmod(0o600)
    return folder


def configure(folder: Path, **rewards: Any) -> tuple[Path, Settings]:
    document = settings_document(folder)
    del document["rewards"]["head"]
    document["rewards"] |= {
        "model": {
            "backend": "transformers",
            "name": "tiny",
            "revision": "1",
            "bound": "sigmoid:0,1",
            "max_length": 128,
            "folder": "rm",
        },
        "sensitivity": "range",
        "threads": 1,
        "managed": False,
        **rewards,
    }
    path = folder / "reticent.yaml"
    path.write_text(yaml.safe_dump(document))
    return path, load_settings(path)


async def test_rewards_serve_scores_as_its_model_does_and_ends_in_order(folder: Path) -> None:
    path, settings = configure(folder)
    model = worker_model(settings.rewards)
    assert isinstance(model, ModelProfile)
    command = [sys.executable, "-m", "reticent.plugin.cli", "rewards", "serve", "--config", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as child,  # noqa: ASYNC220 - nothing else runs
    ):
        try:
            async with open_rewards(settings.rewards, load_reward_model(settings.rewards)) as client:
                deadline = time.monotonic() + 60
                while not await client.is_ready():
                    assert child.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.1)  # noqa: ASYNC251 - nothing else runs
                assert await client.is_healthy()
                rewards = await client.score(SUBJECT, CANDIDATES)
        finally:
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) == 0
    assert rewards == pytest.approx(build_backend(model).score(SUBJECT, CANDIDATES), abs=1e-5)
    assert rewards[1] == rewards[3] == 0.0
    assert (folder / "log").read_text() == ""
    assert not (folder / "worker.sock").exists()


def test_rewards_serve_refuses_a_worker_that_the_server_starts_itself(folder: Path) -> None:
    path, _ = configure(folder, managed=True)
    command = [sys.executable, "-m", "reticent.plugin.cli", "rewards", "serve", "--config", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert ended.returncode == 78
    assert "managed" in ended.stderr


async def test_a_managed_worker_takes_a_profile_and_can_start_again(folder: Path) -> None:
    _, settings = configure(folder)
    model = worker_model(settings.rewards)
    with WorkerProcess(model, folder / "w") as worker:
        first = worker.pid
        worker.kill()
        worker.restart()
        assert worker.pid != first
        async with worker.client() as client:
            assert len(await client.score(SUBJECT, CANDIDATES)) == len(CANDIDATES)
        worker.give_up()
        worker.kill()
        worker.restart()
        assert not worker.is_running


def test_a_model_that_cannot_be_used_does_not_start(folder: Path) -> None:
    _, settings = configure(folder)
    model = worker_model(settings.rewards)
    assert isinstance(model, ModelProfile)
    broken = ModelProfile.from_dict({**model.to_dict(), "max_length": 9999})
    with pytest.raises(WorkerUnavailable, match="256 tokens"), WorkerProcess(broken, folder / "w2"):
        pass
