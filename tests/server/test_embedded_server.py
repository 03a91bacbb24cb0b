"""The story of `make demo` and the promises around it, through the real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from reticent.accounting.audit import verify
from reticent.plugin.embedded.demo import story
from tests.server.conftest import RunningServer

pytestmark = pytest.mark.server

MODEL = "SmolLM2-135M-Instruct"
PASSAGE = "Greta works as a painter. Greta has a turtle. Greta lives in Oakbridge."
QUESTION = "What pet does Greta have?"

SIDE_DOORS = (
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/invocations",
    "/inference/v1/generate",
    "/generative_scoring",
    "/classify",
    "/pooling",
    "/score",
    "/v1/score",
    "/rerank",
    "/tokenize",
    "/detokenize",
    "/v1/load_lora_adapter",
    "/collective_rpc",
    "/docs",
    "/openapi.json",
)


def ask(client: openai.OpenAI, **more: Any) -> Any:
    extension = {"evidence": [PASSAGE], **more.pop("reticent", {})}
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        extra_body={"reticent": extension},
        **{"user": "tester", **more},
    )


@pytest.fixture
def strict(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key=server.keys["demo-strict"], max_retries=0)


@pytest.fixture
def generous(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key=server.keys["demo-open"], max_retries=0)


def budget(server: RunningServer, tenant: str) -> dict[str, float]:
    """What is left for the tenant and for the data set, as the operator sees it."""
    answer = httpx.get(f"{server.base_url}/reticent/scopes", headers={"Authorization": f"Bearer {server.operator_key}"})
    scopes = {scope["scope"]: scope["remaining"] for scope in answer.raise_for_status().json()["scopes"]}
    return {"dataset": scopes["dataset:embedded-pairs"], "tenant": scopes[f"tenant:embedded-pairs/{tenant}"]}


def test_the_whole_story_goes_as_told(server: RunningServer) -> None:
    steps = list(story(server.base_url, MODEL, server.keys, seed=20261129))
    assert [step.title for step in steps if not step.well] == []
    assert {"refused", "exhausted: base answer", "exhausted: refused"} <= {step.result for step in steps}


def test_two_tenants_do_not_touch_each_others_budgets_and_both_touch_the_data_sets(
    server: RunningServer, strict: openai.OpenAI, generous: openai.OpenAI
) -> None:
    before = {tenant: budget(server, tenant) for tenant in ("demo-strict", "demo-open")}
    first = ask(strict).reticent["charge"]
    between = {tenant: budget(server, tenant) for tenant in ("demo-strict", "demo-open")}
    assert between["demo-open"]["tenant"] == before["demo-open"]["tenant"]
    assert before["demo-strict"]["tenant"] - between["demo-strict"]["tenant"] == pytest.approx(first, abs=1e-9)
    second = ask(generous).reticent["charge"]
    after = budget(server, "demo-open")
    assert before["demo-open"]["dataset"] - after["dataset"] == pytest.approx(first + second, abs=2e-9)


def test_a_stream_carries_the_settled_answer(generous: openai.OpenAI) -> None:
    chunks = list(ask(generous, stream=True, stream_options={"include_usage": True}, user="streamer"))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    last = next(chunk for chunk in reversed(chunks) if chunk.choices)
    assert text
    assert last.choices[0].finish_reason in ("stop", "length")
    assert last.reticent["charge"] > 0
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_a_client_that_hangs_up_pays_all_the_same(server: RunningServer) -> None:
    before = budget(server, "demo-open")["tenant"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "user": "leaver"}
    headers = {"Authorization": f"Bearer {server.keys['demo-open']}"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.base_url}/chat/completions", json=body, headers=headers, timeout=httpx.Timeout(5, read=0.05)
        )
    deadline = time.monotonic() + 60
    while budget(server, "demo-open")["tenant"] == before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert budget(server, "demo-open")["tenant"] < before


def test_privitp_tells_its_halting_time_and_bon_its_lack_of_privacy(generous: openai.OpenAI) -> None:
    lazy = ask(generous, reticent={"rule": "privitp"}, user="lazy").reticent
    assert 1 <= lazy["halting_time"] <= 8
    assert lazy["charge"] > 0
    for rule in ("bon", "itp"):
        raw = ask(generous, reticent={"rule": rule}, user="lazy").reticent
        assert raw["charge"] is None
        assert "not private" in raw["warning"]


def test_rules_without_privacy_need_a_policy(strict: openai.OpenAI) -> None:
    with pytest.raises(openai.PermissionDeniedError) as refused:
        ask(strict, reticent={"rule": "bon"})
    assert refused.value.code == "not_allowed_by_policy"


def test_another_configuration_than_the_certified_one_is_refused_by_the_gate(strict: openai.OpenAI) -> None:
    answer = ask(strict, max_tokens=7, user="other")
    assert answer.choices[0].message.content is None
    assert answer.choices[0].message.refusal
    assert answer.reticent["certificate"]["status"] == "fingerprint_mismatch"
    assert "sampling.max_tokens" in answer.reticent["certificate"]["detail"]


@pytest.mark.parametrize("path", SIDE_DOORS)
def test_side_doors_of_vllm_are_closed(server: RunningServer, path: str) -> None:
    headers = {"Authorization": f"Bearer {server.keys['demo-open']}"}
    for method in ("GET", "POST"):
        answer = httpx.request(method, server.root + path, headers=headers, json={"model": MODEL, "prompt": "hello"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"


def test_a_bad_request_leaves_the_ledger_unchanged(server: RunningServer) -> None:
    url = f"{server.base_url}/chat/completions"
    headers = {"Authorization": f"Bearer {server.keys['demo-open']}", "Content-Type": "application/json"}
    good = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}]
    before = verify(server.ledger)
    bodies: list[tuple[bytes, int]] = [
        (json.dumps({**good, "colour": "blue"}).encode(), 400),
        (json.dumps({**good, "temperature": "warm"}).encode(), 400),
        (json.dumps({**good, "n": 10**9}).encode(), 400),
        (json.dumps({**good, "messages": []}).encode(), 400),
        (json.dumps({**good, "messages": image}).encode(), 400),
        (b'{"model": ', 400),
        (b"[" * 100_000, 400),
        (json.dumps({**good, "model": "gpt-9"}).encode(), 404),
        (b" " * 50_000_000, 413),
    ]
    for body, status in bodies:
        answer = httpx.post(url, content=body, headers=headers, timeout=60)
        assert answer.status_code == status, body[:80]
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    for key in ("", "Bearer wrong", "Basic abc"):
        answer = httpx.post(url, json=good, headers={"Authorization": key})
        assert answer.status_code == 401
    assert verify(server.ledger).seq == before.seq


def test_the_auditor_agrees_with_the_ledger(server: RunningServer) -> None:
    report = verify(server.ledger)
    assert report.findings == ()
    assert report.open_reservations == 0


def test_logs_hold_no_prompt_no_answer_and_no_key(server: RunningServer, generous: openai.OpenAI) -> None:
    answer = generous.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "The canary sings zanzibar-7431."}], user="canary"
    )
    shown = server.log.read_text()
    served = (server.state / "vllm.log").read_text() + shown[shown.index("The story of this project") :]
    for secret in ("zanzibar-7431", answer.choices[0].message.content or "?", *server.keys.values()):
        assert secret not in served
    metrics = httpx.get(f"{server.root}/metrics").text
    assert "zanzibar" not in metrics
    assert "reticent_requests_total" in metrics


def test_a_killed_worker_means_503_and_a_released_reservation(server: RunningServer, generous: openai.OpenAI) -> None:
    # Last in this file: the server has no worker afterwards.
    before = budget(server, "demo-open")
    worker = _worker_of(server.process)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(10)
    with pytest.raises(openai.APIStatusError) as failed:
        ask(generous, user="unlucky")
    assert failed.value.status_code == 503
    assert budget(server, "demo-open") == before
    assert verify(server.ledger).findings == ()


def _worker_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    children = psutil.Process(process.pid).children(recursive=True)
    return next(child for child in children if "reticent.rewards" in " ".join(child.cmdline()))


def test_a_second_start_finds_the_ledger_as_it_was(server: RunningServer, tmp_path: Path) -> None:
    # The stores' own tests restart stores; here it is enough that opening what a server wrote changes no account.
    from reticent.accounting.store.sqlite import SqliteLedger

    ledger = SqliteLedger(server.ledger)
    try:
        spent = {s.scope_id: s.spent for s in ledger.list_scopes()}
    finally:
        ledger.close()
    assert spent["dataset:embedded-pairs"] == sum(v for k, v in spent.items() if k.startswith("tenant:"))
