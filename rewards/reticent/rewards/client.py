"""The server's side of the worker: rewards, or an error that says whether any may have been computed.

The difference decides about money: after `WorkerUnavailable` a reservation is released whole, after `WorkerFailed` it
is forfeited at its worst case. So nothing is retried here once a request may have been received, and every request
makes its own connection: on a kept one, a dead worker could not be told from one that died over the request.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from .address import require_loopback
from .breaker import CircuitBreaker
from .encoders.base import Subject
from .errors import WorkerError, WorkerFailed, WorkerRefused, WorkerUnavailable
from .protocol import MAX_BODY_BYTES, MAX_PATIENCE, PATIENCE_HEADER, PATIENCE_SHARE, PATIENT_SHARE, SubjectModel

__all__ = ["RewardClient"]

_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_REFUSALS = frozenset({401, 404, 405, 413, 415, 422, 503})
"""Statuses that the worker gives only where it has computed nothing and will not: 503 also for a batch that it took
back out of its queue unstarted."""
_MAX_ANSWER_BYTES = 1 << 20


class RewardClient:
    """Asks one worker for rewards.

    Args:
        secret: the shared secret.
        socket: the worker's Unix socket, or
        host, port: its loopback address.
        reward_max: R; every reward is brought into [0, R] once more, and NaN and infinities to 0.
        timeout: seconds for one request, all in all. Up to a quarter of it (`PATIENCE_SHARE`) may pass in the worker's
            queue; a batch that has not started by then is refused, so that waiting costs no budget.
        model: digest of the reward model that must answer (`model_digest`); None takes any.
        breaker: opens after failures that may have cost something. While it is open nothing is sent, so that
            reservations are released; then the canary is the trial, which costs nothing.

    Raises:
        UnsafeAddress: `host` is not a loopback address.
        ValueError: neither or both kinds of address, or a timeout that is not positive.
    """

    def __init__(
        self,
        secret: str,
        *,
        socket: Path | None = None,
        host: str | None = None,
        port: int = 8991,
        reward_max: float = 1.0,
        timeout: float = 60.0,
        model: str | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        if (socket is None) == (host is None):
            raise ValueError("give either a socket or a host")
        if not (math.isfinite(timeout) and timeout > 0 and math.isfinite(reward_max) and reward_max > 0):
            raise ValueError(f"timeout and reward_max must be positive: {timeout}, {reward_max}")
        self._reward_max = reward_max
        self._timeout = timeout
        self._model = model
        self._breaker = breaker or CircuitBreaker()
        if host is not None:
            host = f"[{require_loopback(host)}]" if ":" in host else require_loopback(host)
        transport = httpx.AsyncHTTPTransport(
            uds=None if socket is None else str(socket),
            retries=0,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._http = httpx.AsyncClient(
            transport=transport,
            base_url="http://worker" if host is None else f"http://{host}:{port}",
            headers={"authorization": f"Bearer {secret}"},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 5.0)),
            trust_env=False,
            follow_redirects=False,
        )

    async def score(self, subject: Subject, candidates: Sequence[str], *, patient: bool = False) -> list[float]:
        """Rewards of `candidates`, one each, in [0, R].

        An empty list of candidates gives an empty list, without a request.

        Args:
            subject: what the candidates answer.
            candidates: their texts.
            patient: wait in the worker's queue for most of the timeout instead of a quarter of it. For a later batch
                of a request that has had rewards already, where a refusal would cost the worst case.

        Raises:
            WorkerUnavailable: no connection, or the worker refused, or did not start in time (`WorkerRefused`): surely
                nothing was or will be computed.
            WorkerFailed: anything else, timeouts included: rewards may have been computed.
        """
        if not candidates:
            return []
        body = json.dumps(
            {
                "subject": SubjectModel.model_construct(
                    prompt=subject.prompt, question=subject.question, evidence=list(subject.evidence)
                ).model_dump(),
                "candidates": list(candidates),
            }
        ).encode()
        if len(body) > MAX_BODY_BYTES:
            raise WorkerRefused(413)
        await self._require_closed_circuit()
        share = PATIENT_SHARE if patient else PATIENCE_SHARE
        try:
            answer = await self._request("POST", "/score", body, min(self._timeout * share, MAX_PATIENCE))
            return self._rewards(answer, len(candidates))
        except WorkerFailed:
            self._breaker.failed()
            raise

    async def _require_closed_circuit(self) -> None:
        if not self._breaker.is_open:
            return
        if not self._breaker.may_try:
            raise WorkerUnavailable("the reward worker failed several times and is left alone for a while")
        if not await self.is_healthy():
            self._breaker.failed()
            raise WorkerUnavailable("the reward worker failed several times and its canary fails too")
        self._breaker.succeeded()

    async def is_healthy(self) -> bool:
        """Whether the worker is there, is the right one, and its canary scores as it did."""
        try:
            self._require_model(await self._request("GET", "/health", None))
        except WorkerError:
            return False
        return True

    async def is_ready(self) -> bool:
        """Whether the worker is there and has loaded its model."""
        return await self._is_ok("/ready")

    async def profile(self) -> Mapping[str, object]:
        """The worker's `reward_max`, `sensitivity` and public `facts`.

        Raises:
            WorkerUnavailable, WorkerFailed: as `score`.
        """
        value = await self._request("GET", "/profile", None)
        if not isinstance(value, dict):
            raise WorkerFailed("the worker's profile is no JSON object")
        return value

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _is_ok(self, path: str) -> bool:
        try:
            await self._request("GET", path, None)
        except (WorkerUnavailable, WorkerFailed):
            return False
        return True

    async def _request(self, method: str, path: str, body: bytes | None, patience: float = 0.0) -> object:
        headers = {} if body is None else {"content-type": "application/json", PATIENCE_HEADER: f"{patience:.3f}"}
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._http.request(method, path, content=body, headers=headers)
        except _NOT_CONNECTED as error:
            raise WorkerUnavailable(f"no connection to the reward worker ({type(error).__name__})") from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise WorkerFailed(f"no answer from the reward worker ({type(error).__name__})") from None
        if response.status_code in _REFUSALS:
            raise WorkerRefused(response.status_code)
        if response.status_code != 200 or len(response.content) > _MAX_ANSWER_BYTES:
            raise WorkerFailed(f"the reward worker answered with status {response.status_code}")
        try:
            return json.loads(response.content)
        except ValueError:
            raise WorkerFailed("the reward worker did not answer in JSON") from None

    def _require_model(self, answer: object) -> None:
        """Charges and certificates were computed for one model: rewards of another are worth nothing."""
        if self._model is not None and (not isinstance(answer, dict) or answer.get("model") != self._model):
            raise WorkerFailed("another reward model answers than the one that was configured")

    def _rewards(self, answer: object, count: int) -> list[float]:
        self._require_model(answer)
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if not isinstance(rewards, list) or len(rewards) != count:
            raise WorkerFailed("the reward worker did not give one reward a candidate")
        if not all(isinstance(r, int | float) and not isinstance(r, bool) for r in rewards):
            raise WorkerFailed("the reward worker gave a reward that is no number")
        return [min(max(float(r), 0.0), self._reward_max) if math.isfinite(r) else 0.0 for r in rewards]
