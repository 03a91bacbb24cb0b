"""Pool files (`planning.pool_lines`) with a true reward.

    {"prompt_id": …, "responses": [{"proxy_reward": 0.37, "is_correct": 1}, …]}

The true reward of a response is `gold`, a number in [0, 1], where it has one, else `is_correct`; one that was not
scored needs none. A prompt without any reward is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reticent.accounting.errors import AccountingError
from reticent.accounting.planning.laws import Floats
from reticent.accounting.planning.pool_lines import Refusal, read_lines

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
    refuse = partial(PoolFileError, name)
    for line in read_lines(path, reward_field, refuse):
        truth = np.array([_truth(line.number, response, refuse) for response in line.scored], dtype=np.float64)
        raw = line.rewards(reward_field, refuse)
        unscored += line.left_out
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
        raise refuse(f"no response has a number as {reward_field!r}")
    return Pool(name, tuple(rewards), tuple(truths), unscored, not_finite, at_ends / finite if finite else 0.0)


def _truth(number: int, response: dict[str, Any], refuse: Refusal) -> float:
    gold = response.get("gold")
    if gold is not None:
        if isinstance(gold, bool) or not isinstance(gold, int | float) or not 0.0 <= gold <= 1.0:
            raise refuse(f"line {number}: 'gold' must be a number in [0, 1], or left out")
        return float(gold)
    correct = response.get("is_correct")
    if correct not in (0, 1):
        raise refuse(f"line {number}: a response needs 'gold' in [0, 1], or 'is_correct' as 0 or 1")
    return float(correct)
