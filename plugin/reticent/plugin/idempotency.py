"""Idempotency keys: a request that is sent again gets the answer that was paid for, and no second draw.

The ledger decides (`Ledger.reserve` with a claim); here is what a key is on the wire, and what is recorded under it.
What is recorded is the whole completion but for the balances, which are read anew when it is handed out again.
Another user's request with the same key has another body, so nobody is handed an answer that their scopes did not
pay for. A base-model answer is not recorded: no reward was read for it, and a new one is as free.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, cast

from reticent.accounting.ledger import MAX_ANSWER, ClaimRequest, Statement
from reticent.plugin.errors import BadRequest
from reticent.plugin.handler import Answer
from reticent.plugin.response import completion
from reticent.plugin.tenants import Caller
from reticent.plugin.views import remaining

__all__ = ["HEADER", "REPLAYED_HEADER", "claim_of", "record", "replay"]

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
_KEY = re.compile(r"[ -~]{1,255}")


def claim_of(key: str | None, caller: Caller, body: bytes, keep_seconds: float) -> ClaimRequest | None:
    """The claim that a request makes, None without a key.

    Args:
        key: the header, if there is one.
        caller: whose key it is: tenants do not share keys.
        body: the request's body, byte by byte: the same request again is the same bytes.
        keep_seconds: how long the answer is kept.

    Raises:
        BadRequest: the key is empty, longer than 255 characters, or not printable ASCII.
    """
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise BadRequest(f"{HEADER} must be 1 to 255 printable ASCII characters.", code="invalid_idempotency_key")
    return ClaimRequest(f"{caller.tenant_scope} {key}", hashlib.sha256(body).hexdigest(), keep_seconds)


def record(answer: Answer, identifier: str, model: str) -> bytes | None:
    """What is kept of an answer that is about to be settled; None where it is longer than the ledger keeps."""
    recording = json.dumps(completion(answer, identifier=identifier, model=model)).encode()
    return recording if len(recording) <= MAX_ANSWER else None


def replay(recording: bytes, statements: Sequence[Statement]) -> dict[str, Any]:
    """The completion again, with the balances of now. Its `charge` is what it cost the first time."""
    document = cast(dict[str, Any], json.loads(recording))
    document["reticent"] |= {"remaining": remaining(statements), "replayed": True}
    return document
