"""Reward laws: what the planner supposes about the rewards of a base model's answers.

A law is a fixed population of prompts, each asked equally often, and for each prompt the law of one reward in [0, R].
The closed laws have one prompt. A pool (`planning.pools`) has as many as its file. Nothing here protects anybody: the
draws are numpy's, seeded, for estimates only. A plan shows means over its pool; rewards that depend on private data do
not belong into a pool whose plan is shown around.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from reticent.accounting.errors import (
    AccountingError,
    InvalidQuantityError,
    require_non_negative,
    require_positive,
)

__all__ = ["BetaLaw", "Floats", "PointLaw", "RewardLaw", "RewardLawError", "parse_law"]

Floats = NDArray[np.float64]
_QUANTILES = 512


class RewardLawError(AccountingError, ValueError):
    """`text` names no reward law, or its file cannot be used; `reason` in words."""

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        self.reason = reason
        super().__init__(f"rewards {text}: {reason}")


class RewardLaw(Protocol):
    """Rewards of a population of prompts, each asked equally often. Promises nothing about the order of prompts."""

    @property
    def text(self) -> str:
        """How the law was named."""
        ...

    @property
    def prompts(self) -> int:
        """Number of prompts, at least 1."""
        ...

    def draw(self, prompt: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Independent rewards in [0, R] of answers to that prompt."""
        ...

    def nodes(self, prompt: int) -> tuple[Floats, Floats]:
        """Values and weights (summing to 1) with which means over one reward of that prompt are computed."""
        ...


@dataclass(frozen=True)
class BetaLaw:
    """R times a Beta(a, b) variable; a, b > 0. Beta(1, 1) is uniform.

    Means are computed at the midpoints of 512 equally likely intervals.
    """

    a: float
    b: float
    reward_max: float
    text: str = ""

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b), ("reward_max", self.reward_max)):
            require_positive(name, value)

    @property
    def prompts(self) -> int:
        return 1

    def draw(self, prompt: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return self.reward_max * rng.beta(self.a, self.b, shape)

    def nodes(self, prompt: int) -> tuple[Floats, Floats]:
        middle = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        values = self.reward_max * np.asarray(betaincinv(self.a, self.b, middle), dtype=np.float64)
        return values, np.full(_QUANTILES, 1.0 / _QUANTILES)


@dataclass(frozen=True)
class PointLaw:
    """Every reward is `value`, in [0, R]."""

    value: float
    reward_max: float
    text: str = ""

    def __post_init__(self) -> None:
        if require_non_negative("value", self.value) > require_positive("reward_max", self.reward_max):
            raise InvalidQuantityError("value", self.value, f"at most reward_max ({self.reward_max!r})")

    @property
    def prompts(self) -> int:
        return 1

    def draw(self, prompt: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return np.full(shape, float(self.value))

    def nodes(self, prompt: int) -> tuple[Floats, Floats]:
        return np.array([float(self.value)]), np.ones(1)


def parse_law(text: str, reward_max: float, bounds: tuple[float, float] | None = None, **pool: Any) -> RewardLaw:
    """The law that `text` names: `beta:a,b`, `uniform`, `point:v`, or the path of a pool file.

    Args:
        text: as above; `point:v` in reward units.
        reward_max: R > 0.
        bounds: of a pool only: raw rewards LOW, HIGH that become 0 and R (linear between, clipped outside).
        pool: further arguments of `planning.pools.load_pool`.

    Errors: `RewardLawError`, `InvalidQuantityError`.
    """
    kind, colon, rest = text.partition(":")
    if text == "uniform":
        law: RewardLaw = BetaLaw(1.0, 1.0, reward_max, text)
    elif kind == "beta" and colon:
        a, b = _numbers(text, rest, 2)
        law = BetaLaw(a, b, reward_max, text)
    elif kind == "point" and colon:
        (value,) = _numbers(text, rest, 1)
        law = PointLaw(value, reward_max, text)
    else:
        from reticent.accounting.planning.pools import load_pool

        return load_pool(Path(text), reward_max, bounds, **pool)
    if bounds is not None:
        raise RewardLawError(text, "bounds apply to a pool file only; a named law already lives in [0, R]")
    return law


def _numbers(text: str, rest: str, count: int) -> list[float]:
    parts = rest.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise RewardLawError(text, "is not beta:a,b (two numbers) or point:v (one number)")
    return numbers
