"""Structured logs: one JSON object a line on standard error, with fields from a fixed list.

What is not on the list cannot be logged as a field, and messages are constant texts with public values, so that no
prompt, answer, key or reward gets into a log by accident.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

__all__ = ["FIELDS", "JsonLines", "configure_logging"]

FIELDS = (
    "request_id",
    "tenant",
    "rule",
    "outcome",
    "gate",
    "charge_nats",
    "halting_time",
    "seconds",
)
"""The extra fields that a line may have."""

_LOGGER = "reticent"


class JsonLines(logging.Formatter):
    """Formats a record as JSON. Of an exception only the type is kept: its text may quote what a client sent."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info is not None and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=False)


def configure_logging(level: int = logging.INFO) -> None:
    """Send this project's log lines to standard error; a second call changes nothing."""
    logger = logging.getLogger(_LOGGER)
    if any(isinstance(handler.formatter, JsonLines) for handler in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
