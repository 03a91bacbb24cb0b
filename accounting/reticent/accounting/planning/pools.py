"""Pool files (`pool_lines`) as reward laws. A prompt without any reward is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from reticent.accounting.errors import require_positive
from reticent.accounting.planning.laws import Floats, RewardLawError
from reticent.accounting.planning.pool_lines import read_lines

__all__ = ["PoolLaw", "load_pool"]

_MOST_PROMPTS = 500
_MISSING = "there is no such file, and it is no beta:a,b, uniform or point:v"


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
    refuse = partial(RewardLawError, str(path))
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise refuse(f"the bounds must be finite and in order, not {low:g}, {high:g}")
    lines = read_lines(path, reward_field, refuse, missing=_MISSING)
    raw = [values for line in lines if len(values := line.rewards(reward_field, refuse))]
    if not raw:
        raise refuse(f"no response has a number as {reward_field!r}")
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
