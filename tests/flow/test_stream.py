"""Streams: comments while waiting, nothing before the settlement, errors as events, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from reticent.accounting.ledger_errors import LedgerUnavailable
from reticent.rewards import WorkerFailed
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
from tests.fakes.parts import FakeSource
from tests.fakes.serving import open_with_app, serving

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting times of a test, not of a server."""
    monkeypatch.setattr("reticent.plugin.app._GRACE_SECONDS", 0.01)
    monkeypatch.setattr("reticent.plugin.app._KEEPALIVE_SECONDS", 0.02)


class Asgi:
    """A client that sees every message of one request, tells the events of its parts, and may leave."""

    def __init__(self, made: World, **more: Any) -> None:
        self._made = made
        self._body = json.dumps(chat_body(stream=True, **more)).encode()
        self._gone = asyncio.Event()
        self._asked = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.refuses = False

    async def __call__(self, tenant: str = "strict") -> Asgi:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": "POST",
            "path": CHAT,
            "query_string": b"",
            "headers": [
                (b"authorization", f"Bearer {KEYS[tenant]}".encode()),
                (b"content-type", b"application/json"),
            ],
        }
        await self._made.app(scope, self._receive, self._send)
        return self

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.refuses:
            raise OSError("the connection is gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        piece = message.get("body", b"").decode()
        self.text += piece
        if piece.startswith("data: "):
            self._made.events.append("sent")

    @property
    def data(self) -> list[Any]:
        """The events' data, parsed; `[DONE]` as it is."""
        found = [block.removeprefix("data: ") for block in self.text.split("\n\n") if block.startswith("data: ")]
        return [block if block == "[DONE]" else json.loads(block) for block in found]


def test_a_stream_carries_the_settled_answer_word_by_word(tmp_path: Path) -> None:
    async def story() -> None:
        text = "It hangs:  a copper\nlantern, says the note. "
        async with world(tmp_path, OBSERVE, source=FakeSource(text=lambda i: text)) as w:
            asked = await Asgi(w)()
            assert (asked.status, asked.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            first, *chunks, last, done = asked.data
            assert done == "[DONE]"
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == text
            assert len(chunks) == 8
            assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
            assert last["reticent"]["charge"] > 0
            assert {c["object"] for c in asked.data[:-1]} == {"chat.completion.chunk"}
            assert len({c["id"] for c in asked.data[:-1]}) == 1
            assert not any("usage" in c for c in asked.data[:-1])

    run(story())


@pytest.mark.parametrize("rule", ["privbon", "privitp"])
def test_nothing_of_the_answer_leaves_before_it_is_settled(tmp_path: Path, rule: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            await Asgi(w, reticent={"rule": rule})()
            assert w.events.index("settle") < w.events.index("sent")
            assert w.events.count("settle") == 1
            assert w.events[w.events.index("settle") + 1 :].count("sent") == w.events.count("sent") > 3

    run(story())


def test_while_it_waits_a_stream_sends_comments_and_no_data(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            w.rewards.hold = asyncio.Event()
            asked = Asgi(w)
            task = asyncio.create_task(asked())
            await until(lambda: asked.text.count(": waiting\n\n") >= 3)
            assert asked.text.replace(": waiting\n\n", "") == ""
            assert "sent" not in w.events
            w.rewards.hold.set()
            await task
            assert asked.data[-1] == "[DONE]"

    run(story())


def test_usage_comes_when_it_is_asked_for_and_is_the_released_answers(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            asked = await Asgi(w, stream_options={"include_usage": True})()
            *chunks, usage, done = asked.data
            assert done == "[DONE]"
            assert all(c["usage"] is None for c in chunks)
            assert usage["choices"] == []
            assert usage["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}

    run(story())


def test_a_refusal_is_streamed_as_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            asked = await Asgi(w)()
            first, *chunks, last, _ = asked.data
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
            assert all(c["choices"][0]["delta"].keys() == {"refusal"} for c in chunks)
            refusal = "".join(c["choices"][0]["delta"]["refusal"] for c in chunks)
            assert "no certificate" in refusal
            assert last["choices"][0]["finish_reason"] == "stop"
            assert "lantern" not in asked.text

    run(story())


def test_an_error_that_comes_at_once_has_a_status_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reticent.plugin.app._GRACE_SECONDS", 5.0)

    async def story() -> None:
        async with world(tmp_path, {**OBSERVE, "tenants.0.user_budget.epsilon": 0.65}) as w:
            await Asgi(w)()
            spent = await Asgi(w)()
            assert spent.status == 403
            assert json.loads(spent.text)["error"]["code"] == "privacy_budget_exhausted"
            w.ledger.broken["reserve"] = LedgerUnavailable("x")
            assert (await Asgi(w)()).status == 503
            assert (await Asgi(w, colour="blue")()).status == 400

    run(story())


@pytest.mark.parametrize(
    ("error", "code"),
    [(WorkerFailed("x"), "unavailable"), (RuntimeError("CANARY"), "internal_error")],
    ids=["known", "unknown"],
)
def test_an_error_after_the_beginning_is_an_event_and_no_done(tmp_path: Path, error: Exception, code: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            w.rewards.hold = asyncio.Event()
            w.rewards.fail = {1: error}
            asked = Asgi(w)
            task = asyncio.create_task(asked())
            await until(lambda: ": waiting" in asked.text)
            w.rewards.hold.set()
            await task
            assert asked.status == 200
            (event,) = asked.data
            assert event["error"]["code"] == code
            assert "CANARY" not in asked.text
            assert w.scopes()["user"].spent == w.plan().rule.worst_case

    run(story())


def test_a_client_that_leaves_a_stream_is_settled_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            w.rewards.hold = asyncio.Event()
            asked = Asgi(w)
            task = asyncio.create_task(asked())
            await until(lambda: ": waiting" in asked.text)
            asked.leave()
            await task
            assert asked.data == []
            assert w.scopes()["user"].reserved > 0
            w.rewards.hold.set()
            await until(lambda: w.scopes()["user"].settled == 1)
            assert w.scopes()["user"].spent == w.plan().rule.worst_case

    run(story())


@pytest.mark.parametrize("stream", [True, False])
def test_a_handler_that_the_server_cancels_is_settled_all_the_same(tmp_path: Path, stream: bool) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w, w.client() as client:
            w.rewards.hold = asyncio.Event()
            task = asyncio.create_task(client.post(CHAT, json=chat_body(stream=stream)))
            await until(lambda: bool(w.rewards.calls))
            await asyncio.sleep(0.03)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            w.rewards.hold.set()
            await until(lambda: w.scopes()["user"].settled == 1)

    run(story())


def test_a_connection_that_breaks_while_it_is_written_is_settled_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w:
            w.rewards.hold = asyncio.Event()
            asked = Asgi(w)
            task = asyncio.create_task(asked())
            await until(lambda: ": waiting" in asked.text)
            asked.refuses = True
            await asyncio.wait({task}, timeout=5.0)
            assert task.done()
            w.rewards.hold.set()
            await until(lambda: w.scopes()["user"].settled == 1)

    run(story())


# Over a real socket.


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, World]]:
    certified = certificate(facts_for(make_settings(tmp_path)))
    made = make_world(tmp_path, certificates=[certified])
    with serving(open_with_app(made)) as url:
        yield url, made


def test_the_openai_client_reads_the_stream(served: tuple[str, World]) -> None:
    url, _ = served
    messages: Any = [{"role": "user", "content": "What hangs in the hall?"}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS["strict"], max_retries=0) as client:
        with client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text.startswith("copper lantern")
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 9
        (extension,) = [c.reticent for c in chunks if hasattr(c, "reticent")]
        assert extension["score_accepted"] is True
        with client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, extra_body={"reticent": {"candidates": 2}}
        ) as stream:
            refusal = "".join(c.choices[0].delta.refusal or "" for c in stream)
        assert "another configuration" in refusal


def test_the_openai_client_raises_an_error_that_comes_in_the_stream(served: tuple[str, World]) -> None:
    url, made = served
    go_on = threading.Event()

    async def late(*_: Any, patient: bool) -> list[float]:
        await asyncio.to_thread(go_on.wait, 10.0)
        raise WorkerFailed("x")

    made.rewards.score = late  # type: ignore[method-assign, assignment]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS["strict"], max_retries=0) as client:
        stream = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True)
        go_on.set()
        with stream, pytest.raises(openai.APIError, match="reward worker"):
            list(stream)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_is_settled_all_the_same(served: tuple[str, World], stream: bool) -> None:
    url, made = served
    go_on, asked = threading.Event(), threading.Event()
    score = made.rewards.score

    async def held(*arguments: Any, patient: bool) -> list[float]:
        asked.set()
        await asyncio.to_thread(go_on.wait, 10.0)
        return await score(*arguments, patient=patient)

    made.rewards.score = held  # type: ignore[method-assign, assignment]
    headers = {"authorization": f"Bearer {KEYS['strict']}"}
    timeout = httpx.Timeout(5.0, read=0.3)
    with httpx.Client(base_url=url, headers=headers, timeout=timeout) as client:
        if stream:
            with client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
                assert next(response.iter_raw()).startswith(b": waiting")
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(CHAT, json=chat_body())
    assert asked.wait(5.0)
    assert made.scopes()["user"].reserved > 0
    go_on.set()
    run(until(lambda: made.scopes()["user"].settled == 1))
    assert made.scopes()["user"].spent == made.plan().rule.worst_case
