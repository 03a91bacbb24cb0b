"""The HTTP surface: bad input is refused in OpenAI's form and leaves the ledger as it was; nothing private leaves.

The last part talks to a real uvicorn on loopback with the real `openai` client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from reticent.accounting.ledger_errors import LedgerUnavailable
from reticent.plugin.errors import SourceUnavailable
from reticent.plugin.logs import JsonLines
from reticent.plugin.settings import ROUTES
from reticent.rewards import WorkerFailed, WorkerUnavailable
from tests.fakes.build import (
    KEYS,
    MODEL,
    World,
    certificate,
    chat_body,
    facts_for,
    make_settings,
    make_world,
    run,
    until,
    world,
)
from tests.fakes.parts import FakeRewards, FakeSource
from tests.fakes.serving import open_with_app, serving

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error object, after its form was checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["code"] == code
    return error


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
    ("tools", {"json": chat_body(tools=[{"type": "function"}])}, 400, "unsupported_parameter", "tools"),
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


def test_the_budget_route_shows_the_callers_scopes_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            async with w.client("lenient") as client:
                await client.post(CHAT, json=chat_body(user="bob"))
            async with w.client() as client:
                await client.post(CHAT, json=chat_body(user="ann"))
                body = (await client.get("/v1/reticent/budget")).json()
                assert (body["object"], body["order"]) == ("reticent.budget", 20.0)
                assert [s["kind"] for s in body["scopes"]] == ["tenant", "dataset"]
                body = (await client.get("/v1/reticent/budget?user=ann")).json()
                ann, tenant, dataset = body["scopes"]
                assert (ann["scope"], tenant["scope"]) == ("user:notes/strict/ann", "tenant:notes/strict")
                assert ann["spent"] == tenant["spent"] == w.scopes("strict", "ann")["user"].spent / 1e9
                assert (dataset["spent"], dataset["reserved"]) == (None, None)
                assert dataset["remaining"] <= w.scopes_of("dataset:notes").remaining / 1e9
                assert ann["granted"] + 0.51 < ann["epsilon"] == 20.0
                assert ann["guaranteed_epsilon"] <= 20.0
                # Another tenant's user, or one never seen, or a name that is none, shows nothing of them.
                head = w.ledger.head()
                for user in ("bob", "nobody", "", "../lenient/bob", "x" * 1000):
                    body = (await client.get("/v1/reticent/budget", params={"user": user})).json()
                    assert [s["scope"] for s in body["scopes"]] == ["tenant:notes/strict", "dataset:notes"]
                assert w.ledger.head() == head
            async with w.client(None) as client:
                for path in ("/v1/reticent/budget", "/v1/reticent/certificate", "/v1/models"):
                    error_of(await client.get(path), 401, "invalid_api_key")

    run(story())


def test_the_other_routes_answer(tmp_path: Path) -> None:
    async def story() -> None:
        certified = certificate(facts_for(make_settings(tmp_path)))
        async with world(tmp_path, certificates=[certified]) as w, w.client() as client:
            models = (await client.get("/v1/models")).json()
            assert [m["id"] for m in models["data"]] == [MODEL]
            shown = (await client.get("/v1/reticent/certificate")).json()["data"]
            assert shown == json.loads(json.dumps([certified.declaration()]))
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert (await client.get("/ready")).json()["status"] == "ready"
            w.rewards.healthy = False
            assert "worker" in error_of(await client.get("/ready"), 503, "unavailable")["message"]

    run(story())


def test_metrics_and_all_accounts_are_the_operators(tmp_path: Path) -> None:
    async def story() -> None:
        certified = certificate(facts_for(make_settings(tmp_path)))
        async with world(tmp_path, certificates=[certified]) as w:
            async with w.client("lenient") as client:
                await client.post(CHAT, json=chat_body(user="bob"))
                for path in ("/metrics", "/v1/reticent/scopes"):
                    error_of(await client.get(path), 401, "invalid_api_key")
            async with w.client(None) as client:
                for path in ("/metrics", "/v1/reticent/scopes"):
                    error_of(await client.get(path), 401, "invalid_api_key")
            async with w.client("operator") as client:
                text = (await client.get("/metrics")).text
                assert 'reticent_requests_total{outcome="selected",rule="privbon"} 1.0' in text
                assert "reticent_certificate_expiry_timestamp_seconds" in text
                scopes = (await client.get("/v1/reticent/scopes")).json()["scopes"]
                spent = {s["scope"]: s["spent"] for s in scopes}
                charge = w.plan().rule.worst_case / 1e9
                assert spent["dataset:notes"] == spent["user:notes/lenient/bob"] == charge
                # The operator's key opens no chat.
                error_of(await client.post(CHAT, json=chat_body()), 401, "invalid_api_key")

    run(story())


def test_without_an_operators_key_nobody_is_the_operator_and_metrics_may_be_opened(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {"operator_key_sha256": None}) as w, w.client("operator") as client:
            error_of(await client.get("/v1/reticent/scopes"), 401, "invalid_api_key")
            error_of(await client.get("/metrics"), 401, "invalid_api_key")
        async with world(tmp_path, {"server.metrics": "open"}) as w, w.client(None) as client:
            assert "reticent_requests_total" in (await client.get("/metrics")).text

    run(story())


def test_the_list_of_routes_is_what_the_application_answers(tmp_path: Path) -> None:
    w = make_world(tmp_path)
    paths = {getattr(route, "path", None) for route in w.app.routes}
    assert paths == set(ROUTES)
    run(w.core.close())


CANARIES = {
    "prompt": "CANARYPROMPT",
    "evidence": "CANARYEVIDENCE",
    "answer": "CANARYANSWER",
    "reward": "0.123456789",
    "user": "CANARYUSER",
}


def test_nothing_private_is_in_a_log_a_metric_an_error_a_header_or_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Canaries in prompt, evidence, answer and reward; the key itself. The user's name stands in the ledger alone."""
    answers = iter(range(10**6))
    leaked: list[str] = []

    def remember(response: httpx.Response, answered: bool) -> None:
        leaked.append(str(response.headers))
        if not answered:
            leaked.append(response.text)

    async def story() -> None:
        source = FakeSource(text=lambda i: f"CANARYANSWER {next(answers)}")
        rewards = FakeRewards(reward=lambda text: 0.123456789)
        async with world(tmp_path, {"tenants.2.user_budget.epsilon": 3.0}, source=source, rewards=rewards) as w:
            asked = chat_body("CANARYPROMPT?", user="CANARYUSER", reticent={"evidence": ["CANARYEVIDENCE"]})
            for tenant in KEYS:
                async with w.client(tenant) as client:
                    for rule in ("privbon", "privitp", "bon", "itp"):
                        asked["reticent"]["rule"] = rule
                        remember(await client.post(CHAT, json=asked), answered=tenant != "strict")
            async with w.client("open") as client:
                asked["reticent"]["rule"] = "privbon"
                w.rewards.fail = {len(w.rewards.calls) + 1: WorkerFailed("x")}
                remember(await client.post(CHAT, json=asked), answered=False)
                w.rewards.fail = {len(w.rewards.calls) + 1: RuntimeError("CANARYPROMPT CANARYANSWER 0.123456789")}
                remember(await client.post(CHAT, json=asked), answered=False)
                w.source.fail = {len(w.source.draws) + 1: RuntimeError("CANARYPROMPT CANARYANSWER")}
                remember(await client.post(CHAT, json=asked), answered=False)
                w.ledger.broken["settle"] = LedgerUnavailable("x")
                remember(await client.post(CHAT, json=asked), answered=False)
                w.ledger.broken.clear()
                remember(await client.post(CHAT, json={**asked, "CANARYLESS": 1}), answered=False)
                leaked.append((await client.get("/v1/reticent/budget")).text)
            async with w.client("operator") as client:
                metrics = (await client.get("/metrics")).text
                assert "reticent_worker_errors_total" in metrics
                leaked.append(metrics)
            leaked.append(
                json.dumps([entry for entry in w.journal() if entry[0] != "scope_opened"]).replace("CANARYUSER", "")
            )

    with caplog.at_level(logging.DEBUG):
        run(story())
    # httpx and asyncio log in this process too; the product's records and any traceback are what counts.
    leaked += [JsonLines().format(record) for record in caplog.records]
    leaked += [str(record.exc_info) for record in caplog.records if record.exc_info]
    everything = "\n".join(leaked)
    for what, canary in CANARIES.items():
        assert canary not in everything, what
    assert "0.12345" not in everything
    for key in KEYS.values():
        assert key not in everything
    assert any("without privacy" in record.getMessage() for record in caplog.records)


