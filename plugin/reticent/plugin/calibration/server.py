"""The calibration server's HTTP surface. All other routes answer 404.

| route | answer |
|---|---|
| `GET /v1/calibration/plan` | the registered plan and its digest |
| `GET /v1/calibration/round` | which round is open, until when, what it asks, and whether the caller has answered |
| `POST /v1/calibration/releases` | 200 with the entry's digest once the release is on the disk, for \
the same release always the same; 409 with the reason where it is refused |
| `GET /v1/calibration/transcript` | the transcript: noised releases, and the rounds |
| `GET /health` | the process answers; needs no key |

Every other route wants a site's key. Who sent a release is decided by the key, never by what it says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from reticent.accounting.calibration.rounds import Rounds, RoundStatus
from reticent.accounting.calibration.transcript import ReleaseRefusedError
from reticent.accounting.fingerprint import canonical_json
from reticent.plugin.calibration.keys import SiteKeys
from reticent.plugin.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
    envelope,
)
from reticent.plugin.surface import LastResort, as_api_error, read_body

__all__ = ["create_calibration_app"]

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
_TICK_SECONDS = 1.0


class _Refused(Conflict):
    """A release that does not belong into the transcript now."""

    code = "release_refused"


def create_calibration_app(rounds: Rounds, keys: SiteKeys) -> FastAPI:
    """The application around `rounds`, which its owner has entered and leaves afterwards."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_keep_time(rounds))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    app = FastAPI(
        title="reticent calibration",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.rounds, app.state.keys = rounds, keys
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_middleware(LastResort)
    app.add_api_route("/v1/calibration/plan", _plan, methods=["GET"], response_model=None)
    app.add_api_route("/v1/calibration/round", _round, methods=["GET"], response_model=None)
    app.add_api_route("/v1/calibration/releases", _release, methods=["POST"], response_model=None)
    app.add_api_route("/v1/calibration/transcript", _transcript, methods=["GET"], response_model=None)
    app.add_api_route("/health", _health, methods=["GET"], response_model=None)
    return app


async def _keep_time(rounds: Rounds) -> None:
    """Let deadlines pass also when nobody calls."""
    while True:
        try:
            await run_in_threadpool(rounds.tick)
        except OSError as error:
            log.error("the transcript cannot be written: %s", error.strerror)
        await asyncio.sleep(_TICK_SECONDS)


def _parts(request: Request) -> tuple[Rounds, str]:
    site = request.app.state.keys.authenticate(request.headers.get("authorization"))
    return request.app.state.rounds, site


async def _plan(request: Request) -> Response:
    rounds, _ = _parts(request)
    return JSONResponse({"plan_digest": rounds.plan.digest, "plan": rounds.plan.to_json()})


async def _round(request: Request) -> Response:
    rounds, site = _parts(request)
    status = await run_in_threadpool(_tick, rounds)
    return JSONResponse({"plan_digest": rounds.plan.digest, "site": site, **_standing(status, site)})


async def _release(request: Request) -> Response:
    rounds, site = _parts(request)
    data = await _read(request)
    try:
        entry = await run_in_threadpool(rounds.submit, site, data)
    except ReleaseRefusedError as error:
        log.warning("a release of %s was refused: %s", site, error.reason)
        raise _wire_error(error) from None
    except OSError as error:
        log.error("a release of %s could not be written: %s", site, error.strerror)
        raise Unavailable("The release could not be stored. Send it again.") from None
    return JSONResponse(
        {
            "accepted": True,
            "round": entry.release.round_number,
            "site": site,
            "received_at": entry.received_at.isoformat(),
            "digest": entry.digest,
        }
    )


async def _transcript(request: Request) -> Response:
    rounds, _ = _parts(request)
    text = await run_in_threadpool(lambda: canonical_json(rounds.transcript.to_json()))
    return Response(text, media_type="application/json")


async def _health() -> Response:
    return JSONResponse({"status": "ok"})


def _tick(rounds: Rounds) -> RoundStatus:
    try:
        return rounds.tick()
    except OSError:
        raise Unavailable("The transcript cannot be written now.") from None


def _standing(status: RoundStatus, site: str) -> dict[str, Any]:
    slots = status.asked.get(site, 0)
    return {
        "state": status.state,
        "reason": status.reason,
        "round": status.round_number,
        "closes_at": None if status.closes_at is None else status.closes_at.isoformat(),
        "asked": status.asked,
        "slots": slots,
        "answered": slots > 0 and site not in status.missing,
        "missing": list(status.missing),
        "transcript_head": status.head,
    }


def _wire_error(error: ReleaseRefusedError) -> ApiError:
    if error.reason == "malformed":
        return BadRequest(error.detail[:500], code="malformed")
    if error.reason == "wrong_site":
        return Forbidden("The key belongs to another site.", code="wrong_site")
    return _Refused(error.detail[:500], code=error.reason)


async def _read(request: Request) -> bytes:
    try:
        return await read_body(request, MAX_BODY_BYTES, "A release")
    except ClientDisconnect:
        raise BadRequest("The request was cut off.") from None


async def _on_api_error(_: Request, error: Exception) -> Response:
    known = as_api_error(error)
    return JSONResponse(envelope(known), status_code=known.status)


async def _on_http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return JSONResponse(envelope(BadRequest("This method is not allowed here.")), status_code=405)
    missing = NotFound(f"Unknown request URL: {request.method} {request.url.path[:200]}.")
    return await _on_api_error(request, missing)
