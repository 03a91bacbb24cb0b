"""Lines of pool files: rewards of many answers to many prompts, one JSON object a line, plain or gzipped.

    {"prompt_id": …, "responses": [{"proxy_reward": 0.37, …}, …]}

A response whose reward is null or missing was not scored and is left out. What else a response has is its reader's.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reticent.accounting.planning.laws import Floats

__all__ = ["PoolLine", "Refusal", "read_lines"]

Refusal = Callable[[str], Exception]
"""From a reason in words to the reader's error about its file."""


@dataclass(frozen=True)
class PoolLine:
    """Attributes:
    number: of the line, from 1.
    scored: the responses with a reward, none or more.
    left_out: how many have none.
    """

    number: int
    scored: list[dict[str, Any]]
    left_out: int

    def rewards(self, reward_field: str, refuse: Refusal) -> Floats:
        """The scored responses' rewards; may be NaN or infinite."""
        try:
            return np.array([response[reward_field] for response in self.scored], dtype=np.float64)
        except OverflowError:
            raise refuse(f"line {self.number}: {reward_field!r} is too large a number") from None


def read_lines(path: Path, reward_field: str, refuse: Refusal, *, missing: str | None = None) -> Iterator[PoolLine]:
    """The lines that are not blank, in order.

    Args:
        path: JSON lines, gzipped if the file begins so.
        reward_field: the key of the reward in a response.
        refuse: makes the error that is raised.
        missing: its reason where there is no such file; None for the system's.
    """
    for number, line in _lines(path, refuse, missing):
        try:
            row = json.loads(line)
        except ValueError:
            raise refuse(f"line {number} is not JSON") from None
        responses = row.get("responses") if isinstance(row, dict) else None
        if not isinstance(responses, list) or not all(isinstance(response, dict) for response in responses):
            raise refuse(f'line {number} has no list "responses" of objects')
        scored = [response for response in responses if response.get(reward_field) is not None]
        values = [response[reward_field] for response in scored]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            raise refuse(f"line {number}: {reward_field!r} must be a number or null")
        yield PoolLine(number, scored, len(responses) - len(scored))


def _lines(path: Path, refuse: Refusal, missing: str | None) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, zlib.error):
        raise refuse("is neither text nor whole gzipped text") from None
    except OSError as error:
        known = missing if isinstance(error, FileNotFoundError) else None
        raise refuse(known or str(error.strerror)) from None
