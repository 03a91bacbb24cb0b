"""Backends that ask a server: vLLM's pooling server and OpenRLHF's protocol, as client and as server."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from reticent.rewards.backends.openrlhf import OpenRlhfBackend
from reticent.rewards.backends.remote import MOST_ANSWER_BYTES
from reticent.rewards.bounds import ClipBound, sigmoid
from reticent.rewards.encoders.base import Subject
from reticent.rewards.errors import (
    BackendFailed,
    BackendUnavailable,
    ModelUnusable,
    ProfileInvalid,
    UnsafeAddress,
)
from reticent.rewards.profile import ModelProfile
from reticent.rewards.worker_app import create_app
from tests.fakes.serving import serving
from tests.fakes.worker import SECRET, FakeBackend, served_worker

pytestmark = pytest.mark.anyio
BOUND = ClipBound(-10.0, 10.0, 20.0)
"""A bounded reward is the raw one plus 10."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def http_profile(**more: Any) -> ModelProfile:
    fields: dict[str, Any] = {
        "backend": "http",
        "name": "remote",
        "revision": "1",
        "bound": BOUND,
        "max_length": 200,
        "url": "http://127.0.0.1:9/get_reward",
        "template": "{prompt}\n\n{answer}",
        **more,
    }
    return ModelProfile(**fields)


Handler = Callable[[httpx.Request], httpx.Response]


def backend_with(handler: Handler, **more: Any) -> OpenRlhfBackend:
    return OpenRlhfBackend(http_profile(**more), httpx.MockTransport(handler))


def by_length(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"rewards": [len(query) / 100 for query in json.loads(request.content)["query"]]})


def test_openrlhfs_protocol_gets_queries_with_their_prompts() -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return by_length(request)

    rewards = backend_with(handler).score(Subject("Why?"), ["So.", "", "Because."])
    assert seen == [{"query": ["Why?\n\nSo.", "Why?\n\nBecause."], "prompts": ["Why?\n\n"] * 2}]
    assert rewards == pytest.approx([10.09, 0.0, 10.14])


def test_a_long_text_loses_the_start_of_its_prompt_and_nothing_of_its_answer() -> None:
    queries: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        queries.extend(json.loads(request.content)["query"])
        return by_length(request)

    prompt = "".join(chr(97 + i % 26) for i in range(500))
    rewards = backend_with(handler).score(Subject(prompt), ["answer", "x" * 198, "x" * 199])
    assert queries == [prompt[-192:] + "\n\nanswer", "\n\n" + "x" * 198]
    assert rewards[2] == 0.0
    assert backend_with(handler, long_input="zero").score(Subject(prompt), ["answer"]) == [0.0]


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"rewards": [1]}',
        b'{"rewards": [1, "2"]}',
        b'{"rewards": [1, true]}',
        b'{"rewards": [1, null]}',
        b" " * (MOST_ANSWER_BYTES + 1),
    ],
)
def test_an_answer_of_another_form_or_size_fails(body: bytes) -> None:
    with pytest.raises(BackendFailed):
        backend_with(lambda _: httpx.Response(200, content=body)).score(Subject("?"), ["a", "b"])


def test_rewards_that_are_not_finite_become_zero() -> None:
    body = b'{"rewards": [NaN, Infinity, -Infinity, 1e999, 2]}'
    rewards = backend_with(lambda _: httpx.Response(200, content=body)).score(Subject("?"), list("abcde"))
    assert rewards == [0.0, 0.0, 0.0, 0.0, 12.0]


