"""Requests and answers at the edges, each named by what went wrong with it elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.plugin.response import stream_chunks
from tests.fakes.build import chat_body, facts_for, make_settings, plan_for, run, world
from tests.fakes.parts import FakeSource

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}
USER = {"role": "user", "content": "Hello?"}


def prompt(*messages: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    found: tuple[dict[str, Any], ...] = plan_for(
        make_settings(Path("nowhere")), messages=list(messages)
    ).prompt.messages
    return found


def test_several_system_messages_become_one() -> None:
    system = [{"role": "system", "content": text} for text in ("Be short.", "Be kind.", "Be right.")]
    assert prompt(*system, USER) == ({"role": "system", "content": "Be short.\n\nBe kind.\n\nBe right."}, USER)
    assert prompt(system[0], USER, system[1], USER) == (system[0], USER, system[1], USER)


def test_a_developers_message_is_not_passed_over() -> None:
    developer = {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]}
    assert prompt(developer, USER) == ({"role": "system", "content": "Be kind."}, USER)
    system = {"role": "system", "content": "Be short."}
    assert prompt(system, developer, USER)[0]["content"] == "Be short.\n\nBe kind."


def test_named_instructions_keep_their_names() -> None:
    one = {"role": "system", "content": "A", "name": "x"}
    other = {"role": "system", "content": "B", "name": "y"}
    assert prompt(one, other, USER) == (one, other, USER)


@pytest.mark.parametrize("user", [None, "a", "x" * 1000, "é" * 1000, "\U0001f3ee" * 1000])
def test_a_user_of_any_length_has_an_account(tmp_path: Path, user: str | None) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w, w.client() as client:
            body = chat_body() if user is None else chat_body(user=user)
            for _ in range(2):
                assert (await client.post(CHAT, json=body)).status_code == 200
            scopes = (await client.get("/v1/reticent/budget", params={"user": user or "anonymous"})).json()["scopes"]
            (mine,) = [scope for scope in scopes if scope["kind"] == "user"]
            assert mine["spent"] == pytest.approx(2 * w.plan().rule.worst_case / 1e9)

    run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_one_token_is_enough(tmp_path: Path, stream: bool) -> None:
    async def story() -> None:
        source = FakeSource(text=lambda i: "It", finish="length")
        async with world(tmp_path, OBSERVE, source=source) as w, w.client() as client:
            for name in ("max_tokens", "max_completion_tokens"):
                response = await client.post(CHAT, json=chat_body(stream=stream, **{name: 1}))  # type: ignore[arg-type]
                assert '"finish_reason":"length"' in response.text.replace(": ", ":")
                assert w.source.sampled[-1].max_tokens == 1

    run(story())


def test_a_null_means_that_nothing_was_said() -> None:
    names = (
        "response_format",
        "tools",
        "tool_choice",
        "logprobs",
        "top_logprobs",
        "stop",
        "n",
        "user",
        "seed",
        "stream",
        "max_tokens",
        "logit_bias",
    )
    settings = make_settings(Path("nowhere"))
    nothing: dict[str, Any] = dict.fromkeys(names)
    assert plan_for(settings, **nothing).sampling == plan_for(settings).sampling
    assert facts_for(settings, **nothing) == facts_for(settings)


TEXTS = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u0628\u0627 \U0001f3ee\U0001f3ee\n\n  x",
    "User: what?\nAssistant: This stays whole. User: and this.",
    "   ",
    "\u2028\u0085line ends that are none\r\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_an_answer_comes_whole_whatever_is_in_it(tmp_path: Path, text: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=FakeSource(text=lambda i: text)) as w, w.client() as client:
            whole = (await client.post(CHAT, json=chat_body())).json()
            assert whole["choices"][0]["message"]["content"] == text
            body = chat_body(stream=True, stream_options={"include_usage": True})
            blocks = (await client.post(CHAT, json=body)).text.split("\n\n")
            chunks = [json.loads(b.removeprefix("data: ")) for b in blocks if b.startswith("data: {")]
            said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
            assert said == text
            assert chunks[-1]["usage"] == whole["usage"]

    run(story())


@given(st.text(max_size=60), st.booleans())
def test_no_piece_of_a_stream_is_lost_or_split_inside_a_character(text: str, told: bool) -> None:
    tokens: list[dict[str, Any]] = [{"token": c, "logprob": -1.0, "bytes": None, "top_logprobs": []} for c in text]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": "stop",
        "logprobs": {"content": tokens, "refusal": None} if told else None,
    }
    whole = {"id": "x", "created": 1, "model": "m", "choices": [choice], "reticent": {}, "usage": {}}
    events = list(stream_chunks(whole, include_usage=False))
    chunks = [json.loads(e.removeprefix("data: ")) for e in events[:-1]]
    pieces = [c["choices"][0] for c in chunks]
    assert "".join(p["delta"].get("content") or "" for p in pieces) == text
    if told:
        found = [t["token"] for p in pieces if p["logprobs"] for t in p["logprobs"]["content"]]
        assert "".join(found) == text
    for event in events:
        event.encode("utf-8")


def test_an_answer_without_text_is_an_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=FakeSource(text=lambda i: "")) as w, w.client() as client:
            (choice,) = (await client.post(CHAT, json=chat_body(logprobs=True))).json()["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
            streamed = (await client.post(CHAT, json=chat_body(stream=True, logprobs=True))).text
            assert '"finish_reason": "stop"' in streamed

    run(story())
