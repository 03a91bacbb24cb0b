"""The verifier service that an `external` score asks, over HTTP."""

from __future__ import annotations

import logging
import math

import httpx

from reticent.rewards import Subject

__all__ = ["HttpVerifier"]

log = logging.getLogger(__name__)
_MOST_BYTES = 65_536


class HttpVerifier:
    """`POST url {"question", "evidence", "answer"}`, answered by `{"score": number}`.

    It is asked once an answer, and never again after a failure. What cannot be used gives no score, and the gate
    abstains: a timeout, another status than 200, more than 64 KiB, no number.

    Args:
        url: of the service, on this machine or in the same trust boundary (it sees the evidence and answers that may
            yet be withheld).
        timeout: seconds for all.
    """

    def __init__(self, url: str, timeout: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url
        self._client = httpx.AsyncClient(timeout=timeout, transport=transport, trust_env=False)

    async def score(self, subject: Subject, answer: str) -> float | None:
        """The verifier's number as it sent it, or None."""
        body = {"question": subject.question, "evidence": list(subject.evidence), "answer": answer}
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    log.warning("the verifier answered with status %d", response.status_code)
                    return None
                read = b""
                async for piece in response.aiter_bytes():
                    read += piece
                    if len(read) > _MOST_BYTES:
                        log.warning("the verifier's answer is too long")
                        return None
            value = httpx.Response(200, content=read).json()
        except (httpx.HTTPError, ValueError) as error:
            # Its text may repeat what was sent, so only its type is logged.
            log.warning("the verifier gave no number: %s", type(error).__name__)
            return None
        number = value.get("score") if isinstance(value, dict) else None
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            log.warning("the verifier gave no number")
            return None
        return float(number)

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()
