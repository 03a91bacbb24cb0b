"""Several choices (`n`): independent selections, one reservation, one settlement, and streams that keep them apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reticent.plugin.errors import BadRequest, SourceUnavailable
from reticent.plugin.together import together
from reticent.rewards import WorkerFailed, WorkerUnavailable
from tests.fakes.build import certificate, chat_body, error_of, facts_for, make_settings, plan_for, run, until, world
from tests.fakes.parts import FakeRewards, FakeSource

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}


def numbered(index: int) -> str:
    return f"answer {index}"


def events_of(text: str) -> list[dict[str, Any]]:
    blocks = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    assert blocks[-1] == "[DONE]"
    return [json.loads(block) for block in blocks[:-1]]


@pytest.mark.parametrize("rule", ["privbon", "privitp"])
def test_each_choice_is_a_selection_of_its_own_and_all_are_charged_together(tmp_path: Path, rule: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=FakeSource(text=numbered)) as w, w.client() as client:
            body = (await client.post(CHAT, json=chat_body(n=3, reticent={"rule": rule}))).json()
            assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
            assert len({choice["message"]["content"] for choice in body["choices"]}) == 3
            told = body["reticent"]
            assert [choice["index"] for choice in told["choices"]] == [0, 1, 2]
            charges = [round(choice["charge"] * 1e9) for choice in told["choices"]]
            assert all(charge > 0 for charge in charges)
            scope = w.scopes()["user"]
            assert (scope.spent, scope.reserved, scope.settled) == (sum(charges), 0, 1)
            assert round(told["charge"] * 1e9) == sum(charges)
            assert w.events.count("reserve") == w.events.count("settle") == 1
            assert all((c["halting_time"] is None) is (rule == "privbon") for c in told["choices"])
            assert not {"score", "score_accepted", "fallback", "halting_time", "certificate"} & told.keys()
            assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}

    run(story())


def test_one_reservation_holds_the_worst_case_of_all_choices(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            plan = w.plan(n=3)
            assert plan.worst_case == 3 * plan.rule.worst_case
            w.rewards.hold = asyncio.Event()
            task = w.core.submit(plan, "request-1")
            await until(lambda: bool(w.rewards.calls))
            assert w.scopes()["user"].reserved == plan.worst_case
            w.rewards.hold.set()
            assert len((await task).choices) == 3
            reserved = [payload for kind, payload in w.journal() if kind == "reserved"]
            assert reserved[-1]["details"]["choices"] == 3

    run(story())


def test_the_journal_of_one_choice_is_as_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            await w.answer(n=1, reticent={"rule": "privitp"})
            await w.answer(n=2, reticent={"rule": "privitp"})
            reserved = [payload["details"] for kind, payload in w.journal() if kind == "reserved"]
            assert ["choices" in details for details in reserved] == [False, True]
            one, two = (payload["details"] for kind, payload in w.journal() if kind == "settled")
            assert isinstance(one["halting_time"], int)
            assert len(two["halting_time"].split()) == 2

    run(story())


def test_a_budget_for_one_choice_is_none_for_two(tmp_path: Path) -> None:
    changes = {**OBSERVE, "tenants.0.user_budget.epsilon": 0.65, "tenants.1.user_budget.epsilon": 0.65}

    async def story() -> None:
        async with world(tmp_path, changes, source=FakeSource(text=numbered)) as w:
            async with w.client() as client:
                error_of(await client.post(CHAT, json=chat_body(n=2)), 403, "privacy_budget_exhausted")
                assert (await client.post(CHAT, json=chat_body())).status_code == 200
            async with w.client("lenient") as client:
                body = (await client.post(CHAT, json=chat_body(n=2))).json()
                told = body["reticent"]
                assert (told["selection"], told["charge"]) == ("base", 0.0)
                assert [c["charge"] for c in told["choices"]] == [0.0, 0.0]
                assert {c["certificate"]["status"] for c in told["choices"]} == {"not_selected"}
                assert [c["message"]["content"] for c in body["choices"]] == ["answer 0", "answer 1"]

    run(story())


def test_no_two_choices_draw_at_the_same_offset(tmp_path: Path) -> None:
    """A seed would give both the same candidates."""

    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            for rule in ("privbon", "privitp"):
                for _ in range(10):
                    w.source.draws.clear()
                    await w.answer(n=3, seed=5, reticent={"rule": rule})
                    places = [offset + i for count, _, offset in w.source.draws for i in range(count)]
                    assert len(set(places)) == len(places)

    run(story())


def test_the_limit_is_the_configurations_or_the_policys() -> None:
    def choices(n: int, changes: dict[str, Any] | None = None) -> int:
        return plan_for(make_settings(Path("nowhere"), changes), n=n).choices

    assert (choices(1), choices(8)) == (1, 8)
    assert choices(3, {"tenants.0.policy": {"max_choices": 3}}) == 3
    for n, changes in (
        (9, None),
        (512, None),
        (4, {"tenants.0.policy": {"max_choices": 3}}),
        (3, {"selection.max_choices": 2, "tenants.0.policy": {"max_choices": 3}}),
    ):
        with pytest.raises(BadRequest) as caught:
            choices(n, changes)
        assert caught.value.param == "n"


def test_several_choices_are_covered_by_no_certificate_that_was_made_for_one(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    assert facts_for(settings) == facts_for(settings, n=1)
    certificates = [certificate(facts_for(settings)), certificate(facts_for(settings, n=2))]

    async def story() -> None:
        async with world(tmp_path, certificates=certificates) as w, w.client() as client:
            for n, accepted in ((1, True), (2, True), (3, False)):
                body = (await client.post(CHAT, json=chat_body(n=n))).json()
                assert all((c["message"]["refusal"] is None) is accepted for c in body["choices"])
            status = (await client.get("/v1/reticent/certificate")).json()["data"]
            assert [c["status"] for c in status] == ["accepting", "accepting"]

    run(story())


def test_choices_are_judged_one_by_one(tmp_path: Path) -> None:
    """Two candidates of equal content agree with each other; the third choice's do not."""
    certified = [certificate(facts_for(make_settings(tmp_path), n=3, best_of=2))]

    def text(index: int) -> str:
        return "copper lantern" + "!" * index if index < 4 else f"thing{index} other{index}"

    async def story() -> None:
        async with world(tmp_path, certificates=certified, source=FakeSource(text=text)) as w, w.client() as client:
            body = (await client.post(CHAT, json=chat_body(n=3, best_of=2))).json()
            assert [c["message"]["refusal"] is None for c in body["choices"]] == [True, True, False]
            assert [c["score_accepted"] for c in body["reticent"]["choices"]] == [True, True, False]
            assert "other" not in json.dumps(body)
            assert body["usage"]["completion_tokens"] == 6
            assert w.metric("reticent_requests_total", outcome="selected", rule="privbon") == 1

    run(story())


