"""The gateway in front of a plain `vllm serve`, and evidence lift on both ways in, through the real processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from reticent.accounting.audit import verify
from reticent.plugin.embedded.engine import engine_arguments, engine_environment
from reticent.plugin.embedded.state import prepare
from tests.server.conftest import MODEL, ROOT, START_SECONDS, free_port, require_model, running_server

pytestmark = pytest.mark.server

NAME = "SmolLM2-135M-Instruct"
PASSAGE = "Greta works as a painter. Greta has a turtle. Greta lives in Oakbridge."


@contextlib.contextmanager
def running(command: list[str], ready: str, log: Path, **environment: str) -> Iterator[None]:
    """A process that is ready when `ready` answers 200; stopped by its process id."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(ready, timeout=5).status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[:4]} did not become ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """(base URL, state folder, keys) of a gateway over a raw vLLM, with evidence lift as its score."""
    require_model()
    state = tmp_path_factory.mktemp("gateway")
    prepared = prepare(state, ROOT / "deploy" / "embedded" / "tenants.yaml")
    upstream, port = free_port(), free_port()
    document: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "embedded" / "reticent.yaml").read_text())
    document["model"]["upstreams"] = [f"http://127.0.0.1:{upstream}/v1"]
    document["server"]["port"] = port
    document["rewards"]["head"] = str(ROOT / "deploy" / "embedded" / "head.json")
    document["gate"] = {"score": "evidence_lift", "certificates": []}
    config = state / "gateway.yaml"
    config.write_text(yaml.safe_dump(document))
    vllm = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(MODEL), *engine_arguments()),
        *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(upstream), "--generation-config", "vllm"),
    ]
    quiet = {**engine_environment(), "VLLM_LOGGING_LEVEL": "WARNING"}
    command = [sys.executable, "-m", "reticent.plugin.cli", "gateway", "--config", str(config)]
    with (
        running(vllm, f"http://127.0.0.1:{upstream}/health", state / "vllm.log", **quiet),
        running(command, f"http://127.0.0.1:{port}/ready", state / "gateway.log", **prepared.environment()),
    ):
        yield f"http://127.0.0.1:{port}/v1", state, prepared.keys


def ask(base_url: str, key: str, **extension: Any) -> Any:
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=120)
    return client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "What pet does Greta have?"}],
        user="gwen",
        extra_body={"reticent": {"evidence": [PASSAGE], **extension}},
    )


@pytest.mark.parametrize("rule", ["privbon", "privitp", "bon", "itp"])
def test_every_rule_answers_through_the_gateway(gateway: tuple[str, Path, dict[str, str]], rule: str) -> None:
    base_url, _, keys = gateway
    answer = ask(base_url, keys["demo-open"], rule=rule)
    assert answer.choices[0].message.content
    assert answer.reticent["selection"] == rule
    assert answer.usage.completion_tokens > 0


def test_the_gateway_compares_with_the_prompt_without_evidence(gateway: tuple[str, Path, dict[str, str]]) -> None:
    base_url, _, keys = gateway
    scores = [ask(base_url, keys["demo-open"]).reticent["score"] for _ in range(3)]
    assert all(score is not None and 0 < score <= 1 for score in scores)


def test_without_a_certificate_the_gateway_refuses(gateway: tuple[str, Path, dict[str, str]]) -> None:
    base_url, state, keys = gateway
    answer = ask(base_url, keys["demo-strict"])
    assert answer.choices[0].message.refusal
    assert answer.reticent["certificate"]["status"] == "no_certificate"
    assert verify(state / "ledger.db").findings == ()


def test_the_engine_compares_with_the_prompt_without_evidence(tmp_path: Path) -> None:
    with running_server(tmp_path / "lift", RETICENT_GATE__SCORE="evidence_lift") as server:
        scores = [ask(server.base_url, server.keys["demo-open"]).reticent["score"] for _ in range(3)]
        assert all(score is not None and 0 < score <= 1 for score in scores)
        strict = ask(server.base_url, server.keys["demo-strict"])
        assert "score.name" in strict.reticent["certificate"]["detail"]


def test_vllm_without_the_plugin_does_not_start(tmp_path: Path) -> None:
    require_model()
    # As `reticent serve` starts it, but with no plugin allowed: vLLM itself would go on and serve raw answers.
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(MODEL), *engine_arguments()),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--middleware", "reticent.plugin.endpoint.RequireReticent"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
    environment |= engine_environment()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS, cwd=ROOT)
    assert ended.returncode == 78
    assert "reticent is not attached to this vLLM server" in ended.stderr
