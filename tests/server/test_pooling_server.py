"""The `vllm` backend against a real `vllm serve --runner pooling` of a tiny Llama classifier with random weights."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from reticent.rewards.backends import build_backend
from reticent.rewards.bounds import ClipBound
from reticent.rewards.encoders.base import Subject
from reticent.rewards.errors import BackendUnavailable, ModelUnusable
from reticent.rewards.profile import ModelProfile
from tests.server.conftest import free_port

pytestmark = pytest.mark.server
START_SECONDS = 300
PROMPT = "Passage: Ada has a cat. Question: What pet has Ada?"
ANSWERS = ["Ada has a cat.", "A dog.", "It is not stated. " * 5, "x", "", "Ada " * 500]


@dataclass
class Pooling:
    url: str
    folder: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def pooling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pooling]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (make install)")
    from tests.fakes.tiny_rewards import make_classifier

    folder = tmp_path_factory.mktemp("pooling")
    make_classifier("llama", folder / "m", hidden_size=128, intermediate_size=128, head_dim=32, initializer_range=0.15)
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder / "m"), "--runner", "pooling"),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--block-size", "32", "--max-num-seqs", "16", "--enforce-eager"),
    ]
    settings = {"VLLM_USE_AOT_COMPILE": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_CI_ENV": "1"}
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings, "VLLM_NO_USAGE_STATS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            time.sleep(0.5)
        else:
            pytest.fail(f"the pooling server did not start:\n{log.read_text()[-4000:]}")
        yield Pooling(f"http://127.0.0.1:{port}", folder / "m", process)
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def profile(pooling: Pooling, **more: Any) -> ModelProfile:
    fields: dict[str, Any] = {
        "backend": "vllm",
        "name": "tiny",
        "revision": "1",
        "bound": ClipBound(-100.0, 100.0, 200.0),
        "max_length": 256,
        "folder": pooling.folder,
        "url": pooling.url,
        **more,
    }
    return ModelProfile(**fields)


@pytest.mark.parametrize("route", ["classify", "pooling"])
def test_a_pooling_server_gives_the_raw_rewards_of_a_plain_forward(pooling: Pooling, route: str) -> None:
    local = build_backend(profile(pooling, backend="transformers", url=None))
    expected = local.score(Subject(PROMPT), ANSWERS)
    long_subject = Subject(PROMPT * 50)
    with contextlib.closing(build_backend(profile(pooling, route=route))) as remote:
        found = remote.score(Subject(PROMPT), ANSWERS)
        alone = [remote.score(Subject(PROMPT), [answer])[0] for answer in ANSWERS]
        cut = remote.score(long_subject, ANSWERS)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found[4:] == [0.0, 0.0]
    assert max(expected[:4]) - min(expected[:4]) > 0.1
    assert alone == pytest.approx(found, abs=1e-5)
    assert cut == pytest.approx(local.score(long_subject, ANSWERS), abs=1e-4)


def test_another_model_name_is_refused_at_the_start(pooling: Pooling) -> None:
    with pytest.raises(ModelUnusable, match="404"):
        build_backend(profile(pooling, name="other"))


def test_a_pooling_server_that_went_away_costs_nothing(pooling: Pooling) -> None:
    with contextlib.closing(build_backend(profile(pooling, retries=0))) as backend:
        pooling.process.send_signal(signal.SIGINT)
        pooling.process.wait(60)
        with pytest.raises(BackendUnavailable):
            backend.score(Subject(PROMPT), ANSWERS)
