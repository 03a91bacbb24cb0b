"""The HTTP surface: bad input is refused in OpenAI's form and leaves the ledger as it was; nothing private leaves.

The last part talks to a real uvicorn on loopback with the real `openai` client.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.ledger_errors import LedgerUnavailable
from reticent.plugin.errors import SourceUnavailable
from reticent.rewards import WorkerFailed, WorkerUnavailable
from tests.fakes.build import (
    KEYS,
    MODEL,
    certificate,
    chat_body,
    error_of,
    facts_for,
    make_settings,
    make_world,
    run,
    until,
    world,
)
from tests.fakes.parts import FakeSource

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}


JSON = {"content-type": "application/json"}
HALF_A_PAIR = json.dumps(chat_body("\ud800")).encode()
GOOD = json.dumps(chat_body()).encode()

BAD: list[tuple[str, dict[str, Any], int, str, str | None]] = [
    ("unknown field", {"json": chat_body(colour="blue")}, 400, "unknown_parameter", "colour"),
    ("wrong type", {"json": chat_body(temperature="hot")}, 400, "invalid_value", "temperature"),
    ("a billion answers", {"json": chat_body(n=10**9)}, 400, "invalid_value", "n"),
    ("a billion candidates", {"json": chat_body(best_of=10**9)}, 400, "invalid_value", "best_of"),
    ("a billion tokens", {"json": chat_body(max_tokens=10**9)}, 400, "invalid_value", "max_tokens"),
    ("no messages", {"json": {"model": MODEL, "messages": []}}, 400, "invalid_value", "messages"),
    (
        "too many messages",
        {"json": {**chat_body(), "messages": chat_body()["messages"] * 101}},
        400,
        "invalid_value",
        "messages",
    ),
    (
        "an image",
        {"json": chat_body([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}])},  # type: ignore[arg-type]
        400,
        "invalid_value",
        "messages.0.content.0.type",
    ),
    ("an image of an answer", {"json": chat_body(modalities=["image"])}, 400, "unsupported_parameter", "modalities"),
    ("bad JSON", {"content": b"{", "headers": JSON}, 400, "invalid_value", None),
    ("no body", {"content": b"", "headers": JSON}, 400, "invalid_value", None),
    ("deep JSON", {"content": b"[" * 100_000, "headers": JSON}, 400, "invalid_value", None),
    ("NaN", {"content": GOOD[:-1] + b', "temperature": NaN}', "headers": JSON}, 400, "invalid_value", None),
    ("a key twice", {"content": GOOD[:-1] + b', "model": "x"}', "headers": JSON}, 400, "invalid_value", None),
    (
        "half a character",
        {"content": HALF_A_PAIR, "headers": JSON},
        400,
        "invalid_value",
        None,
    ),
    ("an unknown model", {"json": {**chat_body(), "model": "large"}}, 404, "model_not_found", "model"),
    ("a form", {"data": {"model": MODEL}}, 400, "invalid_value", None),
    ("no content type", {"content": GOOD}, 400, "invalid_value", None),
    ("plain text", {"content": GOOD, "headers": {"content-type": "text/plain"}}, 400, "invalid_value", None),
    ("no key", {"json": chat_body(), "headers": {"authorization": ""}}, 401, "invalid_api_key", None),
    ("a wrong key", {"json": chat_body(), "headers": {"authorization": "Bearer x"}}, 401, "invalid_api_key", None),
    ("basic", {"json": chat_body(), "headers": {"authorization": "Basic eDp5"}}, 401, "invalid_api_key", None),
    (
        "a rule without privacy",
        {"json": chat_body(reticent={"rule": "bon"})},
        403,
        "not_allowed_by_policy",
        "reticent.rule",
    ),
    ("an own noise scale", {"json": chat_body(reticent={"sigma": 9})}, 400, "unknown_parameter", "reticent.sigma"),
    ("a large body", {"content": b" " * 1_000_001, "headers": JSON}, 413, "body_too_large", None),
    ("50 MB", {"content": b" " * 50_000_000, "headers": JSON}, 413, "body_too_large", None),
]


@pytest.mark.parametrize(("request_", "status", "code", "param"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_refused_in_form_and_the_ledger_is_unchanged(
    tmp_path: Path, request_: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async def story() -> None:
        async with world(tmp_path) as w, w.client() as client:
            head = w.ledger.head()
            response = await client.post(CHAT, **request_)
            error = error_of(response, status, code)
            assert error["param"] == param
            assert w.ledger.head() == head
            assert w.events == []

    run(story())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/completions", 404),
        ("POST", "/v1/responses", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1/chat/completions/batch", 404),
        ("POST", "/v1/../v1/completions", 404),
        ("GET", CHAT, 405),
        ("PUT", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/metrics", 405),
        ("GET", "/" + "é" * 5000, 404),
    ],
)
def test_unknown_routes_and_methods_are_refused_in_form(tmp_path: Path, method: str, path: str, status: int) -> None:
    async def story() -> None:
        async with world(tmp_path) as w, w.client() as client:
            response = await client.request(method, path, follow_redirects=False)
            error_of(response, status, "not_found" if status == 404 else "invalid_value")
            assert len(response.content) < 3000
            if status == 405:
                assert response.headers["allow"]

    run(story())


def test_a_body_is_given_up_as_soon_as_it_is_too_large(tmp_path: Path) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while sent < 100:
            sent += 1
            yield b" " * 100_000

    async def story() -> None:
        async with world(tmp_path) as w:
            scope = {
                "type": "http",
                "method": "POST",
                "path": CHAT,
                "raw_path": CHAT.encode(),
                "query_string": b"",
                "headers": [
                    (b"authorization", f"Bearer {KEYS['strict']}".encode()),
                    (b"content-type", b"application/json"),
                ],
                "http_version": "1.1",
                "scheme": "http",
                "server": ("test", 80),
                "client": ("test", 1),
                "root_path": "",
            }
            body = endless()
            got: list[Any] = []

            async def receive() -> Any:
                return {"type": "http.request", "body": await anext(body), "more_body": True}

            async def send(message: Any) -> None:
                got.append(message)

            await w.app(scope, receive, send)
            assert got[0]["status"] == 413
            assert sent <= 12

    run(story())


def test_a_client_that_leaves_while_it_sends_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            scope = {
                "type": "http",
                "method": "POST",
                "path": CHAT,
                "query_string": b"",
                "headers": [
                    (b"authorization", f"Bearer {KEYS['strict']}".encode()),
                    (b"content-type", b"application/json"),
                ],
            }

            async def receive() -> Any:
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                raise AssertionError("nobody is there")

            await w.app(scope, receive, send)
            assert w.events == []

    with caplog.at_level(logging.WARNING):
        run(story())
    assert caplog.records == []


def test_the_answer_has_openais_form_and_the_extension(tmp_path: Path) -> None:
    async def story() -> None:
        certified = certificate(facts_for(make_settings(tmp_path)))
        async with world(tmp_path, certificates=[certified]) as w, w.client() as client:
            response = await client.post(CHAT, json=chat_body(user="ann"))
            assert response.status_code == 200
            body = response.json()
            assert (body["object"], body["model"]) == ("chat.completion", MODEL)
            (choice,) = body["choices"]
            assert choice["message"]["content"].startswith("copper lantern")
            assert (choice["message"]["refusal"], choice["finish_reason"]) == (None, "stop")
            assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
            extension = body["reticent"]
            scopes = w.scopes("strict", "ann")
            for kind in ("user", "tenant"):
                assert extension["remaining"][kind] == scopes[kind].remaining / 1e9
            # The data set's account moves with other tenants' answers: a tenant is told hundredths, rounded down.
            dataset = scopes["dataset"]
            told = round(extension["remaining"]["dataset"] * 1e9)
            assert told % (dataset.granted // 100) == 0
            assert told <= dataset.remaining < told + dataset.granted // 100
            assert extension["charge"] == scopes["user"].spent / 1e9 > 0
            assert (extension["rule"], extension["selection"], extension["fallback"]) == ("privbon", "privbon", False)
            assert (extension["score_accepted"], extension["score"], extension["halting_time"]) == (True, None, None)
            assert extension["certificate"] == {
                "fingerprint": certified.fingerprint.digest,
                "status": "accepted",
                "detail": None,
                "digest": certified.digest,
                "target_risk": 0.3,
                "score": "self_consistency",
                "threshold": 0.5,
                "expires_at": certified.expires_at.isoformat(),
            }
            assert "warning" not in extension

    run(story())


@pytest.mark.parametrize("finish", ["stop", "length", "error"])
def test_the_finish_reason_is_one_that_openai_knows(tmp_path: Path, finish: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=FakeSource(finish=finish)) as w, w.client() as client:
            choice = (await client.post(CHAT, json=chat_body())).json()["choices"][0]
            assert choice["finish_reason"] == ("length" if finish == "length" else "stop")

    run(story())


def test_an_abstention_is_a_refusal_with_status_200_and_is_charged(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w, w.client() as client:
            response = await client.post(CHAT, json=chat_body())
            assert response.status_code == 200
            body = response.json()
            message = body["choices"][0]["message"]
            assert message["content"] is None
            assert "no certificate" in message["refusal"]
            assert body["choices"][0]["finish_reason"] == "stop"
            assert body["reticent"]["certificate"]["status"] == "no_certificate"
            assert body["reticent"]["score"] is None
            assert body["reticent"]["charge"] > 0
            assert "lantern" not in response.text

    run(story())


def test_an_observing_tenant_sees_answer_score_and_verdict(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w, w.client("lenient") as client:
            body = (await client.post(CHAT, json=chat_body())).json()
            assert body["choices"][0]["message"]["content"].startswith("copper")
            extension = body["reticent"]
            assert (extension["score_accepted"], extension["score"]) == (False, 1.0)
            assert extension["certificate"]["status"] == "no_certificate"

    run(story())


def test_a_rule_without_privacy_is_marked_and_has_no_charge(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w, w.client("open") as client:
            for rule in ("bon", "itp"):
                extension = (await client.post(CHAT, json=chat_body(reticent={"rule": rule}))).json()["reticent"]
                assert extension["charge"] is None
                assert "not private" in extension["warning"]
                assert extension["selection"] == rule
            private = (await client.post(CHAT, json=chat_body())).json()["reticent"]
            assert "warning" not in private
            assert private["charge"] > 0

    run(story())


SMALL = {f"tenants.{i}.user_budget.epsilon": 0.65 for i in (0, 1)}


def test_exhaustion_under_both_policies(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, SMALL) as w:
            async with w.client("strict") as client:
                assert (await client.post(CHAT, json=chat_body())).status_code == 200
                error = error_of(await client.post(CHAT, json=chat_body()), 403, "privacy_budget_exhausted")
                assert error["type"] == "permission_error"
                other = await client.post(CHAT, json=chat_body(user="somebody else"))
                assert other.status_code == 200
            async with w.client("lenient") as client:
                await client.post(CHAT, json=chat_body())
                spent = w.scopes("lenient")["user"].remaining
                body = (await client.post(CHAT, json=chat_body())).json()
                extension = body["reticent"]
                assert (extension["selection"], extension["charge"]) == ("base", 0.0)
                assert extension["certificate"]["status"] == "not_selected"
                assert extension["remaining"]["user"] == spent / 1e9
                assert body["choices"][0]["message"]["content"].startswith("copper")

    run(story())


@pytest.mark.parametrize(
    ("part", "error", "code"),
    [
        ("source", SourceUnavailable("The engine has stopped."), "engine_unavailable"),
        ("rewards", WorkerUnavailable("x"), "unavailable"),
        ("rewards", WorkerFailed("x"), "unavailable"),
        ("ledger", LedgerUnavailable("x"), "unavailable"),
    ],
)
def test_a_missing_part_is_a_503(tmp_path: Path, part: str, error: Exception, code: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w, w.client() as client:
            if part == "ledger":
                w.ledger.broken["reserve"] = error
            else:
                (w.source if part == "source" else w.rewards).fail = {1: error}
            found = error_of(await client.post(CHAT, json=chat_body()), 503, code)
            assert found["type"] == "server_error"

    run(story())


def test_an_unexpected_error_is_a_bare_500_and_its_text_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w, w.client() as client:
            w.rewards.fail = {1: KeyError("CANARY 0.123456789")}
            error_of(await client.post(CHAT, json=chat_body()), 500, "internal_error")
            assert w.scopes()["user"].spent == w.plan().rule.worst_case
            # The failure has cost the worst case: clients, which repeat a 500 by themselves, are told not to.
            w.rewards.fail = {2: KeyError("CANARY")}
            assert (await client.post(CHAT, json=chat_body())).headers["x-should-retry"] == "false"
            # Also where the failure is not in a request's own task.
            w.core.tenants = None  # type: ignore[assignment]
            error_of(await client.get("/v1/models"), 500, "internal_error")

    with caplog.at_level(logging.DEBUG):
        run(story())
    assert "CANARY" not in caplog.text
    assert "a request failed: KeyError" in caplog.text


def test_a_full_server_says_when_to_come_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**OBSERVE, "server.max_concurrent": 1}) as w, w.client() as client:
            w.source.hold = asyncio.Event()
            first = asyncio.create_task(client.post(CHAT, json=chat_body()))
            await until(lambda: bool(w.source.draws))
            response = await client.post(CHAT, json=chat_body())
            error_of(response, 429, "overloaded")
            assert response.headers["retry-after"] == "1"
            w.source.hold.set()
            assert (await first).status_code == 200

    run(story())


def test_a_stopped_server_says_503_and_not_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reticent.plugin.core._DRAIN_SECONDS", 0.05)

    async def story() -> None:
        w = make_world(tmp_path, OBSERVE)
        await w.core.start()
        w.source.hold = asyncio.Event()
        async with w.client() as client:
            waiting = asyncio.create_task(client.post(CHAT, json=chat_body()))
            await until(lambda: bool(w.source.draws))
            await w.core.close()
            error_of(await waiting, 503, "unavailable")

    run(story())
