"""An external score: the verifier is asked once, and what it cannot say makes the gate abstain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from reticent.plugin.settings import ConfigurationError
from reticent.plugin.verifier import HttpVerifier
from reticent.rewards import Subject
from tests.fakes.build import run, world
from tests.fakes.serving import serving

SUBJECT = Subject("told what?", "what?", ("told",))
EXTERNAL: dict[str, Any] = {"score": "external", "score_constants": {"verifier": "judge", "revision": "1"}}


def _ask(reply: Callable[[httpx.Request], httpx.Response]) -> float | None:
    async def story() -> float | None:
        verifier = HttpVerifier("http://verifier/score", 1.0, httpx.MockTransport(reply))
        try:
            return await verifier.score(SUBJECT, "a cat")
        finally:
            await verifier.close()

    return run(story())


def test_the_verifier_gets_question_evidence_and_answer_and_its_number_is_taken() -> None:
    seen = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, json={"score": 0.75, "why": "it says so"})

    assert _ask(reply) == 0.75
    assert seen == [{"question": "what?", "evidence": ["told"], "answer": "a cat"}]


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(500, json={"score": 0.9}),
        httpx.Response(200, content=b"not JSON"),
        httpx.Response(200, json=[0.9]),
        httpx.Response(200, json={"score": "0.9"}),
        httpx.Response(200, json={"score": True}),
        httpx.Response(200, content=b'{"score": NaN}'),
        httpx.Response(200, json={}),
        httpx.Response(200, content=b'{"score": 0.9, "more": "' + b"x" * 70_000 + b'"}'),
    ],
    ids=["status", "no JSON", "a list", "a text", "a truth value", "NaN", "nothing", "too long"],
)
def test_what_is_no_number_is_none(response: httpx.Response) -> None:
    assert _ask(lambda request: response) is None


def test_a_verifier_that_does_not_answer_gives_none_and_is_not_asked_again() -> None:
    asked = []

    def reply(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise httpx.ReadTimeout("slow")

    assert _ask(reply) is None
    assert len(asked) == 1


def test_an_external_score_needs_a_verifier(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {"gate": EXTERNAL}):
            pass

    with pytest.raises(ConfigurationError, match=r"gate\.verifier"):
        run(story())


def test_the_server_judges_by_the_verifiers_number(tmp_path: Path) -> None:
    app = FastAPI()

    @app.post("/score")
    async def _score() -> dict[str, float]:
        return {"score": 0.625}

    async def story(url: str) -> None:
        changes = {"gate": {**EXTERNAL, "verifier": {"url": url, "timeout_seconds": 5.0}}}
        async with world(tmp_path, changes) as w:
            assert (await w.answer("lenient")).choices[0].score == 0.625
        changes["gate"]["verifier"] = {"url": "http://127.0.0.1:9/", "timeout_seconds": 5.0}
        folder = tmp_path / "nobody"
        folder.mkdir()
        async with world(folder, changes) as w:
            answer = await w.answer("lenient")
            assert (answer.choices[0].score, answer.choices[0].verdict.accepted) == (None, False)

    with serving(app) as url:
        run(story(f"{url}/score"))
