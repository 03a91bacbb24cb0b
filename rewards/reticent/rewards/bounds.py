"""Bounds on rewards: every raw reward becomes a finite number in [0, R] before anything else sees it.

The rule does not look at D: its constants are declared in the configuration, never learned from traffic. NaN and both
infinities become 0 under either bound, because a broken reward must not be the best one. If two data sets give raw
rewards that differ by at most d, the bounded ones differ by at most `lipschitz` * d, and never by more than R; a raw
reward that is finite under one data set and NaN under another may differ by R, so a certified sensitivity must come
from a reward model whose raw rewards are always finite (the certified head's are).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

__all__ = ["ClipBound", "RewardBound", "SigmoidBound", "bound_from_dict", "parse_bound", "sigmoid"]


class RewardBound(Protocol):
    """A fixed map from raw rewards to [0, `reward_max`]."""

    @property
    def reward_max(self) -> float:
        """R, the largest bounded reward."""
        ...

    @property
    def lipschitz(self) -> float:
        """Most that the bounded reward moves for each unit that a finite raw reward moves."""
        ...

    def apply(self, raw: float) -> float:
        """The bounded reward of `raw`, in [0, R]; NaN and infinities give 0."""
        ...

    def to_dict(self) -> dict[str, object]:
        """JSON form, which `bound_from_dict` reads back."""
        ...


def sigmoid(x: float) -> float:
    """1/(1 + exp(-x)) for finite x, without overflow; in [0, 1], where far ends round to 0 or 1."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    z = math.exp(x)
    return z / (1.0 + z)


@dataclass(frozen=True)
class ClipBound:
    """`(clip(raw, low, high) - low) · R/(high - low)`.

    Raises:
        ValueError: `low >= high`, `reward_max <= 0`, or a constant that is not finite.
    """

    low: float
    high: float
    reward_max: float = 1.0

    def __post_init__(self) -> None:
        _require_finite(low=self.low, high=self.high, reward_max=self.reward_max)
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise ValueError(f"low must lie below high, at a finite distance: low={self.low}, high={self.high}")
        if self.reward_max <= 0 or not math.isfinite(self.lipschitz):
            raise ValueError(f"reward_max must be positive and its slope finite: {self.reward_max}")

    @property
    def lipschitz(self) -> float:
        return self.reward_max / (self.high - self.low)

    def apply(self, raw: float) -> float:
        if not math.isfinite(raw):
            return 0.0
        share = (min(max(raw, self.low), self.high) - self.low) / (self.high - self.low)
        return min(max(self.reward_max * share, 0.0), self.reward_max)

    def to_dict(self) -> dict[str, object]:
        return {"kind": "clip", **asdict(self)}


@dataclass(frozen=True)
class SigmoidBound:
    """`R · sigmoid((raw - center)/scale)`.

    Raises:
        ValueError: `scale <= 0`, `reward_max <= 0`, or a constant that is not finite.
    """

    center: float
    scale: float
    reward_max: float = 1.0

    def __post_init__(self) -> None:
        _require_finite(center=self.center, scale=self.scale, reward_max=self.reward_max)
        if self.scale <= 0 or self.reward_max <= 0:
            raise ValueError(f"scale and reward_max must be positive: {self.scale}, {self.reward_max}")
        if not math.isfinite(self.lipschitz):
            raise ValueError(f"scale is too small: {self.scale}")

    @property
    def lipschitz(self) -> float:
        return self.reward_max / (4.0 * self.scale)

    def apply(self, raw: float) -> float:
        if not math.isfinite(raw):
            return 0.0
        x = (raw - self.center) / self.scale
        # The quotient of two finite numbers may overflow; the sigmoid's own limits are then the right values.
        return self.reward_max * (sigmoid(x) if math.isfinite(x) else float(x > 0))

    def to_dict(self) -> dict[str, object]:
        return {"kind": "sigmoid", **asdict(self)}


_KINDS: dict[str, tuple[type[ClipBound] | type[SigmoidBound], frozenset[str]]] = {
    "clip": (ClipBound, frozenset({"low", "high", "reward_max"})),
    "sigmoid": (SigmoidBound, frozenset({"center", "scale", "reward_max"})),
}


def bound_from_dict(value: Mapping[str, object]) -> ClipBound | SigmoidBound:
    """The bound of a JSON object `{"kind": "clip" | "sigmoid", ...}`, as `to_dict` writes it.

    Raises:
        ValueError: an unknown kind, a missing, unknown or non-numeric field, or constants out of range.
    """
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind of bound must be one of {', '.join(_KINDS)}: {kind!r}")
    cls, names = _KINDS[kind]
    fields = {name: number for name, number in value.items() if name != "kind"}
    if fields.keys() - names or names - {"reward_max"} - fields.keys():
        raise ValueError(f"a {kind} bound has the fields {', '.join(sorted(names))}, not {', '.join(sorted(fields))}")
    numbers: dict[str, float] = {}
    for name, number in fields.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"{name} must be a number: {number!r}")
        numbers[name] = float(number)
    return cls(**numbers)


def parse_bound(text: str, reward_max: float = 1.0) -> ClipBound | SigmoidBound:
    """The bound that `sigmoid:CENTER,SCALE` or `clip:LOW,HIGH` names, with R = `reward_max`.

    Raises:
        ValueError: another form, or constants out of range.
    """
    kind, _, rest = text.partition(":")
    parts = rest.split(",")
    if kind not in _KINDS or len(parts) != 2:
        raise ValueError(f"a bound is sigmoid:CENTER,SCALE or clip:LOW,HIGH, not {text!r}")
    try:
        first, second = (float(part) for part in parts)
    except ValueError:
        raise ValueError(f"a bound has two numbers: {text!r}") from None
    return _KINDS[kind][0](first, second, reward_max)


def _require_finite(**constants: float) -> None:
    for name, value in constants.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite: {value}")