def test_a_call_is_repeated_only_while_no_answer_was_read() -> None:
    calls: list[int] = []

    def recovering(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        if len(calls) == 1:
            raise httpx.ReadTimeout("slow")
        return httpx.Response(503) if len(calls) == 2 else by_length(request)

    assert len(backend_with(recovering, retries=2).score(Subject("?"), ["a"])) == 1
    assert len(calls) == 3
    calls.clear()
    with pytest.raises(BackendFailed):
        backend_with(recovering, retries=1).score(Subject("?"), ["a"])
    assert len(calls) == 2

    def refusing(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(302, headers={"location": "http://127.0.0.1:9/other"})

    calls.clear()
    with pytest.raises(BackendFailed):
        backend_with(refusing, retries=5).score(Subject("?"), ["a"])
    assert len(calls) == 1


async def test_a_server_that_is_not_reached_costs_nothing_and_one_that_fails_does() -> None:
    state = {"mood": "well"}

    def handler(request: httpx.Request) -> httpx.Response:
        if state["mood"] == "away":
            raise httpx.ConnectError("nobody")
        if state["mood"] == "broken":
            return httpx.Response(500)
        if state["mood"] == "leaves" and state.setdefault("asked", "no") == "yes":
            raise httpx.ConnectError("nobody")
        state["asked"] = "yes"
        return by_length(request)

    backend = backend_with(handler)
    body = {"subject": {"prompt": "?"}, "candidates": ["a"]}
    async with served_worker(backend) as http:
        state["mood"] = "away"
        with pytest.raises(BackendUnavailable):
            backend.score(Subject("?"), ["a"])
        assert (await http.post("/score", json=body)).status_code == 503
        state["mood"] = "broken"
        assert (await http.post("/score", json=body)).status_code == 500
        state |= {"mood": "leaves", "asked": "no"}
        # 200 candidates are two calls, and the first one was answered: not free any more.
        answer = await http.post("/score", json={**body, "candidates": ["a"] * 200})
        assert answer.status_code == 500


async def test_a_worker_is_the_server_of_another_ones_client(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET + "\n")
    key.chmod(0o600)
    inner = FakeBackend()
    with serving(create_app(inner, SECRET)) as url:
        profile = http_profile(url=f"{url}/get_reward", key_file=key)
        backend = OpenRlhfBackend(profile)
        rewards = backend.score(Subject("Why?"), ["So.", "", "Because."])
        backend.close()
        assert rewards == pytest.approx([11.0, 0.0, 11.0])
    key.chmod(0o644)
    with pytest.raises(ModelUnusable, match="owner only"):
        OpenRlhfBackend(http_profile(key_file=key))


async def test_the_servers_half_answers_in_order_and_takes_a_password_of_a_url() -> None:
    class Words(FakeBackend):
        def score(self, subject: Subject, candidates: Any) -> list[float]:
            return [min(2.0, (len(subject.prompt) + len(answer)) / 10) for answer in candidates]

    async with served_worker(Words()) as http:
        body = {"query": ["ab c", "x yz", "ab"], "prompts": ["ab", "x", "ab"], "labels": [None] * 3}
        token = base64.b64encode(f"trainer:{SECRET}".encode()).decode()
        answer = await http.post("/get_reward", json=body, headers={"authorization": f"Basic {token}"})
        assert answer.json() == {"rewards": [0.4, 0.4, 0.2]}
        wrong = base64.b64encode(b"trainer:wrong").decode()
        for header in (f"Basic {wrong}", "Basic !", "Basic "):
            refused = await http.post("/get_reward", json=body, headers={"authorization": header})
            assert refused.status_code == 401
        for bad in ({"query": ["a"]}, {"query": ["a"], "prompts": ["b"]}, {"query": ["a"], "prompts": []}, {}):
            assert (await http.post("/get_reward", json=bad)).status_code == 422


# --- the pooling server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from tests.fakes.tiny_rewards import make_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return folder


class Pooler:
    """A pooling server whose raw reward is the mean of the token ids, minus 100, over 50."""

    def __init__(self, knows_activation: bool = True, default: bool = True) -> None:
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._knows = knows_activation
        self._default = default

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append(body)
        self.paths.append(request.url.path)
        activated = body.get("use_activation", self._default) if self._knows else self._default
        raw = [(sum(row) / len(row) - 100) / 50 for row in body["input"]]
        values = [sigmoid(one) if activated else one for one in raw]
        field = "probs" if request.url.path == "/classify" else "data"
        return httpx.Response(200, json={"data": [{"index": i, field: [v]} for i, v in enumerate(values)]})


def pooling_backend(folder: Path, handler: Handler, **more: Any) -> Any:
    from reticent.rewards.backends.pooling_server import PoolingServerBackend

    profile = http_profile(
        **{"backend": "vllm", "folder": folder, "url": "http://127.0.0.1:9", "template": "chat", **more}
    )
    return PoolingServerBackend(profile, httpx.MockTransport(handler))


@pytest.mark.parametrize("route", ["classify", "pooling"])
def test_a_pooling_server_gets_token_ids_and_no_activation(tokenizer_folder: Path, route: str) -> None:
    pooler = Pooler()
    backend = pooling_backend(tokenizer_folder, pooler, route=route)
    rewards = backend.score(Subject("Why?"), ["Ada has a cat.", "", "A dog."])
    last = pooler.requests[-1]
    assert pooler.paths[-1] == f"/{route}"
    assert last["use_activation"] is False
    assert last["model"] == "remote"
    assert [row[0] for row in last["input"]] == [1, 1]
    expected = [(sum(row) / len(row) - 100) / 50 + 10 for row in last["input"]]
    assert rewards == pytest.approx([expected[0], 0.0, expected[1]])


@pytest.mark.parametrize("default", [True, False])
def test_a_server_that_does_not_know_the_activation_field_is_refused(tokenizer_folder: Path, default: bool) -> None:
    with pytest.raises(ModelUnusable, match="use_activation"):
        pooling_backend(tokenizer_folder, Pooler(knows_activation=False, default=default))


@pytest.mark.parametrize("row", [{"index": 0, "probs": [1, 2]}, {"index": 1, "probs": [1]}, {"probs": ["1"]}, 3])
def test_a_server_with_several_labels_or_without_numbers_is_refused(tokenizer_folder: Path, row: Any) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [row] * len(json.loads(request.content)["input"])})

    with pytest.raises(ModelUnusable):
        pooling_backend(tokenizer_folder, handler)


