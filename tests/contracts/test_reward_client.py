"""Where the worker may listen, and what its client makes of whatever answers there."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from reticent.rewards.address import listen_on_loopback, listen_on_socket
from reticent.rewards.client import RewardClient
from reticent.rewards.errors import (
    UnsafeAddress,
    WorkerFailed,
    WorkerRefused,
    WorkerUnavailable,
)
from reticent.rewards.protocol import MAX_BODY_BYTES
from reticent.rewards.worker import main
from tests.fakes.worker import SECRET, SUBJECT

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost", "example.org", "", "127.0.0.1.nip.io"])
def test_any_address_but_loopback_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsafeAddress):
        listen_on_loopback(host, 0)
    with pytest.raises(UnsafeAddress):
        RewardClient(SECRET, host=host)
    assert main(["--head", "none.json", "--host", host]) == 2
    assert "neither a loopback address" in capsys.readouterr().err


def test_a_socket_is_for_its_owner_alone_and_replaces_only_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen_on_socket(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(FileExistsError):
            listen_on_socket(path)
    with listen_on_socket(path):
        pass
    path.unlink()
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        listen_on_socket(path)
    assert path.read_text() == "precious"


# --- the client's errors ------------------------------------------------------------------------------------------


@asynccontextmanager
async def _raw_server(path: Path, reply: bytes | None) -> AsyncIterator[list[bytes]]:
    """A Unix socket that reads a request and answers `reply`, or hangs up without a word."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.read(65536))
        if reply is not None:
            writer.write(reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield requests


def _reply(body: object, status: str = "200 OK") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n\r\n".encode() + raw


async def test_no_worker_means_unavailable(tmp_path: Path) -> None:
    async with RewardClient(SECRET, socket=tmp_path / "none") as client:
        with pytest.raises(WorkerUnavailable):
            await client.score(SUBJECT, ["a"])
        assert not await client.is_healthy()
        assert await client.score(SUBJECT, []) == []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with RewardClient(SECRET, host="127.0.0.1", port=taken.getsockname()[1]) as client:
            with pytest.raises(WorkerUnavailable):
                await client.score(SUBJECT, ["a"])


@pytest.mark.parametrize(
    "reply",
    [
        None,
        b"nonsense",
        _reply({"rewards": [0.5]}),
        _reply({"rewards": [0.5, "1"]}),
        _reply({"rewards": [0.5, True]}),
        _reply({"rewards": None}),
        _reply([0.5, 0.5]),
        _reply(b"{"),
        _reply({"error": "scoring_failed"}, "500 Internal Server Error"),
        _reply(b"", "302 Found"),
    ],
)
async def test_whatever_happens_after_the_request_went_out_means_failed_and_is_not_retried(
    tmp_path: Path, reply: bytes | None
) -> None:
    async with _raw_server(tmp_path / "s", reply) as requests, RewardClient(SECRET, socket=tmp_path / "s") as client:
        with pytest.raises(WorkerFailed):
            await client.score(SUBJECT, ["a", "b"])
        assert len(requests) == 1


@pytest.mark.parametrize("status", [401, 413, 415, 422, 503])
async def test_a_refusal_means_that_nothing_was_computed(tmp_path: Path, status: int) -> None:
    reply = _reply({"error": "x"}, f"{status} X")
    async with _raw_server(tmp_path / "s", reply), RewardClient(SECRET, socket=tmp_path / "s") as client:
        with pytest.raises(WorkerRefused) as caught:
            await client.score(SUBJECT, ["a"])
    assert caught.value.status == status
    assert isinstance(caught.value, WorkerUnavailable)


MODEL = "0" * 64


@pytest.mark.parametrize(
    "answer", [{"rewards": [0.5]}, {"rewards": [0.5], "model": "1" * 64}, {"rewards": [0.5], "model": None}]
)
async def test_rewards_of_another_model_than_the_configured_one_are_not_taken(
    tmp_path: Path, answer: dict[str, object]
) -> None:
    path = tmp_path / "s"
    async with _raw_server(path, _reply(answer)), RewardClient(SECRET, socket=path, model=MODEL) as client:
        with pytest.raises(WorkerFailed, match="another reward model"):
            await client.score(SUBJECT, ["a"])
        assert not await client.is_healthy()


async def test_rewards_of_the_configured_model_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "s"
    reply = _reply({"rewards": [0.5], "model": MODEL})
    async with _raw_server(path, reply), RewardClient(SECRET, socket=path, model=MODEL) as client:
        assert await client.score(SUBJECT, ["a"]) == [0.5]
        assert await client.is_healthy()


async def test_a_worker_that_does_not_answer_in_time_means_failed(tmp_path: Path) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(never, tmp_path / "s")
    async with server, RewardClient(SECRET, socket=tmp_path / "s", timeout=0.2) as client:
        with pytest.raises(WorkerFailed):
            await client.score(SUBJECT, ["a"])


async def test_the_client_bounds_rewards_once_more(tmp_path: Path) -> None:
    reply = _reply(b'{"rewards": [NaN, Infinity, -1, 7, 0.25]}')
    path = tmp_path / "s"
    async with _raw_server(path, reply), RewardClient(SECRET, socket=path, reward_max=2.0) as client:
        assert await client.score(SUBJECT, ["a"] * 5) == [0.0, 0.0, 0.0, 2.0, 0.25]


async def test_a_request_that_the_worker_would_refuse_is_not_sent(tmp_path: Path) -> None:
    async with RewardClient(SECRET, socket=tmp_path / "none") as client:
        with pytest.raises(WorkerRefused):
            await client.score(SUBJECT, ["x" * MAX_BODY_BYTES])


def test_a_client_wants_exactly_one_address() -> None:
    for arguments in ({}, {"host": "127.0.0.1", "socket": Path("s")}, {"host": "127.0.0.1", "timeout": 0.0}):
        with pytest.raises(ValueError):
            RewardClient(SECRET, **arguments)  # type: ignore[arg-type]
