"""Idempotency keys: who asks again is handed the answer that was paid for, and never another one."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from reticent.accounting.ledger_errors import LedgerUnavailable
from reticent.plugin.errors import BadRequest
from reticent.plugin.idempotency import claim_of
from reticent.plugin.ports import Candidate
from reticent.rewards import WorkerFailed, WorkerUnavailable
from tests.fakes.build import KEYS, MODEL, World, chat_body, error_of, make_world, run, until, world
from tests.fakes.parts import FakeRewards, FakeSource
from tests.fakes.serving import open_with_app, serving

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}, "tenants.1.policy": {"gate": "observe"}}


async def _post(made: World, key: str | None = "one", tenant: str = "strict", **more: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    async with made.client(tenant) as client:
        return await client.post(CHAT, json=chat_body(**more), headers=headers)


def _without_balances(response: httpx.Response) -> dict[str, Any]:
    document: dict[str, Any] = response.json()
    document["reticent"].pop("remaining")
    document["reticent"].pop("replayed", None)
    return document


def test_the_same_request_again_gets_the_recorded_answer_free_of_charge(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            first = await _post(made)
            spent = made.spent()
            again = await _post(made)
            assert again.status_code == 200
            assert again.headers["idempotent-replayed"] == "true"
            assert "idempotent-replayed" not in first.headers
            assert _without_balances(again) == _without_balances(first)
            assert again.json()["reticent"]["replayed"] is True
            assert again.json()["reticent"]["remaining"] == first.json()["reticent"]["remaining"]
            assert made.spent() == spent
            assert made.events.count("settle") == 1

    run(story())


def test_without_a_key_the_same_request_is_a_new_draw_and_a_new_charge(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            first, again = await _post(made, None), await _post(made, None)
            assert first.json()["id"] != again.json()["id"]
            assert made.events.count("settle") == 2

    run(story())


def test_a_replay_shows_the_balances_of_now(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            first = await _post(made)
            await _post(made, "two")
            again = await _post(made)
            then, now = (r.json()["reticent"]["remaining"]["user"] for r in (first, again))
            assert now == pytest.approx(then - first.json()["reticent"]["charge"])

    run(story())


def test_the_key_with_another_body_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            await _post(made)
            spent = made.spent()
            for more in ({"temperature": 0.1}, {"user": "somebody-else"}, {"text": "Another question?"}):
                response = await _post(made, **more)
                error_of(response, 409, "idempotency_key_reused")
                assert response.headers["x-should-retry"] == "false"
            assert {scope: made.spent()[scope] for scope in spent} == spent

    run(story())


def test_tenants_do_not_share_keys(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            first, other = await _post(made), await _post(made, tenant="lenient")
            assert other.status_code == 200
            assert other.json()["id"] != first.json()["id"]

    run(story())


def test_of_many_at_once_one_is_answered_and_the_others_are_told_to_wait(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            made.source.hold = asyncio.Event()
            waiting = [asyncio.create_task(_post(made)) for _ in range(6)]
            await until(lambda: sum(task.done() for task in waiting) == 5)
            made.source.hold.set()
            responses = await asyncio.gather(*waiting)
            assert sorted(r.status_code for r in responses) == [200] + [409] * 5
            for response in responses:
                if response.status_code == 409:
                    error_of(response, 409, "idempotency_key_in_use")
                    assert "x-should-retry" not in response.headers
            assert made.events.count("settle") == 1

    run(story())


def test_a_failure_before_any_reward_frees_the_key(tmp_path: Path) -> None:
    async def story() -> None:
        rewards = FakeRewards(fail={1: WorkerUnavailable("not there")})
        async with world(tmp_path, OBSERVE, rewards=rewards) as made:
            error_of(await _post(made), 503, "unavailable")
            assert (await _post(made)).status_code == 200

    run(story())


def test_a_failure_after_rewards_is_not_repeated_under_the_same_key(tmp_path: Path) -> None:
    async def story() -> None:
        rewards = FakeRewards(fail={1: WorkerFailed("broke")})
        async with world(tmp_path, OBSERVE, rewards=rewards) as made:
            error_of(await _post(made), 503, "unavailable")
            spent = made.spent()
            again = await _post(made)
            error_of(again, 409, "idempotent_answer_lost")
            assert again.headers["x-should-retry"] == "false"
            assert made.spent() == spent

    run(story())


def test_a_settlement_of_unknown_outcome_that_was_written_is_answered_from_the_record(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            made.ledger.after["settle"] = LedgerUnavailable("the connection broke after the commit", "unknown")
            made.ledger.again["settle"] = LedgerUnavailable("no connection", "nothing_written")
            error_of(await _post(made), 503, "unavailable")
            made.ledger.after.clear()
            made.ledger.broken.clear()
            again = await _post(made)
            assert again.status_code == 200
            assert again.headers["idempotent-replayed"] == "true"
            assert made.scopes()["user"].settled == 1

    run(story())


def test_a_spent_budget_takes_no_key_and_a_recorded_answer_needs_no_budget(tmp_path: Path) -> None:
    async def story() -> None:
        changes = {**OBSERVE, "tenants.0.user_budget.epsilon": 0.83}
        async with world(tmp_path, changes) as made:
            answers = [await _post(made, f"key {i}") for i in range(60)]
            spent = next(i for i, response in enumerate(answers) if response.status_code != 200)
            assert spent > 0
            error_of(answers[spent], 403, "privacy_budget_exhausted")
            error_of(await _post(made, f"key {spent}"), 403, "privacy_budget_exhausted")
            again = await _post(made, "key 0")
            assert _without_balances(again) == _without_balances(answers[0])

    run(story())


def test_an_answer_whose_time_is_over_is_erased_and_its_key_is_free(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**OBSERVE, "ledger.keep_answers_seconds": 0.05}) as made:
            first = await _post(made)
            await asyncio.sleep(0.1)
            await made.core.accounts.sweep()
            assert first.json()["choices"][0]["message"]["content"].encode() not in _all_bytes(tmp_path)
            again = await _post(made)
            assert again.json()["id"] != first.json()["id"]

    run(story())


def _all_bytes(folder: Path) -> bytes:
    """The ledger's rows as a program reads them (free pages of a database file may hold what was erased)."""
    import apsw

    connection = apsw.Connection(str(folder / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return b"".join(bytes(row[0] or b"") for row in connection.execute("SELECT answer FROM claims"))
    finally:
        connection.close()


def test_a_stream_is_replayed_as_a_stream(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
            first, again = await _post(made, **more), await _post(made, **more)
            assert again.headers["content-type"].startswith("text/event-stream")
            assert again.headers["idempotent-replayed"] == "true"

            def events(response: httpx.Response) -> list[Any]:
                lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
                found = [json.loads(line) for line in lines]
                for event in found:
                    event.pop("reticent", None)
                return found

            assert events(again) == events(first)
            assert again.text.endswith("data: [DONE]\n\n")
            assert made.events.count("settle") == 1

    run(story())


def test_an_abstention_is_recorded_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as made:
            first, again = await _post(made), await _post(made)
            assert first.json()["choices"][0]["message"]["refusal"]
            assert _without_balances(again) == _without_balances(first)
            stream = await _post(made, "two", stream=True)
            replayed = await _post(made, "two", stream=True)
            assert '"refusal"' in stream.text
            assert '"refusal"' in replayed.text

    run(story())


@pytest.mark.parametrize("key", ["", "k" * 256, "schlüssel", "tab\there"])
def test_a_key_that_is_none_is_refused_and_nothing_is_written(tmp_path: Path, key: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as made:
            caller = made.core.tenants.authenticate(f"Bearer {KEYS['strict']}")
            with pytest.raises(BadRequest) as refused:
                claim_of(key, caller, b"{}", 1.0)
            assert refused.value.code == "invalid_idempotency_key"
            assert made.events == []

    run(story())


def test_an_answer_too_long_to_keep_is_given_and_lost_to_who_asks_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=FakeSource(text=lambda index: "word " * 300_000)) as made:
            assert (await _post(made)).status_code == 200
            error_of(await _post(made), 409, "idempotent_answer_lost")

    run(story())


class _Slow(FakeSource):
    """Draws slowly enough for a second request to come in between."""

    async def draw(self, *args: Any, **more: Any) -> list[Candidate]:
        await asyncio.sleep(0.5)
        return await super().draw(*args, **more)


def test_the_openai_client_waits_for_the_answer_of_its_twin(tmp_path: Path) -> None:
    made = make_world(tmp_path, OBSERVE, source=_Slow())
    with serving(open_with_app(made)) as url:

        async def story() -> None:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEYS["strict"], max_retries=5) as client:
                headers = {"Idempotency-Key": "of the client"}
                ask = partial(client.chat.completions.create, **chat_body(), extra_headers=headers)
                first, second = await asyncio.gather(ask(), ask())
            assert first.model == MODEL
            assert first.id == second.id
            assert first.choices == second.choices

        run(story())
    assert made.events.count("settle") == 1
