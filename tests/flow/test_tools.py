"""Tools: candidates that call them, what the reward reads of a call, and conversations in which tools were called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reticent.plugin.candidates.http import HttpSource
from reticent.plugin.errors import BadRequest, PromptRefused
from reticent.plugin.ports import Candidate, Prompt, SamplingParameters
from reticent.plugin.tools import ToolCall, ToolUse, as_text
from reticent.rewards import Subject
from tests.fakes.build import certificate, chat_body, error_of, facts_for, make_settings, plan_for, run, world
from tests.fakes.parts import FakeRewards, FakeSource
from tests.fakes.serving import serving
from tests.fakes.upstream import Upstream

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}


def tool(name: str = "look", **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, **parameters}
    return {"type": "function", "function": {"name": name, "description": "Looks.", "parameters": schema}}


TOOLS = [tool(), tool("listen")]
NAMED = {"type": "function", "function": {"name": "listen"}}


def calling(*names: str, arguments: str = '{"x": 1}') -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"call-{k}", name, arguments) for k, name in enumerate(names))


def source(*names: str, **more: Any) -> FakeSource:
    made = FakeSource()
    made.calls = lambda index: calling(*names, **more)
    return made


def test_a_call_is_released_as_openai_has_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source("look", "listen")) as w, w.client() as client:
            body = (await client.post(CHAT, json=chat_body(tools=TOOLS))).json()
            (choice,) = body["choices"]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] is None
            assert choice["message"]["refusal"] is None
            look, listen = choice["message"]["tool_calls"]
            assert look == {"id": "call-0", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
            assert listen["function"]["name"] == "listen"

    run(story())


def test_an_answer_without_a_call_is_plain(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source()) as w, w.client() as client:
            (choice,) = (await client.post(CHAT, json=chat_body(tools=TOOLS))).json()["choices"]
            assert choice["finish_reason"] == "stop"
            assert choice["message"]["content"].startswith("copper")
            assert "tool_calls" not in choice["message"]

    run(story())


def test_rewards_and_scores_read_a_call_as_text_by_the_rule(tmp_path: Path) -> None:
    async def story() -> None:
        rewards = FakeRewards()
        async with world(tmp_path, OBSERVE, source=source("look"), rewards=rewards) as w:
            answer = await w.answer(tools=TOOLS)
            assert rewards.calls == [('look({"x": 1})',) * 4]
            assert answer.choices[0].score == 1.0  # all say the same

    run(story())


def test_the_rule_is_one_line_a_call() -> None:
    assert as_text("Let me see.", calling("look", "listen")) == 'Let me see.\nlook({"x": 1})\nlisten({"x": 1})'
    assert as_text("", calling("look", arguments="")) == "look()"
    assert as_text("Plain.", ()) == "Plain."
    assert Candidate("a", "stop", 1, 1).judged == "a"


def test_with_n_tools_and_streaming_choices_are_kept_apart(tmp_path: Path) -> None:
    async def story() -> None:
        made = FakeSource()
        made.calls = lambda index: calling("look", "listen", arguments=json.dumps({"x": index}))
        async with world(tmp_path, OBSERVE, source=made) as w, w.client() as client:
            body = chat_body(tools=TOOLS, n=3, stream=True, best_of=1)
            blocks = (await client.post(CHAT, json=body)).text.split("\n\n")
            chunks = [json.loads(b.removeprefix("data: "))["choices"][0] for b in blocks if b.startswith("data: {")]
            for index in range(3):
                mine = [c for c in chunks if c["index"] == index]
                found: dict[int, dict[str, str]] = {}
                for chunk in mine:
                    for piece in chunk["delta"].get("tool_calls", ()):
                        place = found.setdefault(piece["index"], {"name": "", "arguments": "", "id": ""})
                        place["id"] += piece.get("id", "")
                        place["name"] += piece["function"].get("name", "")
                        place["arguments"] += piece["function"].get("arguments", "")
                assert [f["name"] for f in found.values()] == ["look", "listen"]
                assert [f["id"] for f in found.values()] == ["call-0", "call-1"]
                assert [json.loads(f["arguments"]) for f in found.values()] == [{"x": index}] * 2
                assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["tool_calls"]
                assert not any(c["delta"].get("content") for c in mine)

    run(story())


def test_a_replay_has_the_calls(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source("look")) as w, w.client() as client:
            headers = {"Idempotency-Key": "k"}
            first, again = [
                (await client.post(CHAT, json=chat_body(tools=TOOLS), headers=headers)).json() for _ in range(2)
            ]
            assert first["choices"] == again["choices"]
            assert again["reticent"]["replayed"]

    run(story())


@pytest.mark.parametrize(
    ("use", "calls", "fits"),
    [
        ({}, calling(), True),
        ({}, calling("look"), True),
        ({}, calling("look", "listen"), True),
        ({}, calling("shout"), False),
        ({}, calling("look", arguments="{"), False),
        ({}, calling("look", arguments="[1]"), False),
        ({}, calling("look", arguments="[" * 100_000), False),
        ({"parallel": False}, calling("look"), True),
        ({"parallel": False}, calling("look", "look"), False),
        ({"choice": "none"}, calling(), True),
        ({"choice": "none"}, calling("look"), False),
        ({"choice": "required"}, calling(), False),
        ({"choice": "required"}, calling("look"), True),
        ({"choice": NAMED}, calling(), False),
        ({"choice": NAMED}, calling("look"), False),
        ({"choice": NAMED}, calling("listen"), True),
    ],
)
def test_a_candidate_does_as_it_was_asked_or_is_set_aside(
    use: dict[str, Any], calls: tuple[ToolCall, ...], fits: bool
) -> None:
    assert ToolUse(tuple(TOOLS), **use).fits(calls) is fits


def test_where_no_candidate_calls_what_must_be_called_there_is_a_refusal(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source()) as w, w.client() as client:
            body = (await client.post(CHAT, json=chat_body(tools=TOOLS, tool_choice="required"))).json()
            assert body["choices"][0]["message"]["refusal"]
            assert body["reticent"]["certificate"]["status"] == "no_valid_candidate"
            assert w.rewards.calls == []

    run(story())


def test_a_withheld_call_is_withheld_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, source=source("look")) as w, w.client() as client:
            for stream in (False, True):
                response = await client.post(CHAT, json=chat_body(tools=TOOLS, stream=stream))
                assert "call-0" not in response.text
                assert "tool_calls" not in response.text

    run(story())


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": "x"}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"tools": [tool(type="CANARY")]}, "tools.0.function.parameters"),
    ({"tools": [tool(), tool()]}, "tools"),
    ({"tools": [tool(f"t{i}") for i in range(129)]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": NAMED}, "tool_choice.function.name"),
    ({"tools": [tool()], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tools": [tool()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
]


@pytest.mark.parametrize(("more", "param"), WRONG, ids=[f"{p}-{i}" for i, (_, p) in enumerate(WRONG)])
def test_wrong_tools_are_refused_by_name_before_anything_is_drawn(
    tmp_path: Path, more: dict[str, Any], param: str
) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w, w.client() as client:
            response = await client.post(CHAT, json=chat_body(**more))
            assert response.status_code == 400
            assert response.json()["error"]["param"].startswith(param)
            assert "CANARY" not in response.text
            assert w.events == []

    run(story())


def test_a_source_without_a_parser_of_calls_says_so_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        refusing = FakeSource(fail={1: PromptRefused("tool choice requires --tool-call-parser", "tools")})
        async with world(tmp_path, OBSERVE, source=refusing) as w, w.client() as client:
            error = error_of(await client.post(CHAT, json=chat_body(tools=TOOLS)), 400, "prompt_refused")
            assert error["param"] == "tools"
            assert w.scopes()["user"].spent == 0

    run(story())


def test_tools_are_facts_of_those_requests_alone_that_offer_them(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    plain = facts_for(settings)
    neutral: list[dict[str, Any]] = [{"tools": None}, {"tools": []}, {"tool_choice": "none"}, {"tool_choice": None}]
    assert all(facts_for(settings, **more) == plain for more in neutral)
    wishes: list[dict[str, Any]] = [{}, {"tool_choice": "auto"}, {"tool_choice": NAMED}, {"parallel_tool_calls": False}]
    asked = [facts_for(settings, tools=TOOLS, **more) for more in wishes]
    assert len({json.dumps(facts) for facts in (plain, *asked)}) == 5
    certificates = [certificate(facts) for facts in (plain, asked[2])]

    async def story() -> None:
        async with world(tmp_path, certificates=certificates, source=source("listen")) as w, w.client() as client:
            for more, status in ((wishes[2], "accepted"), ({}, "fingerprint_mismatch")):
                body = (await client.post(CHAT, json=chat_body(tools=TOOLS, **more))).json()
                assert body["reticent"]["certificate"]["status"] == status
            shown = (await client.get("/v1/reticent/certificate")).json()["data"]
            assert [c["status"] for c in shown] == ["accepting"] * 2

    run(story())


# Conversations in which tools were called.

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
USER = {"role": "user", "content": "What hangs in the hall?"}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "A lantern."}


@pytest.mark.parametrize("content", [None, "", "Let me look.", "absent"])
def test_an_assistant_that_only_called_is_taken_whatever_its_content(content: str | None) -> None:
    assistant: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    if content == "absent":
        del assistant["content"]
    found = plan_for(make_settings(Path("nowhere")), messages=[USER, assistant, RESULT], tools=TOOLS).prompt
    said = content if content == "Let me look." else None
    assert found.messages == (USER, {"role": "assistant", "content": said, "tool_calls": [CALL]}, RESULT)
    assert (found.form, found.subject.question) == ("tools", "What hangs in the hall?")


def test_an_assistant_that_said_nothing_is_taken() -> None:
    messages = [USER, {"role": "assistant", "content": ""}, {"role": "user", "content": "Well?"}]
    found = plan_for(make_settings(Path("nowhere")), messages=messages).prompt
    assert found.messages[1] == {"role": "assistant", "content": ""}
    assert found.form == "conversation"


def test_parts_of_an_assistants_and_a_tools_message_are_kept() -> None:
    part = {"type": "text", "text": "One. "}
    assistant = {"role": "assistant", "content": [part, {"type": "refusal", "refusal": "No."}], "tool_calls": [CALL]}
    messages = [USER, assistant, {**RESULT, "content": [part, part]}, {"role": "user", "content": "Well?"}]
    found = plan_for(make_settings(Path("nowhere")), messages=messages).prompt
    assert [m["content"] for m in found.messages] == [USER["content"], "One. No.", "One. One. ", "Well?"]
    assert found.messages[2]["tool_call_id"] == "c1"


def test_evidence_goes_into_the_users_message_before_the_calls() -> None:
    found = plan_for(
        make_settings(Path("nowhere")), messages=[USER, CALLED, RESULT], reticent={"evidence": ["A note."]}
    ).prompt
    assert found.messages[0]["content"] == f"A note.\n\n{USER['content']}"
    assert found.bare_messages is not None
    assert found.bare_messages[1:] == found.messages[1:]
    assert found.form == "tools-with-evidence"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([USER, RESULT], "messages.1.tool_call_id"),
        ([USER, CALLED, {**RESULT, "tool_call_id": "c2"}], "messages.2.tool_call_id"),
        ([USER, CALLED, {"role": "tool", "content": "x"}], "messages.2.tool_call_id"),
        ([USER, CALLED, {"role": "tool", "tool_call_id": "c1"}], "messages.2.content"),
        ([CALLED, RESULT], "messages"),
        ([USER, CALLED], "messages"),
        ([{**USER, "tool_calls": [CALL]}], "messages.0.tool_calls"),
        ([{**USER, "tool_call_id": "c1"}], "messages.0.tool_call_id"),
        ([USER, {"role": "assistant", "tool_calls": []}, USER], "messages.1.tool_calls"),
        ([USER, {**CALLED, "tool_calls": [{**CALL, "type": "custom"}]}, USER], "messages.1.tool_calls.0.type"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}], "messages.0.content.0.type"),
    ],
)  # fmt: skip
def test_a_conversation_that_does_not_hang_together_is_refused(messages: list[Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        plan_for(make_settings(Path("nowhere")), messages=messages)
    assert caught.value.param == param


# Through the gateway's source.


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[Upstream, str]]:
    made = Upstream()
    with serving(made.app()) as url:
        yield made, f"{url}/v1"


def test_the_gateway_hands_tools_on_and_calls_back(upstream: tuple[Upstream, str]) -> None:
    made, url = upstream
    assistant = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    prompt = Prompt((USER, assistant, RESULT), None, Subject("x"), "tools", "")

    async def story() -> None:
        http = HttpSource((url,), None, "small", 20.0)
        use = ToolUse(tuple(TOOLS), "required", False)
        found = await http.draw(prompt, SamplingParameters(0.7, 1.0, 9, tools=use), 2, salt="t", offset=0)
        sent = made.requests[-1]
        assert (sent["tools"], sent["tool_choice"], sent["parallel_tool_calls"]) == (TOOLS, "required", False)
        assert sent["messages"] == [USER, assistant, RESULT]
        assert [c.text for c in found] == ["", ""]
        assert [c.finish_reason for c in found] == ["stop", "stop"]
        assert [c.judged for c in found] == ['look({"x": 1})', 'look({"x": 2})']
        assert all(use.fits(c.tool_calls) for c in found)
        assert await http.score_with_evidence(prompt, found[0], salt="t") == ()
        # Who offers no tools is given no calls, and no field of theirs is sent.
        (plain,) = await http.draw(prompt, SamplingParameters(0.7, 1.0, 9), 1, salt="t", offset=0)
        assert plain.tool_calls == ()
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & made.requests[-1].keys()
        await http.close()

    run(story())
