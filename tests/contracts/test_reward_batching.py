"""Requests that share a pass, what the worker counts, the circuit breaker, and the supervisor of the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from reticent.rewards.batches import MAX_TOGETHER, ScoringQueue
from reticent.rewards.breaker import CircuitBreaker
from reticent.rewards.client import RewardClient
from reticent.rewards.encoders.base import Pair, Subject
from reticent.rewards.errors import BatchNotStarted, WorkerFailed, WorkerUnavailable
from reticent.rewards.supervisor import Supervisor
from tests.fakes.worker import SECRET, FakeBackend, score_body, served_worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class PairFake(FakeBackend):
    """Scores pairs by the length of both texts; fails in the presence of one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[list[str]] = []
        self.poison: str | None = None

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        self.started.release()
        self.hold.wait(10)
        self.passes.append([answer for _, answer in pairs])
        if self.poison in self.passes[-1]:
            raise RuntimeError("poison")
        return [(len(subject.prompt) + len(answer)) / 100 for subject, answer in pairs]


async def _held(backend: PairFake, queue: ScoringQueue) -> asyncio.Task[list[float]]:
    """A first batch that is being scored until `backend.hold` is set."""
    backend.hold.clear()
    first = asyncio.create_task(queue.score(Subject("p"), ["first"]))
    assert await asyncio.to_thread(backend.started.acquire, timeout=10)
    return first


async def test_requests_that_wait_are_scored_in_one_pass_and_get_their_own_rewards() -> None:
    backend = PairFake()
    queue = ScoringQueue(backend)
    first = await _held(backend, queue)
    waiting = [asyncio.create_task(queue.score(Subject("p" * n), ["a" * n] * n)) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    backend.hold.set()
    assert await first == [0.06]
    assert await asyncio.gather(*waiting) == [[0.02], [0.04] * 2, [0.06] * 3]
    assert backend.passes == [["first"], ["a", "aa", "aa", "aaa", "aaa", "aaa"]]
    queue.close()


async def test_a_shared_pass_is_bounded_and_keeps_the_order() -> None:
    backend = PairFake()
    queue = ScoringQueue(backend)
    first = await _held(backend, queue)
    sizes = (MAX_TOGETHER - 1, 1, 1, 2 * MAX_TOGETHER, 1)
    waiting = [asyncio.create_task(queue.score(Subject("p"), ["a"] * n)) for n in sizes]
    await asyncio.sleep(0)
    backend.hold.set()
    await first
    await asyncio.gather(*waiting)
    assert [len(one) for one in backend.passes] == [1, MAX_TOGETHER, 1, 2 * MAX_TOGETHER, 1]
    queue.close()


async def test_a_request_that_breaks_a_shared_pass_fails_alone() -> None:
    backend = PairFake()
    backend.poison = "bad"
    queue = ScoringQueue(backend)
    first = await _held(backend, queue)
    good, bad, other = (asyncio.create_task(queue.score(Subject("p"), [text])) for text in ("good", "bad", "other"))
    await asyncio.sleep(0)
    backend.hold.set()
    await first
    assert [await good, await other] == [[0.05], [0.06]]
    with pytest.raises(RuntimeError, match="poison"):
        await bad
    queue.close()


async def test_a_request_that_was_withdrawn_is_in_no_shared_pass() -> None:
    backend = PairFake()
    queue = ScoringQueue(backend)
    first = await _held(backend, queue)
    patient = asyncio.create_task(queue.score(Subject("p"), ["patient"]))
    with pytest.raises(BatchNotStarted):
        await queue.score(Subject("p"), ["hasty"], patience=0.02)
    backend.hold.set()
    await asyncio.gather(first, patient)
    assert backend.passes == [["first"], ["patient"]]
    queue.close()


async def test_metrics_count_passes_and_show_no_reward() -> None:
    backend = FakeBackend()
    async with served_worker(backend) as http:
        backend.next = [0.123456, 1.654321]
        await http.post("/score", json=score_body())
        backend.failure = RuntimeError("boom")
        await http.post("/score", json=score_body())
        answer = await http.get("/metrics")
        del http.headers["authorization"]
        assert (await http.get("/metrics")).status_code == 401
    assert answer.status_code == 200
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert lines["reticent_worker_candidates_total"] == "5.0"
    assert lines["reticent_worker_failures_total"] == "1.0"
    assert lines['reticent_worker_refused_total{reason="busy"}'] == "0.0"
    assert "123456" not in answer.text
    assert "654321" not in answer.text


# --- breaker ------------------------------------------------------------------------------------------------------


def _clock() -> tuple[Callable[[], float], list[float]]:
    now = [0.0]
    return (lambda: now[0]), now


def test_a_breaker_opens_after_failures_that_lie_close_together() -> None:
    clock, now = _clock()
    breaker = CircuitBreaker(3, 10.0, 5.0, clock)
    opened = []
    for second in (0.0, 6.0, 12.0, 18.0):
        now[0] = second
        breaker.failed()
        opened.append(breaker.is_open)
    assert opened == [False] * 4
    now[0] = 19.0
    breaker.succeeded()
    breaker.failed()
    breaker.failed()
    assert breaker.is_open
    assert not breaker.may_try


def test_after_the_cooldown_one_trial_decides() -> None:
    clock, now = _clock()
    breaker = CircuitBreaker(1, 10.0, 5.0, clock)
    breaker.failed()
    allowed = []
    for second in (4.0, 5.0):
        now[0] = second
        allowed.append(breaker.may_try)
    breaker.failed()
    for second in (9.0, 10.0):
        now[0] = second
        allowed.append(breaker.may_try)
    assert allowed == [False, True] * 2
    breaker.succeeded()
    assert not breaker.is_open


@pytest.mark.parametrize("numbers", [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, -1.0)])
def test_a_breaker_wants_positive_numbers(numbers: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError):
        CircuitBreaker(*numbers)


