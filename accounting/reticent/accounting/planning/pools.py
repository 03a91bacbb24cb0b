"""Pool files: rewards of many answers to many prompts, one JSON object a line, plain or gzipped.

    {"prompt_id": …, "responses": [{"proxy_reward": 0.37, …}, …]}

A response whose reward is null or missing was not scored and is left out, and so is a prompt without any reward.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reticent.accounting.errors import require_positive
from reticent.accounting.planning.laws import Floats, RewardLawError

__all__ = ["PoolLaw", "load_pool"]

_MOST_PROMPTS = 500


@dataclass(frozen=True, eq=False)
class PoolLaw:
    """Rewards drawn with replacement from each prompt's own responses.

    Attributes:
        rewards: for each prompt its rewards in [0, R].
        prompts_read: prompts with rewards in the file; `prompts` of them are used.
        clipped: share of the used rewards that lay outside the bounds.
    """

    text: str
    rewards: tuple[Floats, ...]
    prompts_read: int
    clipped: float
    _nodes: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, repr=False)

    @property
    def prompts(self) -> int:
        return len(self.rewards)

    def draw(self, prompt: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        own = self.rewards[prompt]
        return own[rng.integers(0, len(own), shape)]

    def nodes(self, prompt: int) -> tuple[Floats, Floats]:
        if prompt not in self._nodes:
            values, counts = np.unique(self.rewards[prompt], return_counts=True)
            self._nodes[prompt] = (values, counts / counts.sum())
        return self._nodes[prompt]


def load_pool(
    path: Path,
    reward_max: float,
    bounds: tuple[float, float] | None = None,
    *,
    reward_field: str = "proxy_reward",
    most_prompts: int = _MOST_PROMPTS,
    seed: int = 0,
) -> PoolLaw:
    """Read a pool file.

    Args:
        path: JSON lines, gzipped if the file begins so.
        reward_max: R > 0.
        bounds: raw rewards LOW < HIGH that become 0 and R, linear between, clipped outside; without them raw rewards
            are only clipped to [0, R]. NaN and infinities become 0 (privacy.md, section 1).
        reward_field: the key of the reward in a response.
        most_prompts: of a longer file, that many prompts, drawn by `seed`.

    Errors: `RewardLawError` with the file and the line.
    """
    R = require_positive("reward_max", reward_max)
    low, high = bounds if bounds is not None else (0.0, R)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise RewardLawError(str(path), f"the bounds must be finite and in order, not {low:g}, {high:g}")
    raw = [values for values in _rewards(path, reward_field) if len(values)]
    if not raw:
        raise RewardLawError(str(path), f"no response has a number as {reward_field!r}")
    read = len(raw)
    if read > most_prompts:
        kept = np.random.default_rng(seed).choice(read, most_prompts, replace=False)
        raw = [raw[i] for i in np.sort(kept)]
    outside = sum(int(np.sum(~((values >= low) & (values <= high)))) for values in raw)
    return PoolLaw(
        text=str(path),
        rewards=tuple(_bounded(values, low, high, R) for values in raw),
        prompts_read=read,
        clipped=outside / sum(len(values) for values in raw),
    )


def _bounded(values: Floats, low: float, high: float, R: float) -> Floats:
    finite = np.isfinite(values)
    share = (np.clip(np.where(finite, values, low), low, high) - low) / (high - low)
    return np.where(finite, np.clip(R * share, 0.0, R), 0.0)


def _rewards(path: Path, reward_field: str) -> Iterator[Floats]:
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except ValueError:
            raise RewardLawError(str(path), f"line {number} is not JSON") from None
        responses = row.get("responses") if isinstance(row, dict) else None
        if not isinstance(responses, list) or not all(isinstance(response, dict) for response in responses):
            raise RewardLawError(str(path), f'line {number} has no list "responses" of objects')
        values: list[Any] = [r[reward_field] for r in responses if r.get(reward_field) is not None]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            raise RewardLawError(str(path), f"line {number}: {reward_field!r} must be a number or null")
        try:
            yield np.array(values, dtype=np.float64)
        except OverflowError:
            raise RewardLawError(str(path), f"line {number}: {reward_field!r} is too large a number") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, zlib.error):
        raise RewardLawError(str(path), "is neither text nor whole gzipped text") from None
    except OSError as error:
        what = "there is no such file, and it is no beta:a,b, uniform or point:v"
        raise RewardLawError(str(path), what if isinstance(error, FileNotFoundError) else str(error.strerror)) from None
