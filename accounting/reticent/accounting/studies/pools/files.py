"""Pool files with a true reward: one JSON object a line, plain or gzipped.

    {"prompt_id": …, "responses": [{"proxy_reward": 0.37, "is_correct": 1}, …]}

The true reward of a response is `gold`, a number in [0, 1], where it has one, else `is_correct`. A response whose
proxy reward is null or missing was not scored and is left out, and so is a prompt without any reward.
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

from reticent.accounting.errors import AccountingError
from reticent.accounting.planning.laws import Floats

__all__ = ["Pool", "PoolFileError", "read_pool"]


class PoolFileError(AccountingError, ValueError):
    """The pool file `path` cannot be used; `reason` in words."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"pool {path}: {reason}")


@dataclass(frozen=True, eq=False)
class Pool:
    """Scored answers of many prompts.

    Attributes:
        name: the file.
        rewards, truths: for each prompt its answers' proxy rewards in [0, R] and true rewards in [0, 1].
        unscored: responses left out because they have no proxy reward.
        not_finite: proxy rewards that were NaN or infinite, and became 0.
        bounded: share of the finite proxy rewards that the bound moved onto an end, 0 or R.
    """

    name: str
    rewards: tuple[Floats, ...]
    truths: tuple[Floats, ...]
    unscored: int = 0
    not_finite: int = 0
    bounded: float = 0.0

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def fewest(self) -> int:
        """Answers of the prompt that has fewest."""
        return min(map(len, self.rewards))

    @property
    def most(self) -> int:
        """Answers of the prompt that has most."""
        return max(map(len, self.rewards))


def read_pool(path: Path, bound: Callable[[Floats], Floats], *, reward_field: str = "proxy_reward") -> Pool:
    """Read a pool file, line by line.

    Args:
        path: JSON lines, gzipped if the file begins so.
        bound: declared map of finite raw rewards to [0, R]. NaN and infinities become 0 (privacy.md, section 1).
        reward_field: the key of the proxy reward in a response.

    Errors: `PoolFileError` with the file and the line.
    """
    name = str(path)
    rewards: list[Floats] = []
    truths: list[Floats] = []
    unscored = not_finite = finite = at_ends = 0
    for number, line in _lines(path):
        raw, truth, left_out = _line(name, number, line, reward_field)
        unscored += left_out
        if not len(raw):
            continue
        good = np.isfinite(raw)
        moved = np.zeros_like(raw)
        moved[good] = bound(raw[good])
        not_finite += int(np.sum(~good))
        finite += int(np.sum(good))
        at_ends += int(np.sum((moved[good] <= 0.0) | (moved[good] >= 1.0)))
        rewards.append(moved)
        truths.append(truth)
    if not rewards:
        raise PoolFileError(name, f"no response has a number as {reward_field!r}")
    return Pool(name, tuple(rewards), tuple(truths), unscored, not_finite, at_ends / finite if finite else 0.0)


def _line(name: str, number: int, line: str, reward_field: str) -> tuple[Floats, Floats, int]:
    """(raw rewards, true rewards, responses left out) of one line."""
    try:
        row = json.loads(line)
    except ValueError:
        raise PoolFileError(name, f"line {number} is not JSON") from None
    responses = row.get("responses") if isinstance(row, dict) else None
    if not isinstance(responses, list) or not all(isinstance(response, dict) for response in responses):
        raise PoolFileError(name, f'line {number} has no list "responses" of objects')
    kept = [response for response in responses if response.get(reward_field) is not None]
    raw = [response[reward_field] for response in kept]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in raw):
        raise PoolFileError(name, f"line {number}: {reward_field!r} must be a number or null")
    truth = [_truth(name, number, response) for response in kept]
    try:
        return np.array(raw, dtype=np.float64), np.array(truth, dtype=np.float64), len(responses) - len(kept)
    except OverflowError:
        raise PoolFileError(name, f"line {number}: {reward_field!r} is too large a number") from None


def _truth(name: str, number: int, response: dict[str, Any]) -> float:
    gold = response.get("gold")
    if gold is not None:
        if isinstance(gold, bool) or not isinstance(gold, int | float) or not 0.0 <= gold <= 1.0:
            raise PoolFileError(name, f"line {number}: 'gold' must be a number in [0, 1], or left out")
        return float(gold)
    correct = response.get("is_correct")
    if correct not in (0, 1):
        raise PoolFileError(name, f"line {number}: a response needs 'gold' in [0, 1], or 'is_correct' as 0 or 1")
    return float(correct)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, zlib.error):
        raise PoolFileError(str(path), "is neither text nor whole gzipped text") from None
    except OSError as error:
        raise PoolFileError(str(path), str(error.strerror)) from None
