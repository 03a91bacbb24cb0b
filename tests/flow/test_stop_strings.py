"""Stop strings: nothing of one is ever sent, whole or in a stream, wherever it falls; their number is bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reticent.plugin.candidates.http import HttpSource
from reticent.plugin.candidates.positions import before_stop
from reticent.plugin.ports import Prompt, SamplingParameters
from reticent.rewards import Subject
from tests.fakes.build import chat_body, error_of, facts_for, make_settings, make_world, run
from tests.fakes.parts import FakeRewards
from tests.fakes.serving import serving
from tests.fakes.upstream import Upstream

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}
UPSTREAM = Upstream()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server that never stops at a stop string by itself: every answer is `answer NUMBER`, of two tokens."""
    with serving(UPSTREAM.app()) as url:
        yield f"{url}/v1"


STOPS: list[tuple[Any, str | None]] = [
    ("swer", "an"),
    (["swer"], "an"),
    (["er ", "swer"], "an"),
    (["swer", "answer"], ""),
    ([" "], "answer"),
    (["r 1", "r 2", "r 3", "r"], "answe"),
    (["nothing of it"], None),
]


@pytest.mark.parametrize(("stop", "text"), STOPS, ids=[str(stop) for stop, _ in STOPS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_no_part_of_a_stop_string_is_sent(
    tmp_path: Path, address: str, stop: Any, text: str | None, stream: bool, n: int
) -> None:
    async def story() -> None:
        rewards = FakeRewards()
        source: Any = HttpSource((address,), None, "small", 20.0)
        w = make_world(tmp_path, OBSERVE, rewards=rewards)
        w.core._source = w.core._handler._source = source
        await w.core.start()
        async with w.client() as client:
            body = chat_body(stop=stop, stream=stream, n=n, logprobs=True)
            response = await client.post(CHAT, json=body)
        await w.core.close()
        assert response.status_code == 200
        assert UPSTREAM.requests[-1]["stop"] == ([stop] if isinstance(stop, str) else stop)
        if stream:
            blocks = [b.removeprefix("data: ") for b in response.text.split("\n\n") if b.startswith("data: {")]
            choices = [json.loads(block)["choices"][0] for block in blocks]
            found = ["".join(c["delta"].get("content") or "" for c in choices if c["index"] == i) for i in range(n)]
            ends = [c["finish_reason"] for c in choices if c["finish_reason"]]
        else:
            choices = response.json()["choices"]
            found = [c["message"]["content"] for c in choices]
            ends = [c["finish_reason"] for c in choices]
        assert ends == ["stop"] * n
        seen = {scored for call in rewards.calls for scored in call}
        for answer in found:
            assert answer.startswith("answer ") if text is None else answer == text
            assert answer in seen, "the reward judges what is sent"

    run(story())


def test_a_stop_string_takes_the_tokens_after_it_out_of_the_log_probabilities(address: str) -> None:
    prompt = Prompt(({"role": "user", "content": "x"},), None, Subject("x"), "plain", "")

    async def story() -> None:
        source = HttpSource((address,), None, "small", 20.0)
        for stop, kept in ((("swer",), 1), ((" ",), 1), (("z",), 2), (("a",), 0)):
            sampling = SamplingParameters(0.7, 1.0, 9, stop=stop, shown=1, top_log_probabilities=3)
            (found,) = await source.draw(prompt, sampling, 1, salt="t", offset=0)
            assert found.positions is not None
            assert (len(found.positions), len(found.log_probabilities)) == (kept, kept)
            assert len(found.top_log_probabilities) == kept
            assert (found.finish_reason, found.completion_tokens) == ("stop", 2)
        await source.close()

    run(story())


@pytest.mark.parametrize(
    ("text", "stops", "left"),
    [
        ("It is. END of it", ("END",), "It is. "),
        ("It is", (), "It is"),
        ("aXbYc", ("Y", "X"), "a"),
        ("🏮 lamp 🏮", ("p 🏮",), "🏮 lam"),
        ("ENENDEND", ("END",), "EN"),
        ("", ("END",), ""),
        ("User: hello", ("User :",), "User: hello"),
    ],
)
def test_the_text_ends_before_the_first_stop_string(text: str, stops: tuple[str, ...], left: str) -> None:
    assert before_stop(text, stops) == left


@pytest.mark.parametrize("stop", [["a"] * 5, ["a"] * 10_000, "x" * 257, ["x" * 257], "", [""], ["a", None], 7])
def test_a_flood_of_stop_strings_is_refused(tmp_path: Path, stop: Any) -> None:
    async def story() -> None:
        w = make_world(tmp_path, OBSERVE)
        await w.core.start()
        async with w.client() as client:
            error = error_of(await client.post(CHAT, json=chat_body(stop=stop)), 400, "invalid_value")
            assert error["param"].startswith("stop")
        assert w.events == []
        await w.core.close()

    run(story())


def test_no_stop_string_is_none() -> None:
    settings = make_settings(Path("nowhere"))
    none: list[Any] = [None, []]
    for stop in none:
        assert facts_for(settings, stop=stop) == facts_for(settings)
    assert facts_for(settings, stop="x") == facts_for(settings, stop=["x"]) != facts_for(settings)
