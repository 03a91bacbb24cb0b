"""Answers in a form (`response_format`): candidates without it are set aside unseen; without any there is a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reticent.plugin.errors import PromptRefused
from tests.fakes.build import certificate, chat_body, error_of, facts_for, make_settings, run, world
from tests.fakes.parts import FakeRewards, FakeSource

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}
OPEN: dict[str, Any] = {"tenants.0.policy": {"gate": "observe", "allow_nonprivate": True}}
OBJECT: dict[str, Any] = {"type": "json_object"}
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "lamp",
        "strict": True,
        "schema": {"type": "object", "properties": {"lamp": {"type": "string"}}, "required": ["lamp"]},
    },
}


def mixed(index: int) -> str:
    """Two of three have no form; the reward likes those."""
    return [f'{{"lamp": "copper {index}"}}', f"WRONG {index}", f'{{"lamp": {index}'][index % 3]


def likes_wrong(text: str) -> float:
    return 0.2 if text.endswith("}") else 1.0


@pytest.mark.parametrize("rule", ["privbon", "privitp", "bon", "itp"])
@pytest.mark.parametrize("form", [OBJECT, SCHEMA], ids=["object", "schema"])
def test_a_candidate_without_the_form_is_neither_scored_nor_chosen(
    tmp_path: Path, rule: str, form: dict[str, Any]
) -> None:
    async def story() -> None:
        source, rewards = FakeSource(text=mixed), FakeRewards(reward=likes_wrong)
        async with world(tmp_path, OPEN, source=source, rewards=rewards) as w, w.client() as client:
            for _ in range(8):
                body = chat_body(response_format=form, reticent={"rule": rule, "candidates": 4})
                (choice,) = (await client.post(CHAT, json=body)).json()["choices"]
                assert json.loads(choice["message"]["content"])["lamp"].startswith("copper")
            assert "WRONG" not in str(w.rewards.calls)
            assert {call[0] for call in w.rewards.calls} <= {mixed(i) for i in range(0, 30, 3)}

    run(story())


@pytest.mark.parametrize("rule", ["privbon", "privitp", "bon", "itp"])
@pytest.mark.parametrize("tenant", ["strict", "lenient", "open"])
def test_without_any_candidate_of_the_form_there_is_a_refusal_for_everybody(
    tmp_path: Path, rule: str, tenant: str
) -> None:
    if rule in ("bon", "itp") and tenant != "open":
        pytest.skip("not allowed to this tenant")

    async def story() -> None:
        source = FakeSource(text=lambda i: "WRONG")
        async with world(tmp_path, source=source) as w, w.client(tenant) as client:
            for stream in (False, True):
                body = chat_body(response_format=OBJECT, stream=stream, reticent={"rule": rule})
                response = await client.post(CHAT, json=body)
                assert response.status_code == 200
                assert "WRONG" not in response.text
                assert "in the form that was asked for" in "".join(response.text.split("\n")) or stream
            whole = (await client.post(CHAT, json=chat_body(response_format=OBJECT, logprobs=True))).json()
            (choice,) = whole["choices"]
            assert (choice["message"]["content"], choice["finish_reason"], choice["logprobs"]) == (None, "stop", None)
            assert whole["reticent"]["certificate"]["status"] == "no_valid_candidate"
            assert (whole["reticent"]["charge"], whole["reticent"]["score"]) == (0.0, None)
            # No reward was read, so nothing was charged; but the reservation was settled.
            assert w.rewards.calls == []
            scope = w.scopes(tenant)["user"]
            assert (scope.spent, scope.reserved, scope.settled) == (0, 0, 3)

    run(story())


def test_a_base_answer_has_the_form_or_is_none(tmp_path: Path) -> None:
    changes = {"tenants.1.user_budget.epsilon": 0.65}

    async def story() -> None:
        async with world(tmp_path, changes, source=FakeSource(text=mixed)) as w, w.client("lenient") as client:
            await client.post(CHAT, json=chat_body())
            body = (await client.post(CHAT, json=chat_body(response_format=OBJECT, n=3))).json()
            assert body["reticent"]["selection"] == "base"
            assert [c["message"]["content"] for c in body["choices"]] == [mixed(0), None, None]
            assert [c["message"]["refusal"] is None for c in body["choices"]] == [True, False, False]
            told = [c["certificate"]["status"] for c in body["reticent"]["choices"]]
            assert told == ["not_selected", "no_valid_candidate", "no_valid_candidate"]

    run(story())


@pytest.mark.parametrize("rule", ["privbon", "privitp"])
def test_the_charge_never_exceeds_the_reservation_whatever_fits(tmp_path: Path, rule: str) -> None:
    async def story() -> None:
        for every in (1, 2, 5, 50):
            folder = tmp_path / f"{every}"
            folder.mkdir()

            def text(index: int, every: int = every) -> str:
                return '{"lamp": "x"}' if index % every == every - 1 else "WRONG"

            async with world(folder, OBSERVE, source=FakeSource(text=text)) as w:
                for _ in range(6):
                    answer = await w.answer(response_format=SCHEMA, reticent={"rule": rule, "candidates": 5})
                    assert 0 <= answer.charge <= answer.plan.worst_case

    run(story())


def test_a_form_is_a_fact_of_those_requests_alone_that_ask_for_it(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    plain = facts_for(settings)
    neutral: list[Any] = [None, {"type": "text"}]
    for form in neutral:
        assert facts_for(settings, response_format=form) == plain
    asked = [facts_for(settings, response_format=form) for form in (OBJECT, SCHEMA)]
    assert asked[0] != plain != asked[1] != asked[0]
    certificates = [certificate(facts) for facts in (plain, *asked)]

    async def story() -> None:
        source = FakeSource(text=lambda i: '{"lamp": "copper"}')
        async with world(tmp_path, certificates=certificates[:2], source=source) as w, w.client() as client:
            wishes = ((None, "accepted"), (OBJECT, "accepted"), (SCHEMA, "fingerprint_mismatch"))
            for form, status in wishes:
                body = (await client.post(CHAT, json=chat_body(response_format=form))).json()
                assert body["reticent"]["certificate"]["status"] == status
        (tmp_path / "other").mkdir()
        async with world(tmp_path / "other", certificates=certificates) as w, w.client() as client:
            shown = (await client.get("/v1/reticent/certificate")).json()["data"]
            assert [c["status"] for c in shown] == ["accepting"] * 3

    run(story())


def test_a_schema_that_cannot_be_used_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w, w.client() as client:
            head = w.ledger.head()
            schemas: list[Any] = [{"type": "CANARY"}, {"$ref": "http://127.0.0.1/CANARY"}, {"properties": {"a": 1}}]
            for schema in schemas:
                form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
                response = await client.post(CHAT, json=chat_body(response_format=form))
                error = error_of(response, 400, "invalid_value")
                assert error["param"] == "response_format.json_schema.schema"
                assert "CANARY" not in response.text
            assert w.ledger.head() == head
            assert w.events == []

    run(story())


def test_a_schema_that_the_engine_refuses_is_the_clients_fault_and_costs_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        source = FakeSource(fail={1: PromptRefused("The engine refuses this request.", "response_format")})
        async with world(tmp_path, OBSERVE, source=source) as w, w.client() as client:
            error_of(await client.post(CHAT, json=chat_body(response_format=SCHEMA)), 400, "prompt_refused")
            assert w.scopes()["user"].spent == 0
            assert (await client.post(CHAT, json=chat_body())).status_code == 200

    run(story())
