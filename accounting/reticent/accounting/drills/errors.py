"""How a drill itself can break down. What it finds out about the ledger is in its report, not in an error."""

from __future__ import annotations

__all__ = ["BenchFailed", "ChaosFailed", "DrillFailed", "PostgresUnavailable"]


class DrillFailed(RuntimeError):  # noqa: N818  -- states what happened
    """Base: the drill could not be carried through; the text says why."""


class BenchFailed(DrillFailed):
    """A replica ended early; the text is what it said."""


class ChaosFailed(DrillFailed):
    """A worker ended by itself, or did not start; the text is what it said."""


class PostgresUnavailable(DrillFailed):
    """No temporary PostgreSQL server can be started here."""
