"""What every HTTP surface of ours does: read a body within bounds, and let no exception's text out."""

from __future__ import annotations

import logging

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reticent.plugin.errors import ApiError, BadRequest, BodyTooLarge, envelope

__all__ = ["LastResort", "as_api_error", "read_body"]

log = logging.getLogger(__name__)


async def read_body(request: Request, limit: int, what: str = "The request body") -> bytes:
    """The body, refused as soon as it is known to be too large; `what` is how refusals call it."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise BadRequest(f"{what} must be sent as application/json.")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(f"{what} may have at most {limit} bytes.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise BodyTooLarge(f"{what} may have at most {limit} bytes.")
    return bytes(body)


def as_api_error(error: Exception) -> ApiError:
    """The error itself, or a bare one: any other exception's text could carry anything, so only its type is logged."""
    if isinstance(error, ApiError):
        return error
    log.error("a request failed: %s", type(error).__name__)
    return ApiError("The server had an error while processing your request.")


class LastResort:
    """Answers what no handler answered. An exception that left the application would be logged with all its text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            log.info("a client went away")
        except Exception as error:
            if scope["type"] != "http":
                raise
            response = JSONResponse(envelope(as_api_error(error)), status_code=500)
            if not started:
                await response(scope, receive, send)