# --- profiles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/get_reward",
        "http://localhost:9/",
        "http://example.org/",
        "https://user:key@example.org/",
        "ftp://127.0.0.1/",
        "127.0.0.1:9",
        "",
        "https://example.org/?key=1",
    ],
)
def test_prompts_go_nowhere_in_clear_text(url: str) -> None:
    with pytest.raises(UnsafeAddress) as caught:
        http_profile(url=url)
    assert "user:key" not in str(caught.value)


def test_a_server_behind_tls_may_be_elsewhere() -> None:
    assert http_profile(url="https://rewards.example.org/get_reward").url is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "magic"},
        {"name": ""},
        {"revision": ""},
        {"max_length": 0},
        {"retries": 9},
        {"timeout_seconds": math.nan},
        {"template": "chat"},
        {"template": "pair"},
        {"template": "{answer} {prompt}"},
        {"template": "{prompt}{prompt}{answer}"},
        {"url": None},
        {"folder": Path("m")},
        {"backend": "transformers"},
        {"long_input": "cut"},
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileInvalid):
        http_profile(**changes)


def test_a_profile_survives_json_and_shows_no_place_in_its_facts() -> None:
    profile = http_profile(key_file=Path("/secret/key"))
    assert ModelProfile.from_dict(json.loads(profile.to_json())) == profile
    facts = json.dumps(dict(profile.public_facts()))
    assert "127.0.0.1" not in facts
    assert "secret" not in facts
    assert profile.sensitivity == profile.reward_max == 20.0
    for bad in ({}, {**profile.to_dict(), "more": 1}, {**profile.to_dict(), "bound": None}):
        with pytest.raises(ProfileInvalid):
            ModelProfile.from_dict(bad)