def test_a_log_line_has_listed_fields_and_of_an_exception_its_type_alone() -> None:
    record = logging.LogRecord("reticent.x", logging.ERROR, __file__, 1, "it failed", (), None)
    record.tenant, record.prompt = "strict", "CANARYPROMPT"
    try:
        raise ValueError("CANARYPROMPT")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = json.loads(JsonLines().format(record))
    assert line.keys() == {"time", "level", "logger", "message", "tenant", "exception"}
    assert (line["tenant"], line["exception"], line["message"]) == ("strict", "ValueError", "it failed")


def test_concurrent_requests_over_http_never_overspend(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**OBSERVE, "tenants.0.user_budget.epsilon": 2.0}) as w, w.client() as client:
            responses = await asyncio.gather(*(client.post(CHAT, json=chat_body()) for _ in range(50)))
            statuses = [r.status_code for r in responses]
            assert set(statuses) == {200, 403}
            scope = w.scopes()["user"]
            charge = w.plan().rule.worst_case
            assert scope.spent == statuses.count(200) * charge <= scope.granted
            assert statuses.count(200) == scope.granted // charge

    run(story())


# With the real client, over a real socket.


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, World]]:
    settings = {"tenants.1.user_budget.epsilon": 0.65}
    certified = certificate(facts_for(make_settings(tmp_path, settings)))
    made = make_world(tmp_path, settings, certificates=[certified])
    with serving(open_with_app(made)) as url:
        yield f"{url}/v1", made


