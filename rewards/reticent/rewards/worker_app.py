"""The worker's HTTP application: a thin, closed shell around one backend.

| route | answer |
|---|---|
| `POST /score` | `{"rewards": [...], "model": ...}`; 503 where the batch was not started and never will be |
| `GET /health` | 200 with the model's digest when a canary scores as it did at the start, else 503; no reward in it; \
one canary answers everybody for some seconds |
| `GET /ready` | 200 once the backend stands and the canary has been scored |
| `GET /profile` | the backend's public facts, R and Δ among them |
| `GET /metrics` | counts and durations in Prometheus' format; no reward in it |
| `POST /get_reward` | OpenRLHF's remote protocol (`OpenRlhfRequest`): `{"rewards": [...]}` |

Every route wants the shared secret, as a bearer token or, for clients that can only put it into a URL, as the password
of Basic authentication. Nothing that comes in or goes out is logged; an error's text names its place and
kind only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from .batches import CANARY_SECONDS, Canary, ScoringQueue
from .encoders.base import Subject
from .errors import BatchNotStarted
from .ports import RewardBackend
from .protocol import (
    MAX_BODY_BYTES,
    MAX_PATIENCE,
    PATIENCE_HEADER,
    OpenRlhfRequest,
    ScoreRequest,
    model_digest,
)
from .worker_metrics import WorkerMetrics

__all__ = ["create_app"]

_LOG = logging.getLogger("reticent.rewards.worker")
_DEFAULT_PATIENCE = 15.0

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
_Patience = Annotated[float, Header(alias=PATIENCE_HEADER, ge=0, le=MAX_PATIENCE, allow_inf_nan=False)]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def create_app(backend: RewardBackend, secret: str, *, canary_seconds: float = CANARY_SECONDS) -> FastAPI:
    """The application around `backend`; its single scoring thread lives as long as the application's lifespan.

    `canary_seconds` is how long one canary's verdict answers `/health`.

    Raises:
        ValueError: a secret shorter than 16 characters.
    """
    if len(secret) < 16:
        raise ValueError("the worker's secret must have at least 16 characters")
    metrics = WorkerMetrics()
    queue = ScoringQueue(backend, metrics)
    canary = Canary(queue, canary_seconds)
    model = model_digest(backend.public_facts())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await canary.begin()
            yield
        finally:
            queue.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Doorkeeper, secret=secret)

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        # The library's own answer would quote the input.
        places = [{"at": ".".join(str(part) for part in e["loc"]), "type": e["type"]} for e in error.errors()]
        return JSONResponse({"error": "invalid_request", "places": places[:20]}, status_code=422)

    async def answer(request: Request, subject: Subject, candidates: list[str], patience: float) -> list[float] | None:
        gone = asyncio.create_task(_until_gone(request.receive))
        try:
            return await queue.score(subject, candidates, patience=patience, gone=gone)
        except BatchNotStarted:
            return None
        finally:
            gone.cancel()

    @app.post("/score")
    async def score(request: Request, wanted: ScoreRequest, patience: _Patience = _DEFAULT_PATIENCE) -> JSONResponse:
        try:
            rewards = await answer(request, wanted.subject.value(), wanted.candidates, patience)
        except Exception as error:  # noqa: BLE001 - its text may quote a prompt, so only its type may be logged
            return _failed(error)
        return _error(503, "busy") if rewards is None else JSONResponse({"rewards": rewards, "model": model})

    @app.post("/get_reward")
    async def get_reward(request: Request, wanted: OpenRlhfRequest) -> JSONResponse:
        grouped = wanted.by_prompt()
        try:
            scored = [
                await answer(request, Subject(p), list(c.values()), _DEFAULT_PATIENCE) for p, c in grouped.items()
            ]
        except Exception as error:  # noqa: BLE001 - as above
            return _failed(error)
        rewards: dict[int, float] = {}
        for places, some in zip(grouped.values(), scored, strict=True):
            if some is None:
                # Another group may have been scored: with this protocol nobody keeps an account of it.
                return _error(503, "busy")
            rewards |= dict(zip(places, some, strict=True))
        return JSONResponse({"rewards": [rewards[place] for place in range(len(wanted.query))]})

    @app.get("/health")
    async def health() -> JSONResponse:
        problem = await canary.problem()
        return JSONResponse({"status": "ok", "model": model}) if problem is None else _error(503, problem)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        return JSONResponse({"status": "ready"}) if canary.is_known else _error(503, "starting")

    @app.get("/profile")
    async def profile() -> JSONResponse:
        return JSONResponse(
            {
                "reward_max": backend.reward_max,
                "sensitivity": backend.sensitivity,
                "facts": dict(backend.public_facts()),
            }
        )

    @app.get("/metrics")
    async def measured() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


class _Doorkeeper:
    """Refuses, before anything is parsed: a wrong secret (401), another type than JSON (415), a large body (413)."""

    def __init__(self, app: App, secret: str) -> None:
        self._app = app
        self._expected = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not hmac.compare_digest(_given_secret(headers.get(b"authorization", b"")), self._expected):
            await _error(401, "wrong_secret")(scope, receive, send)
            return
        if scope["method"] == "POST":
            if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
                await _error(415, "json_only")(scope, receive, send)
                return
            body = await _read(receive, headers.get(b"content-length", b""))
            if body is None:
                await _error(413, "body_too_large")(scope, receive, send)
                return
            receive = _replay(body, receive)
        await self._app(scope, receive, send)


def _given_secret(header: bytes) -> bytes:
    """The bearer token, or the password of Basic authentication; empty for anything else."""
    scheme, _, rest = header.partition(b" ")
    if scheme == b"Bearer":
        return rest
    if scheme == b"Basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def _failed(error: Exception) -> JSONResponse:
    _LOG.error("scoring failed: %s", type(error).__name__)
    return _error(500, "scoring_failed")


async def _until_gone(receive: Receive) -> None:
    """Return when the client hangs up. The body was read before, so that nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive, stated_length: bytes) -> bytes | None:
    """The whole body, or None as soon as it is known to be too large."""
    if stated_length.isdigit() and int(stated_length) > MAX_BODY_BYTES:
        return None
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            return None
        parts.append(part)
        if message["type"] != "http.request" or not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _error(status: int, code: str) -> JSONResponse:
    return JSONResponse({"error": code}, status_code=status)
