"""What keeps the auditor from reading a ledger."""

from __future__ import annotations

__all__ = ["UnreadableLedger"]


class UnreadableLedger(Exception):  # noqa: N818  -- a finding, not a failure
    """The file or the database cannot be reached or read; says why, without a password."""
