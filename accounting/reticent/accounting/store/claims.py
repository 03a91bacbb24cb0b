"""Idempotency keys: who may take one, and what becomes of whoever comes again."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from reticent.accounting.ledger import ClaimRequest, Reservation
from reticent.accounting.ledger_errors import AnswerLost, AnswerPending, InvalidArgument, KeyReused, LedgerDamaged
from reticent.accounting.store import checks
from reticent.accounting.store.rows import Claim

__all__ = ["WantedClaim", "checked_claim", "checked_digest", "claim_id_of", "recall"]

_MAX_KEEP_SECONDS = 32 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A claim as it was asked for, checked: what `Claim` keeps of it."""

    claim_id: str
    request_digest: str
    keep_us: int


def claim_id_of(key: object) -> str:
    """SHA-256 of the key; ``InvalidArgument`` unless it is 1 to 512 printable ASCII characters."""
    if not isinstance(key, str) or re.fullmatch(r"[ -~]{1,512}", key) is None:
        raise InvalidArgument("key", "1 to 512 printable ASCII characters")
    return hashlib.sha256(key.encode("ascii")).hexdigest()


def checked_digest(digest: object) -> str:
    """The digest itself, if it can be one."""
    if not isinstance(digest, str) or re.fullmatch(r"[0-9a-f]{64}", digest) is None:
        raise InvalidArgument("request_digest", "64 lower-case hexadecimal digits")
    return digest


def checked_claim(request: ClaimRequest) -> WantedClaim:
    """The claim, or ``InvalidArgument``."""
    if not isinstance(request, ClaimRequest):
        raise InvalidArgument("claim", "a ClaimRequest")
    return WantedClaim(
        claim_id_of(request.key),
        checked_digest(request.request_digest),
        checks.microseconds("keep_seconds", request.keep_seconds, _MAX_KEEP_SECONDS),
    )


def recall(claim: Claim, held: Reservation | None, request_digest: str, now_us: int) -> bytes | None:
    """The recorded answer for a request with this digest, or None if the key is free again.

    Args:
        claim: what the key is in use for.
        held: the claim's reservation, as it is now; None if it is not there.
        request_digest: of the request that came now.
        now_us: the time.

    Raises:
        KeyReused: it is in use for a request with another body.
        AnswerPending: the reservation is open.
        AnswerLost: it is closed, not for nothing, and there is no answer.
        LedgerDamaged: there is no reservation.
    """
    if held is None:
        raise LedgerDamaged(f"a claim's reservation {claim.reservation_id!r} is not there")
    if held.state == "released" or (held.state != "open" and claim.expires_us <= now_us):
        return None
    if claim.request_digest != request_digest:
        raise KeyReused(claim.reservation_id)
    if held.state == "open":
        raise AnswerPending(claim.reservation_id)
    if held.state == "forfeited" or claim.answer is None:
        raise AnswerLost(claim.reservation_id)
    return claim.answer
