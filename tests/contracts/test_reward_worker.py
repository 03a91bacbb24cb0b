"""The contract of reward backends, the worker's closed shell, and the client's errors. No process is started here."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest

from reticent.rewards.backends.head import HeadBackend
from reticent.rewards.batches import MAX_WAITING, Batch, Canary, ScoringQueue
from reticent.rewards.client import RewardClient
from reticent.rewards.encoders.lexical import LexicalEncoder
from reticent.rewards.errors import (
    BatchNotStarted,
    WorkerFailed,
    WorkerRefused,
    WorkerUnavailable,
)
from reticent.rewards.head import LinearHead, SensitivityCertificate, new_identifier
from reticent.rewards.ports import RewardBackend
from reticent.rewards.protocol import MAX_BODY_BYTES, MAX_CANDIDATES, PATIENCE_HEADER, model_digest
from reticent.rewards.sensitivity import HeadFacts
from reticent.rewards.worker_app import create_app
from tests.fakes.serving import serving
from tests.fakes.worker import SECRET, SUBJECT, FakeBackend, score_body, served_worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_head() -> LinearHead:
    encoder = LexicalEncoder()
    rng = np.random.default_rng(1)
    certificate = SensitivityCertificate.of(HeadFacts(1000, 1, 0.1, 2.0, 1e-9, 0.5, 2.0), "0" * 64)
    weights = tuple(float(x) for x in rng.normal(size=encoder.dimension))
    return LinearHead(weights, encoder.name, encoder.revision, certificate, new_identifier())


class RewardBackendContract:
    """What every backend keeps."""

    def backend(self) -> RewardBackend:
        raise NotImplementedError

    CANDIDATES = ("A cat.", "A dog.", "", "It is not stated.", "A cat.", "x" * 5000)

    def test_one_bounded_reward_a_candidate_in_order(self) -> None:
        backend = self.backend()
        rewards = backend.score(SUBJECT, self.CANDIDATES)
        assert len(rewards) == len(self.CANDIDATES)
        assert all(math.isfinite(r) and 0 <= r <= backend.reward_max for r in rewards)
        assert rewards[0] == rewards[4]
        assert rewards[::-1] == pytest.approx(backend.score(SUBJECT, self.CANDIDATES[::-1]), abs=1e-5)

    def test_a_reward_does_not_depend_on_its_batch(self) -> None:
        backend = self.backend()
        alone = [backend.score(SUBJECT, [answer])[0] for answer in self.CANDIDATES]
        assert backend.score(SUBJECT, self.CANDIDATES) == pytest.approx(alone, abs=1e-5)

    def test_an_empty_candidate_gets_zero(self) -> None:
        assert self.backend().score(SUBJECT, ["", " \n"]) == [0.0, 0.0]

    def test_the_sensitivity_lies_within_the_range(self) -> None:
        backend = self.backend()
        assert 0 < backend.sensitivity <= backend.reward_max

    def test_public_facts_are_json_without_rewards(self) -> None:
        facts = self.backend().public_facts()
        assert json.loads(json.dumps(dict(facts))) == dict(facts)
        assert not {"weights", "data_sha256"} & facts.keys()


class TestHeadBackend(RewardBackendContract):
    def backend(self) -> RewardBackend:
        return HeadBackend(make_head(), LexicalEncoder())


async def test_a_batch_is_scored_in_one_pass_in_one_thread() -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        answers = await asyncio.gather(*(http.post("/score", json=score_body(["a"] * n)) for n in (3, 1, 2)))
    assert [len(answer.json()["rewards"]) for answer in answers] == [3, 1, 2]
    assert sorted(backend.calls[1:]) == [1, 2, 3]
    assert len(backend.threads) == 1
    assert threading.get_ident() not in backend.threads


async def test_rewards_that_leave_the_worker_are_bounded() -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        backend.next = [math.nan, math.inf, -math.inf, -1.0, 5.0, 1.5]
        answer = await http.post("/score", json=score_body(["a"] * 6))
    assert answer.json()["rewards"] == [0.0, 0.0, 0.0, 0.0, 2.0, 1.5]


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", f"bearer {SECRET}", f"Bearer {SECRET}x"])
@pytest.mark.parametrize("path", ["/score", "/health", "/ready", "/profile", "/docs", "/nothing"])
async def test_nothing_is_answered_without_the_secret(header: str | None, path: str) -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        del http.headers["authorization"]
        headers = {} if header is None else {"authorization": header}
        body = {"json": score_body()} if path == "/score" else {}
        answer = await http.request("POST" if body else "GET", path, headers=headers, **body)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert backend.calls == [3]  # the canary of the start alone


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"candidates": ["a"]},
        score_body([]),
        score_body("a"),
        score_body([1]),
        score_body([None]),
        score_body(["a"] * (MAX_CANDIDATES + 1)),
        score_body(surplus=1),
        {"subject": {"prompt": "p", "evidence": "e"}, "candidates": ["a"]},
        {"subject": {"prompt": "p", "reward": 1}, "candidates": ["a"]},
        [],
        "text",
    ],
)
async def test_a_body_of_the_wrong_form_is_refused_without_quoting_it(body: object) -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        answer = await http.post("/score", json=body)
    assert answer.status_code == 422
    assert backend.calls == [3]
    assert "input" not in answer.text


async def test_other_content_than_json_and_broken_json_are_refused() -> None:
    async with served_worker(FakeBackend()) as http:
        pickled = await http.post("/score", content=b"\x80\x04N.", headers={"content-type": "application/octet-stream"})
        untyped = await http.post("/score", content=json.dumps(score_body()).encode())
        broken = await http.post("/score", content=b'{"canary-text', headers={"content-type": "application/json"})
    assert [pickled.status_code, untyped.status_code, broken.status_code] == [415, 415, 422]
    assert "canary-text" not in broken.text


async def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 2):
            yield b" " * 65536

    backend = FakeBackend()
    async with served_worker(backend) as http:
        json_type = {"content-type": "application/json"}
        stated = await http.post("/score", content=b" " * (MAX_BODY_BYTES + 1), headers=json_type)
        streamed = await http.post("/score", content=chunks(), headers=json_type)
    assert [stated.status_code, streamed.status_code] == [413, 413]
    assert backend.calls == [3]


async def test_health_notices_a_canary_that_moved_and_shows_no_reward() -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        well = await http.get("/health")
        backend.next = [1.0, 1.0, 1.5]
        moved = await http.get("/health")
        backend.failure = RuntimeError("boom")
        failed = await http.get("/health")
        ready = await http.get("/ready")
    assert [well.status_code, moved.status_code, failed.status_code, ready.status_code] == [200, 503, 503, 200]
    assert "1.5" not in moved.text
    assert well.json() == {"status": "ok", "model": model_digest(backend.public_facts())}


async def test_a_failure_neither_shows_nor_logs_what_was_scored(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    with caplog.at_level(logging.DEBUG):
        async with served_worker(backend) as http:
            backend.failure = RuntimeError("canary-text")
            answer = await http.post("/score", json=score_body(["canary-text"]))
    assert answer.status_code == 500
    assert "canary-text" not in answer.text
    assert "canary-text" not in caplog.text
    assert "RuntimeError" in caplog.text


async def test_the_profile_states_the_range_and_the_sensitivity() -> None:
    async with served_worker(FakeBackend()) as http:
        answer = await http.get("/profile")
    assert answer.json() == {"reward_max": 2.0, "sensitivity": 0.5, "facts": {"backend": "fake"}}


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="16"):
        create_app(FakeBackend(), "short")


# --- the queue ----------------------------------------------------------------------------------------------------


async def _until(event: threading.Semaphore) -> None:
    assert await asyncio.to_thread(event.acquire, timeout=10)


@asynccontextmanager
async def _held(backend: FakeBackend) -> AsyncIterator[httpx.AsyncClient]:
    """While a batch of the text "first" is being scored, which ends with the context."""
    async with served_worker(backend) as http:
        await _until(backend.started)  # the canary
        backend.hold.clear()
        first = asyncio.create_task(http.post("/score", json=score_body(["first"])))
        try:
            await _until(backend.started)
            yield http
        finally:
            backend.hold.set()
            assert (await first).status_code == 200


async def test_a_batch_that_does_not_start_in_its_patience_is_refused_and_never_scored() -> None:
    backend = FakeBackend()
    async with _held(backend) as http:
        refused = await http.post("/score", json=score_body(["second"]), headers={PATIENCE_HEADER: "0.02"})
    assert (refused.status_code, refused.json()) == (503, {"error": "busy"})
    async with served_worker(backend) as http:
        assert (await http.post("/score", json=score_body(["third"]))).status_code == 200
    assert [text for text in backend.texts if text in ("first", "second", "third")] == ["first", "third"]


async def test_a_batch_that_has_started_is_scored_to_its_end_whatever_its_patience() -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        await _until(backend.started)
        backend.hold.clear()
        headers = {PATIENCE_HEADER: "0.2"}
        answer = asyncio.create_task(http.post("/score", json=score_body(["only"]), headers=headers))
        await _until(backend.started)
        await asyncio.sleep(0.3)
        assert not answer.done()
        backend.hold.set()
        assert (await answer).json()["rewards"] == [1.0]


@pytest.mark.parametrize("patience", ["nan", "inf", "-1", "soon", "1e9", ""])
async def test_a_patience_that_is_no_bounded_number_is_refused(patience: str) -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        answer = await http.post("/score", json=score_body(), headers={PATIENCE_HEADER: patience})
    assert answer.status_code == 422
    assert backend.calls == [3]


async def test_a_queued_batch_whose_client_hangs_up_is_dropped() -> None:
    backend = FakeBackend()
    app = create_app(backend, SECRET)
    body = json.dumps(score_body(["second"])).encode()
    messages: list[Mapping[str, object]] = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    sent: list[Mapping[str, object]] = []

    async def receive() -> Mapping[str, object]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Mapping[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/score",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {SECRET}".encode()), (b"content-type", b"application/json")],
    }
    async with app.router.lifespan_context(app):
        await _until(backend.started)
        backend.hold.clear()
        transport = httpx.ASGITransport(app=app)
        headers = {"authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers) as http:
            first = asyncio.create_task(http.post("/score", json=score_body(["first"])))
            await _until(backend.started)
            await app(scope, receive, send)  # type: ignore[arg-type]
            backend.hold.set()
            await first
            await http.post("/score", json=score_body(["third"]))
    assert sent[0]["status"] == 503
    assert backend.texts[1:] == ["first", "third"]


async def test_a_caller_that_is_cancelled_leaves_the_queue() -> None:
    backend = FakeBackend()
    queue = ScoringQueue(backend)
    backend.hold.clear()
    first = asyncio.create_task(queue.score(SUBJECT, ["first"]))
    await _until(backend.started)
    second = asyncio.create_task(queue.score(SUBJECT, ["second"]))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    backend.hold.set()
    assert await first == [1.0]
    assert await queue.score(SUBJECT, ["third"]) == [1.0]
    queue.close()
    assert backend.texts == ["first", "third"]


async def test_the_queue_is_bounded() -> None:
    backend = FakeBackend()
    queue = ScoringQueue(backend)
    backend.hold.clear()
    tasks = [asyncio.create_task(queue.score(SUBJECT, [str(i)])) for i in range(MAX_WAITING)]
    await _until(backend.started)
    with pytest.raises(BatchNotStarted) as caught:
        await queue.score(SUBJECT, ["surplus"])
    assert caught.value.reason == "full"
    backend.hold.set()
    await asyncio.gather(*tasks)
    assert await queue.score(SUBJECT, ["later"]) == [1.0]
    queue.close()
    assert "surplus" not in backend.texts


async def test_what_is_refused_was_never_scored_and_what_was_scored_is_answered() -> None:
    """The race itself: patience ends about when a batch starts, a thousand times."""
    backend = FakeBackend()
    queue = ScoringQueue(backend)
    refused, answered = set[str](), set[str]()

    async def one(number: int) -> None:
        try:
            await queue.score(SUBJECT, [str(number)], patience=(number % 7) * 1e-4)
            answered.add(str(number))
        except BatchNotStarted:
            refused.add(str(number))

    for start in range(0, 1000, 50):
        await asyncio.gather(*(one(start + i) for i in range(50)))
    await queue.score(SUBJECT, ["last"])
    queue.close()
    assert set(backend.texts) == answered | {"last"}
    assert len(backend.texts) == len(answered) + 1
    assert len(refused) + len(answered) == 1000
    assert refused


def test_of_two_threads_exactly_one_takes_a_batch() -> None:
    rounds = 500
    batches = [Batch(SUBJECT, ["a"]) for _ in range(rounds)]
    barrier = threading.Barrier(2)
    taken: list[list[bool]] = [[], []]

    def take(into: list[bool]) -> None:
        for batch in batches:
            barrier.wait(10)
            into.append(batch.take() is not None)

    threads = [threading.Thread(target=take, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [a + b for a, b in zip(*taken, strict=True)] == [1] * rounds


async def test_the_failure_of_a_batch_that_nobody_waits_for_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    queue = ScoringQueue(backend)
    backend.hold.clear()
    backend.failure = RuntimeError("canary-text")
    task = asyncio.create_task(queue.score(SUBJECT, ["a"]))
    await _until(backend.started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    backend.hold.set()
    await asyncio.to_thread(queue._pool.shutdown)
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert "canary-text" not in caplog.text


async def test_a_busy_worker_refuses_a_client_and_a_slow_one_fails_it() -> None:
    """What the two mean for a reservation: the first is released, the second forfeited."""
    backend = FakeBackend()
    with serving(create_app(backend, SECRET)) as url:
        port = httpx.URL(url).port
        assert port is not None
        await _until(backend.started)
        backend.hold.clear()
        async with RewardClient(SECRET, host="127.0.0.1", port=port, timeout=0.6) as client:
            first = asyncio.create_task(client.score(SUBJECT, ["first"]))
            await _until(backend.started)
            with pytest.raises(WorkerRefused) as caught:
                await client.score(SUBJECT, ["second"])
            assert caught.value.status == 503
            with pytest.raises(WorkerFailed) as failed:
                await first
            assert not isinstance(failed.value, WorkerUnavailable)
            backend.hold.set()
        async with RewardClient(SECRET, host="127.0.0.1", port=port) as client:
            assert await client.score(SUBJECT, ["third"]) == [1.0]
    assert backend.texts[1:] == ["first", "third"]


async def test_a_client_that_hangs_up_on_a_real_connection_leaves_the_queue() -> None:
    backend = FakeBackend()
    with serving(create_app(backend, SECRET)) as url:
        await _until(backend.started)
        backend.hold.clear()
        headers = {"authorization": f"Bearer {SECRET}", PATIENCE_HEADER: "60"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=10) as http:
            first = asyncio.create_task(http.post("/score", json=score_body(["first"])))
            await _until(backend.started)
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/score", json=score_body(["second"]), timeout=0.2)
            # Whatever comes on a later connection is read after the end of the earlier one.
            assert (await http.get("/ready")).status_code == 200
            backend.hold.set()
            await first
            assert (await http.post("/score", json=score_body(["third"]))).status_code == 200
    assert backend.texts[1:] == ["first", "third"]


# --- the canary ---------------------------------------------------------------------------------------------------


async def test_one_canary_answers_every_probe_of_some_seconds() -> None:
    backend = FakeBackend()
    now = [100.0]
    queue = ScoringQueue(backend)
    canary = Canary(queue, 5.0, lambda: now[0])
    await canary.begin()
    assert canary.is_known
    assert await asyncio.gather(*(canary.problem() for _ in range(20))) == [None] * 20
    assert backend.calls == [3, 3]
    backend.next = [1.0, 1.0, 1.5]
    now[0] += 4.9
    assert await canary.problem() is None
    now[0] += 0.2
    assert await asyncio.gather(*(canary.problem() for _ in range(20))) == ["canary_moved"] * 20
    assert backend.calls == [3, 3, 3]
    queue.close()


async def test_probes_that_wait_for_one_canary_are_bounded() -> None:
    backend = FakeBackend()
    queue = ScoringQueue(backend)
    canary = Canary(queue)
    await canary.begin()
    await _until(backend.started)
    backend.hold.clear()
    probes = [asyncio.create_task(canary.problem()) for _ in range(MAX_WAITING)]
    await _until(backend.started)
    assert await canary.problem() == "busy"
    probes[0].cancel()
    await asyncio.sleep(0)
    backend.hold.set()
    assert await asyncio.gather(*probes[1:]) == [None] * (MAX_WAITING - 1)
    assert backend.calls == [3, 3]
    queue.close()