def test_the_openai_client_gets_an_answer_and_the_extension(served: tuple[str, World]) -> None:
    url, _ = served
    with openai.OpenAI(base_url=url, api_key=KEYS["strict"], max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "What hangs in the hall?"}], user="ann"
        )
        assert (answer.choices[0].message.content or "").startswith("copper lantern")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        extension = answer.reticent  # type: ignore[attr-defined]
        assert extension["score_accepted"] is True
        assert set(extension["remaining"]) == {"user", "tenant", "dataset"}
        refused = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What hangs in the hall?"}],
            extra_body={"reticent": {"candidates": 2}},
        )
        assert refused.choices[0].message.content is None
        assert "another configuration" in (refused.choices[0].message.refusal or "")
        assert [m.id for m in client.models.list()] == [MODEL]


def test_the_openai_client_raises_its_own_errors(served: tuple[str, World]) -> None:
    url, _ = served
    messages: Any = [{"role": "user", "content": "x"}]
    with openai.OpenAI(base_url=url, api_key=KEYS["lenient"], max_retries=0) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as bad:
            create(model=MODEL, messages=messages, n=1_000_000_000)
        assert (bad.value.param, bad.value.code, bad.value.type) == ("n", "invalid_value", "invalid_request_error")
        with pytest.raises(openai.NotFoundError) as missing:
            create(model="large", messages=messages)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.PermissionDeniedError):
            create(model=MODEL, messages=messages, extra_body={"reticent": {"rule": "bon"}})
        create(model=MODEL, messages=messages)
        with pytest.raises(openai.PermissionDeniedError) as spent:
            create(model=MODEL, messages=messages, extra_body={"reticent": {"on_exhausted": "refuse"}})
        assert spent.value.code == "privacy_budget_exhausted"
        with pytest.raises(openai.APIStatusError) as large:
            create(model=MODEL, messages=[{"role": "user", "content": "x" * 2_000_000}])
        assert (large.value.status_code, large.value.code) == (413, "body_too_large")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=messages)


def test_the_asynchronous_openai_client_works_too(served: tuple[str, World]) -> None:
    url, made = served

    async def story() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEYS["open"], max_retries=0) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=MODEL,
                        messages=[{"role": "user", "content": "x"}],
                        user=f"user {i % 2}",
                        extra_body={"reticent": {"rule": rule}},
                    )
                    for i, rule in enumerate(["privbon", "privitp", "bon", "itp"])
                )
            )
            assert [a.reticent["rule"] for a in answers] == ["privbon", "privitp", "bon", "itp"]  # type: ignore[attr-defined]

    run(story())
    assert made.scopes("open", "user 0")["user"].settled == 2
