"""What the surface tells to whom, what it never tells, and the real `openai` client over a real socket."""

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
from reticent.plugin.logs import JsonLines
from reticent.plugin.settings import ROUTES
from reticent.rewards import WorkerFailed
from tests.fakes.build import (
    KEYS,
    MODEL,
    World,
    certificate,
    chat_body,
    error_of,
    facts_for,
    make_settings,
    make_world,
    run,
    world,
)
from tests.fakes.parts import FakeRewards, FakeSource
from tests.fakes.serving import open_with_app, serving

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}


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
            assert len(shown) == 1
            declared = json.loads(json.dumps(certified.declaration()))
            assert {name: shown[0][name] for name in declared} == declared
            assert (shown[0]["status"], shown[0]["differs"]) == ("accepting", [])
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


ROOM = {"server.max_concurrent_per_tenant": 64}


def test_concurrent_requests_over_http_never_overspend(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            world(tmp_path, {**OBSERVE, "tenants.0.user_budget.epsilon": 2.0, **ROOM}) as w,
            w.client() as client,
        ):
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
