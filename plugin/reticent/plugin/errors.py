"""Errors that reach a client, and the one table that maps them to the wire.

What a client sees of an error never depends on a reward: no message here carries anything that was computed from one.
"""

from __future__ import annotations

from typing import Any, ClassVar

# ruff: noqa: N818  -- the names say what happened; all are ApiError.

__all__ = [
    "ApiError",
    "BadRequest",
    "BodyTooLarge",
    "BudgetRefused",
    "Conflict",
    "Forbidden",
    "ModelUnknown",
    "NotFound",
    "Overloaded",
    "PromptRefused",
    "SourceUnavailable",
    "Unauthorized",
    "Unavailable",
    "envelope",
]


class ApiError(Exception):
    """An error in the form that OpenAI clients read: `{"error": {message, type, param, code}}`.

    Args:
        message: for people.
        param: the field of the request that is wrong.
        code: for programs; each class has its own.
        retry: False where the failed request has cost its worst case, as a repetition might.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    retry_after: ClassVar[int | None] = None
    code: str = "internal_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None, *, retry: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry = retry
        if code is not None:
            self.code = code


class BadRequest(ApiError):
    """The request is malformed or asks for something that does not exist."""

    status, kind, code = 400, "invalid_request_error", "invalid_value"


class Unauthorized(ApiError):
    """No key, or one that belongs to no tenant."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(ApiError):
    """The tenant's policy does not allow this."""

    status, kind, code = 403, "permission_error", "not_allowed_by_policy"


class BudgetRefused(ApiError):
    """A privacy budget is spent and the policy is to refuse. Not retryable: lifetime budgets do not come back."""

    status, kind, code = 403, "permission_error", "privacy_budget_exhausted"


class NotFound(ApiError):
    """No such route."""

    status, kind, code = 404, "invalid_request_error", "not_found"


class ModelUnknown(ApiError):
    """No such model."""

    status, kind, code = 404, "invalid_request_error", "model_not_found"


class Conflict(ApiError):
    """The idempotency key is in use for something else, or its answer is not ready, or is lost."""

    status, kind, code = 409, "invalid_request_error", "idempotency_key_in_use"


class BodyTooLarge(ApiError):
    """The request body is larger than the server reads."""

    status, kind, code = 413, "invalid_request_error", "body_too_large"


class Overloaded(ApiError):
    """Too many requests at once."""

    status, kind, code, retry_after = 429, "rate_limit_error", "overloaded", 1


class Unavailable(ApiError):
    """A part that an answer needs (ledger, reward worker, engine) is not there now."""

    status, kind, code = 503, "server_error", "unavailable"


class SourceUnavailable(Unavailable):
    """The base model cannot be reached."""

    code = "engine_unavailable"


class PromptRefused(BadRequest):
    """The engine cannot take this prompt."""

    code = "prompt_refused"


def envelope(error: ApiError) -> dict[str, Any]:
    """The body of an error response."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}
