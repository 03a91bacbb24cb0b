"""An append-only log of what a calibration server refused: who, when, why. It never holds what was sent."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime
from pathlib import Path

from reticent.accounting.fingerprint import canonical_json

__all__ = ["RefusalLog"]

_KEPT_PER_SITE = 10_000
_DETAIL = 200


class RefusalLog:
    """One JSON object a line. A site that is refused without end cannot fill the disk: its lines are limited.

    Args:
        path: appended to; made when it does not exist.
        kept_per_site: lines that one site may cause in one run of the server.
    """

    def __init__(self, path: Path, kept_per_site: int = _KEPT_PER_SITE) -> None:
        self._path = path
        self._kept = kept_per_site
        self._counts: Counter[str] = Counter()

    def record(self, site: str, reason: str, detail: str, body_sha256: str, at: datetime) -> None:
        """Add one line, durably.

        Args:
            site: as authenticated, not as the body says.
            detail: cut to 200 characters.
            body_sha256: of the bytes that were sent, so that a dispute can be settled without keeping them.

        Raises:
            OSError: the log cannot be written.
        """
        self._counts[site] += 1
        if self._counts[site] > self._kept:
            return
        line = {"at": at.isoformat(), "site": site, "reason": reason, "detail": detail[:_DETAIL], "sha256": body_sha256}
        if self._counts[site] == self._kept:
            line["last"] = "no more lines for this site until the server starts again"
        with self._path.open("ab") as file:
            file.write((canonical_json(line) + "\n").encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