def test_every_chunk_of_a_stream_carries_the_index_of_its_choice(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=FakeSource(text=numbered)) as w, w.client() as client:
            body = chat_body(n=3, stream=True, seed=1, stream_options={"include_usage": True})
            headers = {"Idempotency-Key": "k"}
            found = events_of((await client.post(CHAT, json=body, headers=headers)).text)
            again = events_of((await client.post(CHAT, json=body, headers=headers)).text)
            assert [c["choices"] for c in again] == [c["choices"] for c in found]
            *chunks, usage = found
            texts = ["", "", ""]
            for chunk in chunks:
                (choice,) = chunk["choices"]
                texts[choice["index"]] += choice["delta"].get("content") or ""
            assert all(text.startswith("answer ") for text in texts)
            assert len(set(texts)) == 3
            ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
            assert [(c["index"], c["finish_reason"]) for c in ends] == [(0, "stop"), (1, "stop"), (2, "stop")]
            roles = [c["choices"][0]["index"] for c in chunks if "role" in c["choices"][0]["delta"]]
            assert roles == [0, 1, 2]
            assert ["reticent" in c for c in chunks] == [False] * (len(chunks) - 1) + [True]
            assert usage["usage"]["completion_tokens"] == 6

    run(story())


def test_an_idempotency_key_returns_all_choices(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=FakeSource(text=numbered)) as w, w.client() as client:
            headers = {"Idempotency-Key": "one"}
            first, again = [(await client.post(CHAT, json=chat_body(n=3), headers=headers)).json() for _ in range(2)]
            assert again["reticent"].pop("replayed") is True
            assert first == again
            assert w.events.count("settle") == 1

    run(story())


def fails_at(place: str, number: int, error: Exception) -> dict[str, Any]:
    return {place: FakeSource(fail={number: error}) if place == "source" else FakeRewards(fail={number: error})}


@pytest.mark.parametrize(
    ("parts", "forfeits"),
    [
        (lambda: fails_at("source", 2, SourceUnavailable("gone")), None),
        (lambda: fails_at("rewards", 1, WorkerFailed("x")), True),
        (lambda: fails_at("rewards", 3, WorkerUnavailable("x")), True),
    ],
    ids=["a draw", "the first rewards", "the last rewards"],
)
def test_where_one_choice_fails_all_do_and_the_reservation_ends_once(
    tmp_path: Path, parts: Callable[[], dict[str, Any]], forfeits: bool | None
) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, **parts()) as w, w.client() as client:
            assert (await client.post(CHAT, json=chat_body(n=3))).status_code == 503
            scope = w.scopes()["user"]
            assert (scope.reserved, scope.settled, scope.released + scope.forfeited) == (0, 0, 1)
            if forfeits is not None:
                assert scope.spent == (w.plan(n=3).worst_case if forfeits else 0)

    run(story())


def test_rewards_that_reached_nobody_do_not_hide_those_that_did(tmp_path: Path) -> None:
    """The second call is refused before the first one is answered, and the first one has been sent."""

    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            sent = asyncio.Event()

            async def score(*_: Any, patient: bool) -> list[float]:
                if not sent.is_set():
                    sent.set()
                    await asyncio.sleep(30)
                raise WorkerUnavailable("no place in the queue")

            w.rewards.score = score  # type: ignore[method-assign, assignment]
            async with w.client() as client:
                assert (await client.post(CHAT, json=chat_body(n=2))).status_code == 503
            assert w.scopes()["user"].spent == w.plan(n=2).worst_case

    run(story())


def test_together_ends_every_coroutine_before_the_error_goes_on() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("one")

    async def waits() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            ended.append("waits")

    async def story() -> None:
        with pytest.raises(KeyError):
            await together([fails(), waits()])
        assert ended == ["waits"]
        task = asyncio.create_task(together([waits(), waits()]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["waits"] * 3

    async def two() -> None:
        async def value(x: int) -> int:
            await asyncio.sleep(0.01 / x)
            return x

        assert await together([value(1), value(2)]) == [1, 2]

    run(story())
    run(two())
