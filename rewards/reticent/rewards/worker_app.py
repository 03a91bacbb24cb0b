"""The worker's HTTP application: a thin, closed shell around one backend.

| route | answer |
|---|---|
| `POST /score` | `{"rewards": [...]}` |
| `GET /health` | 200 with the model's digest when a canary scores as it did at the start, else 503; no reward in it |
| `GET /ready` | 200 once the backend stands and the canary has been scored |
| `GET /profile` | the backend's public facts, R and Δ among them |

Every route wants the shared secret. Nothing that comes in or goes out is logged; an error's text names its place and
kind only.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from .encoders.base import Subject
from .ports import RewardBackend
from .protocol import MAX_BODY_BYTES, ScoreRequest, model_digest

__all__ = ["create_app"]

_LOG = logging.getLogger("reticent.rewards.worker")
_MAX_WAITING = 64
_CANARY = (
    Subject("Passage: Ada has a cat.\n\nQuestion: Which pet has Ada?", "Which pet has Ada?", ("Ada has a cat.",)),
    ("Ada has a cat.", "It is not stated.", ""),
)
_CANARY_TOLERANCE = 1e-3

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def create_app(backend: RewardBackend, secret: str) -> FastAPI:
    """The application around `backend`; its single scoring thread lives as long as the application's lifespan.

    Raises:
        ValueError: a secret shorter than 16 characters.
    """
    if len(secret) < 16:
        raise ValueError("the worker's secret must have at least 16 characters")
    scorer = _Scorer(backend)
    model = model_digest(backend.public_facts())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            scorer.canary = await scorer.score(*_CANARY)
            yield
        finally:
            scorer.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Doorkeeper, secret=secret)

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        # The library's own answer would quote the input.
        places = [{"at": ".".join(str(part) for part in e["loc"]), "type": e["type"]} for e in error.errors()]
        return JSONResponse({"error": "invalid_request", "places": places[:20]}, status_code=422)

    @app.post("/score")
    async def score(request: ScoreRequest) -> JSONResponse:
        if scorer.waiting >= _MAX_WAITING:
            return _error(503, "busy")
        try:
            rewards = await scorer.score(request.subject.value(), request.candidates)
        except Exception as error:  # noqa: BLE001 - its text may quote a prompt, so only its type may be logged
            _LOG.error("scoring failed: %s", type(error).__name__)
            return _error(500, "scoring_failed")
        return JSONResponse({"rewards": rewards, "model": model})

    @app.get("/health")
    async def health() -> JSONResponse:
        try:
            rewards = await scorer.score(*_CANARY)
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.error("the canary failed: %s", type(error).__name__)
            return _error(503, "canary_failed")
        moved = max(abs(a - b) for a, b in zip(rewards, scorer.canary, strict=True))
        if moved > _CANARY_TOLERANCE:
            return _error(503, "canary_moved")
        return JSONResponse({"status": "ok", "model": model})

    @app.get("/ready")
    async def ready() -> JSONResponse:
        return JSONResponse({"status": "ready"}) if scorer.canary else _error(503, "starting")

    @app.get("/profile")
    async def profile() -> JSONResponse:
        return JSONResponse(
            {
                "reward_max": backend.reward_max,
                "sensitivity": backend.sensitivity,
                "facts": dict(backend.public_facts()),
            }
        )

    return app


class _Scorer:
    """One thread that scores whole batches, one after another, and bounds what comes out."""

    def __init__(self, backend: RewardBackend) -> None:
        self._backend = backend
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")
        self.waiting = 0
        self.canary: list[float] = []

    async def score(self, subject: Subject, candidates: Sequence[str]) -> list[float]:
        self.waiting += 1
        try:
            rewards = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._backend.score, subject, list(candidates)
            )
        finally:
            self.waiting -= 1
        if len(rewards) != len(candidates):
            raise RuntimeError("the backend gave another number of rewards than of candidates")
        top = self._backend.reward_max
        return [min(max(r, 0.0), top) if math.isfinite(r) else 0.0 for r in rewards]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Doorkeeper:
    """Refuses, before anything is parsed: a wrong secret (401), another type than JSON (415), a large body (413)."""

    def __init__(self, app: App, secret: str) -> None:
        self._app = app
        self._expected = f"Bearer {secret}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
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
