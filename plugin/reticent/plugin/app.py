"""The HTTP surface, the same inside vLLM and in front of it. All other routes than `settings.ROUTES` answer 404."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from reticent.plugin.core import Core
from reticent.plugin.errors import ApiError, BadRequest, NotFound, Overloaded, Unavailable, envelope
from reticent.plugin.handler import Answer
from reticent.plugin.idempotency import HEADER, REPLAYED_HEADER, claim_of, replay
from reticent.plugin.resolve import resolve
from reticent.plugin.response import completion, stream_chunks
from reticent.plugin.standing import standings
from reticent.plugin.surface import LastResort, as_api_error, read_body
from reticent.plugin.tenants import Caller
from reticent.plugin.views import account
from reticent.plugin.wire import ChatRequest, parse_chat_request

__all__ = ["create_app"]

log = logging.getLogger(__name__)

_GRACE_SECONDS = 2.0
_KEEPALIVE_SECONDS = 3.0


def create_app(core: Core) -> FastAPI:
    """Build the application over a core that is started and closed by its owner."""
    app = FastAPI(title="reticent", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.core = core
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_middleware(LastResort)
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/reticent/budget", budget, methods=["GET"])
    app.add_api_route("/v1/reticent/scopes", scopes, methods=["GET"])
    app.add_api_route("/v1/reticent/certificate", certificate, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/ready", ready, methods=["GET"])
    app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
    return app


def _core(request: Request) -> Core:
    core: Core = request.app.state.core
    return core


def _caller(request: Request) -> Caller:
    return _core(request).tenants.authenticate(request.headers.get("authorization"))


async def chat(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    core = _core(request)
    caller = _caller(request)
    body = await read_body(request, core.settings.server.max_body_bytes)
    wanted = parse_chat_request(body, max_messages=core.settings.server.max_messages)
    claim = claim_of(request.headers.get(HEADER), caller, body, core.settings.ledger.keep_answers_seconds)
    plan = resolve(wanted, caller, core.settings, core.rules, claim)
    if claim is not None and (recording := await core.accounts.recorded(claim)) is not None:
        return _replayed(replay(recording, await core.accounts.statements(plan.scope)), wanted)
    identifier = f"chatcmpl-{uuid.uuid4().hex}"
    task = core.submit(plan, identifier)
    if not wanted.stream:
        # Shielded: if the client goes away, the task still settles.
        answer = await _outcome(task)
        return JSONResponse(completion(answer, identifier=identifier, model=wanted.model))
    # Errors that come at once (budget, worker) still get a status of their own; only then the stream begins.
    done, _ = await asyncio.wait({task}, timeout=_GRACE_SECONDS)
    if done:
        await _outcome(task)
    return StreamingResponse(_stream(task, wanted, identifier), media_type="text/event-stream")


def _replayed(document: dict[str, Any], wanted: ChatRequest) -> Response:
    headers = {REPLAYED_HEADER: "true"}
    if wanted.stream:
        chunks = stream_chunks(document, include_usage=wanted.usage_in_stream)
        return StreamingResponse(chunks, media_type="text/event-stream", headers=headers)
    return JSONResponse(document, headers=headers)


async def _stream(task: asyncio.Task[Answer], wanted: ChatRequest, identifier: str) -> AsyncIterator[str]:
    """Comments until the answer is settled, then the answer."""
    while not task.done():
        yield ": waiting\n\n"
        await asyncio.wait({task}, timeout=_KEEPALIVE_SECONDS)
    try:
        answer = await _outcome(task)
    except Exception as error:  # noqa: BLE001 - the status is sent already, so any failure becomes an event
        yield f"data: {json.dumps(envelope(as_api_error(error)))}\n\n"
        return
    whole = completion(answer, identifier=identifier, model=wanted.model)
    for chunk in stream_chunks(whole, include_usage=wanted.usage_in_stream):
        yield chunk


async def _outcome(task: asyncio.Task[Answer]) -> Answer:
    """The answer. The task is shielded: whoever waits for it may go away, and it settles all the same."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise Unavailable("The server is stopping.", retry=False) from None
        raise


async def models(request: Request) -> dict[str, Any]:
    """`GET /v1/models`: the one model."""
    core = _core(request)
    _caller(request)
    card = {"id": core.settings.model.name, "object": "model", "created": core.started_at, "owned_by": "reticent"}
    return {"object": "list", "data": [card]}


async def budget(request: Request, user: str | None = None) -> dict[str, Any]:
    """`GET /v1/reticent/budget?user=…`: the caller's scopes, in nats at the data set's order."""
    core = _core(request)
    statements = await core.accounts.caller_statements(_caller(request), user)
    return {
        "object": "reticent.budget",
        "order": core.settings.dataset.order,
        "scopes": [account(statement, operator=False) for statement in statements],
    }


async def scopes(request: Request) -> dict[str, Any]:
    """`GET /v1/reticent/scopes`: every account, exactly; for the operator's key."""
    core = _core(request)
    core.tenants.require_operator(request.headers.get("authorization"))
    found = [account(statement, operator=True) for statement in await core.accounts.all_statements()]
    return {"object": "reticent.scopes", "order": core.settings.dataset.order, "scopes": found}


async def certificate(request: Request) -> dict[str, Any]:
    """`GET /v1/reticent/certificate`: what each certificate declares, and whether it holds now for this caller."""
    core = _core(request)
    # Beside the event loop: it may have to build the rule that a certificate names.
    return {"object": "list", "data": await asyncio.to_thread(standings, core, _caller(request))}


async def health() -> dict[str, str]:
    """`GET /health`: the process answers."""
    return {"status": "ok"}


async def ready(request: Request) -> dict[str, str]:
    """`GET /ready`: engine, worker and ledger answer, so a request could be served now; else a 503 names the part."""
    await _core(request).check()
    return {"status": "ready", "server": "reticent"}


async def metrics(request: Request) -> Response:
    """`GET /metrics`, in Prometheus' text format; for the operator's key, unless the configuration opens it."""
    if _core(request).settings.server.metrics == "operator":
        _core(request).tenants.require_operator(request.headers.get("authorization"))
    return Response(generate_latest(_core(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _on_api_error(_: Request, error: Exception) -> Response:
    known = as_api_error(error)
    headers: dict[str, str] = {}
    if known.retry_after is not None:
        headers["Retry-After"] = str(known.retry_after)
    if not known.retry:
        # Clients repeat a 503 by themselves; this one has cost its worst case, and would cost it again.
        headers["x-should-retry"] = "false"
    if isinstance(known, Overloaded | Unavailable):
        log.warning("%s: %s", known.code, known.message)
    return JSONResponse(envelope(known), status_code=known.status, headers=headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return await _on_api_error(
            request, NotFound(f"Unknown request URL: {request.method} {request.url.path[:200]}.")
        )
    known = BadRequest("This method is not allowed here." if status == 405 else "The request is not valid.")
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(envelope(known), status_code=status, headers=headers)
