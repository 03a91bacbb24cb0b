"""The worker's HTTP application: a thin, closed shell around one backend.

| route | answer |
|---|---|
| `POST /score` | `{"rewards": [...], "model": ...}`; 503 where the batch was not started and never will be |
| `GET /health` | 200 with the model's digest when a canary scores as it did at the start, else 503; no reward in it; \
one canary answers everybody for some seconds |
| `GET /ready` | 200 once the backend stands and the canary has been scored |
| `GET /profile` | the backend's public facts, R and Δ among them |

Every route wants the shared secret. Nothing that comes in or goes out is logged; an error's text names its place and
kind only.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from .batches import CANARY_SECONDS, Canary, ScoringQueue
from .errors import BatchNotStarted
from .ports import RewardBackend
from .protocol import MAX_BODY_BYTES, MAX_PATIENCE, PATIENCE_HEADER, ScoreRequest, model_digest

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
    queue = ScoringQueue(backend)
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

    @app.post("/score")
    async def score(request: Request, wanted: ScoreRequest, patience: _Patience = _DEFAULT_PATIENCE) -> JSONResponse:
        gone = asyncio.create_task(_until_gone(request.receive))
        try:
            rewards = await queue.score(wanted.subject.value(), wanted.candidates, patience=patience, gone=gone)
        except BatchNotStarted:
            return _error(503, "busy")
        except Exception as error:  # noqa: BLE001 - its text may quote a prompt, so only its type may be logged
            _LOG.error("scoring failed: %s", type(error).__name__)
            return _error(500, "scoring_failed")
        finally:
            gone.cancel()
        return JSONResponse({"rewards": rewards, "model": model})

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

    return app


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
