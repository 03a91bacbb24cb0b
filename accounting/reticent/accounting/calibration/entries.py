"""What a transcript is made of, and why something does not belong into it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from reticent.accounting.calibration.events import RoundEvent
from reticent.accounting.calibration.release import Release
from reticent.accounting.errors import AccountingError
from reticent.accounting.fingerprint import sha256_hex

__all__ = ["Entry", "Notice", "ReleaseRefusedError", "RoundError", "entry_digest", "notice_digest"]


class ReleaseRefusedError(AccountingError, ValueError):
    """A release that does not belong into the transcript.

    Attributes:
        reason: "wrong_plan", "unknown_site", "wrong_round", "late", "duplicate", "wrong_slots", "wrong_noise",
            "malformed" or "wrong_time".
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class RoundError(AccountingError, ValueError):
    """A round that cannot be opened or closed now.

    Attributes:
        reason: "plain", "is_open", "none_left", "not_open", "too_early" or "wrong_time".
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Entry:
    """One accepted release.

    Attributes:
        release: as the site sent it.
        received_at: when it was accepted, UTC.
        digest: SHA-256 over the digest before it, the release and the time.
    """

    release: Release
    received_at: datetime
    digest: str

    def to_json(self) -> dict[str, object]:
        """The entry as JSON values."""
        return {
            "release": self.release.to_json(),
            "received_at": self.received_at.isoformat(),
            "digest": self.digest,
        }


@dataclass(frozen=True)
class Notice:
    """A round that was opened or closed.

    Attributes:
        event: what happened.
        received_at: when, UTC.
        digest: SHA-256 over the digest before it, the event and the time.
    """

    event: RoundEvent
    received_at: datetime
    digest: str

    def to_json(self) -> dict[str, object]:
        """The notice as JSON values."""
        return {**self.event.to_json(), "received_at": self.received_at.isoformat(), "digest": self.digest}


def entry_digest(previous: str, release: Release, time: datetime) -> str:
    """Digest of an entry: over the one before it, the release and the time."""
    return sha256_hex({"previous": previous, "release": release.to_json(), "received_at": time.isoformat()})


def notice_digest(previous: str, event: RoundEvent, time: datetime) -> str:
    """Digest of a notice: over the one before it, the event and the time."""
    return sha256_hex({"previous": previous, "event": event.to_json(), "received_at": time.isoformat()})