async def test_a_client_stops_asking_a_worker_that_fails_until_its_canary_is_well(tmp_path: Path) -> None:
    """What it is for: a failure forfeits a reservation, a call that is not made releases it."""
    asked: list[bytes] = []
    well = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.read(65536)
        asked.append(request.split(b" ")[1])
        body = b'{"rewards": [0.5]}' if well else b"{}"
        status = b"200 OK" if well else b"500 X"
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    clock, now = _clock()
    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    breaker = CircuitBreaker(3, 60.0, 30.0, clock)
    async with server, RewardClient(SECRET, socket=tmp_path / "s", breaker=breaker) as client:
        for _ in range(3):
            with pytest.raises(WorkerFailed):
                await client.score(Subject("p"), ["a"])
        for _ in range(5):
            with pytest.raises(WorkerUnavailable):
                await client.score(Subject("p"), ["a"])
        assert asked == [b"/score"] * 3
        now[0] = 31.0
        with pytest.raises(WorkerUnavailable):
            await client.score(Subject("p"), ["a"])
        assert asked[3:] == [b"/health"]
        now[0], well = 62.0, True
        assert await client.score(Subject("p"), ["a"]) == [0.5]
        assert asked[4:] == [b"/health", b"/score"]
        assert await client.score(Subject("p"), ["a"]) == [0.5]
        assert asked[6:] == [b"/score"]


# --- supervisor ---------------------------------------------------------------------------------------------------


class Mortal:
    """A worker that dies as often as the test says."""

    def __init__(self, starts_that_fail: int = 0) -> None:
        self.is_running = True
        self.starts = 0
        self.gave_up = threading.Event()
        self._failing = starts_that_fail

    def restart(self) -> None:
        self.starts += 1
        if self.starts <= self._failing:
            raise WorkerUnavailable("no")
        self.is_running = True

    def give_up(self) -> None:
        self.gave_up.set()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_worker_that_ended_is_started_again() -> None:
    worker, said = Mortal(), list[str]()
    with Supervisor(worker, said.append, interval=0.001):
        for expected in (1, 2):
            worker.is_running = False
            _until(lambda: worker.starts == expected and worker.is_running)  # noqa: B023 - called at once
    assert worker.gave_up.is_set()
    assert said[:2] == ["the reward worker has ended; starting it again", "the reward worker runs again"]


def test_a_crash_loop_opens_the_circuit_and_a_later_trial_closes_it() -> None:
    clock, now = _clock()
    worker, said = Mortal(starts_that_fail=3), list[str]()
    breaker = CircuitBreaker(3, 300.0, 120.0, clock)
    worker.is_running = False
    with Supervisor(worker, said.append, breaker=breaker, interval=0.001):
        _until(lambda: breaker.is_open)
        time.sleep(0.05)
        assert worker.starts == 2, "the end and two starts that failed"
        now[0] = 121.0
        _until(lambda: worker.starts == 3)
        time.sleep(0.05)
        assert worker.starts == 3
        now[0] = 242.0
        _until(lambda: worker.is_running)
    assert any("left alone" in line for line in said)
