"""Log-probabilities of the released answer: whole, in a stream, cut to the text, and none of a withheld answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reticent.plugin.candidates.positions import LEAST, fitted, position
from reticent.plugin.ports import SamplingParameters
from tests.fakes.build import chat_body, error_of, facts_for, make_settings, run, world
from tests.fakes.parts import FakeSource

CHAT = "/v1/chat/completions"
OBSERVE: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}
TEXT = "Über  copper 🏮 lanterns.\n"


def source(**more: Any) -> FakeSource:
    return FakeSource(text=lambda i: TEXT, **more)


def test_they_are_those_of_the_answer_with_as_many_alternatives_as_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source()) as w, w.client() as client:
            wishes: list[tuple[dict[str, Any], int]] = [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 3}, 3)]
            for asked, shown in wishes:
                body = (await client.post(CHAT, json=chat_body(logprobs=True, **asked))).json()
                told = body["choices"][0]["logprobs"]
                assert told["refusal"] is None
                assert "".join(entry["token"] for entry in told["content"]) == TEXT
                assert bytes(b for entry in told["content"] for b in entry["bytes"]).decode() == TEXT
                assert all(len(entry["top_logprobs"]) == shown for entry in told["content"])
            first = told["content"][0]
            assert (first["token"], first["logprob"]) == ("Übe", -3.0)
            assert [other["logprob"] for other in first["top_logprobs"]] == [-1.0, -2.0, LEAST]

    run(story())


@pytest.mark.parametrize("more", [{}, {"logprobs": False}, {"logprobs": None}, {"logprobs": False, "n": 2}])
def test_there_are_none_where_none_were_asked_for(tmp_path: Path, more: dict[str, Any]) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source()) as w, w.client() as client:
            body = (await client.post(CHAT, json=chat_body(**more))).json()
            assert {json.dumps(c["logprobs"]) for c in body["choices"]} == {"null"}
            assert {s.shown for s in w.source.sampled} == {None}

    run(story())


def test_a_withheld_answer_has_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, source=source()) as w, w.client() as client:
            response = await client.post(CHAT, json=chat_body(logprobs=True, top_logprobs=2))
            (choice,) = response.json()["choices"]
            assert choice["message"]["refusal"]
            assert choice["logprobs"] is None
            streamed = await client.post(CHAT, json=chat_body(logprobs=True, stream=True))
            for text in (response.text, streamed.text):
                assert "Übe" not in text
                assert "\\u00dcbe" not in text

    run(story())


def test_a_source_that_tells_none_is_said_to_tell_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source()) as w, w.client() as client:
            w.source.tells = False
            body = (await client.post(CHAT, json=chat_body(logprobs=True))).json()
            assert body["choices"][0]["logprobs"] == {"content": None, "refusal": None}

    run(story())


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("n", [1, 3])
def test_with_logprobs_and_streaming_the_finish_reason_is_kept(tmp_path: Path, finish: str, n: int) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source(finish=finish)) as w, w.client() as client:
            body = chat_body(logprobs=True, top_logprobs=1, stream=True, n=n)
            blocks = (await client.post(CHAT, json=body)).text.split("\n\n")
            chunks = [json.loads(b.removeprefix("data: "))["choices"][0] for b in blocks if b.startswith("data: {")]
            for index in range(n):
                mine = [chunk for chunk in chunks if chunk["index"] == index]
                tokens = [t for chunk in mine for t in (chunk["logprobs"] or {"content": []})["content"]]
                assert "".join(t["token"] for t in tokens) == TEXT
                assert all(len(t["top_logprobs"]) == 1 for t in tokens)
                assert "".join(chunk["delta"].get("content") or "" for chunk in mine) == TEXT
                assert [chunk["finish_reason"] for chunk in mine] == [None] * (len(mine) - 1) + [finish]
                # What a chunk tells of begins in its text: each token once, in order.
                text = tokens_text = ""
                for chunk in mine:
                    text += chunk["delta"].get("content") or ""
                    for token in (chunk["logprobs"] or {"content": []})["content"]:
                        assert len(tokens_text) < len(text)
                        tokens_text += token["token"]

    run(story())


def test_a_replayed_stream_has_them_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE, source=source()) as w, w.client() as client:
            headers = {"Idempotency-Key": "k"}
            body = chat_body(logprobs=True, stream=True)
            first, again = [(await client.post(CHAT, json=body, headers=headers)).text for _ in range(2)]
            kept = [[line for line in t.split("\n\n") if '"logprobs": {' in line] for t in (first, again)]
            assert kept[0] == kept[1] != []

    run(story())


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
    ],
)
def test_wrong_wishes_are_refused_by_name(tmp_path: Path, more: dict[str, Any], param: str) -> None:
    async def story() -> None:
        async with world(tmp_path, OBSERVE) as w, w.client() as client:
            assert error_of(await client.post(CHAT, json=chat_body(**more)), 400, "invalid_value")["param"] == param

    run(story())


def test_asking_for_them_changes_no_law_and_so_no_fingerprint() -> None:
    settings = make_settings(Path("nowhere"))
    assert facts_for(settings, logprobs=True, top_logprobs=20) == facts_for(settings)


@pytest.mark.parametrize(
    ("read", "shown", "asked"), [(0, None, 0), (0, 0, 0), (10, None, 11), (10, 5, 11), (10, 20, 20), (0, 20, 20)]
)
def test_a_source_asks_for_as_many_as_anyone_reads_and_never_above_the_limit(
    read: int, shown: int | None, asked: int
) -> None:
    assert SamplingParameters(0.7, 1.0, 5, top_log_probabilities=read, shown=shown).top == asked


@pytest.mark.parametrize(
    ("tokens", "text", "kept"),
    [
        (["It", " is", "<end>"], "It is", 2),
        (["It", " is", " END", " of"], "It is", 2),
        (["It", " is", "s EN", "D it"], "It iss ", 3),
        (["It", " ", "", "", "🏮"], "It 🏮", 5),
        (["It", " ", "", ""], "It ", 2),
        (["It", "<end>"], "", 0),
        (["▁It", "▁is"], "It is", 2),
        ([], "", 0),
    ],
)
def test_the_tokens_are_those_that_begin_inside_the_text(tokens: list[str], text: str, kept: int) -> None:
    found = fitted([position((token, -1.0), [], 0) for token in tokens], text)
    assert [p.chosen.text for p in found] == tokens[:kept]


def test_bytes_of_half_a_character_are_not_made_up() -> None:
    assert position(("\ufffd", -1.0), [], 0).chosen.utf8 is None
    assert position(("é", float("nan")), [], 0).chosen.log_probability == LEAST
