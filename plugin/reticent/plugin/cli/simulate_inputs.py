"""What `reticent simulate` is asked: lists of numbers, the declared bound, the pool and the question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.special import expit

from reticent.accounting.planning.laws import Floats
from reticent.accounting.studies.pools.files import Pool, read_pool
from reticent.plugin.cli.plan_inputs import bad_input
from reticent.rewards.bounds import ClipBound, parse_bound

__all__ = [
    "bound_of",
    "default_candidates",
    "numbers_of",
    "pool_of",
    "whole_numbers_of",
    "words_of",
]

_MOST_DEFAULT = 64


def bound_of(text: str | None) -> Callable[[Floats], Floats]:
    """The declared map of raw rewards to [0, 1], for arrays: the server's bounds (`rewards.bounds`) with R = 1."""
    if text is None:
        raise bad_input(
            "--bound is missing: clip:LOW,HIGH or sigmoid:CENTER,SCALE, chosen without looking at these rewards"
        )
    try:
        bound = parse_bound(text)
    except ValueError as error:
        raise bad_input(f"--bound: {error}") from None
    if isinstance(bound, ClipBound):
        low, width = bound.low, bound.high - bound.low
        return lambda raw: np.clip((np.clip(raw, bound.low, bound.high) - low) / width, 0.0, 1.0)
    center, scale = bound.center, bound.scale

    def sigmoid(raw: Floats) -> Floats:
        with np.errstate(over="ignore"):
            moved: Floats = expit((raw - center) / scale)
        return moved

    return sigmoid


def numbers_of(option: str, text: str | None) -> tuple[float, ...]:
    """`0.1,0.5` as numbers; nothing for None."""
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise bad_input(f"{option} must be numbers with commas between them, not {text!r}") from None
    return tuple(dict.fromkeys(found))


def whole_numbers_of(option: str, text: str) -> tuple[int, ...]:
    """`1,4,16` as whole numbers."""
    found = numbers_of(option, text)
    if any(number != int(number) if np.isfinite(number) else True for number in found):
        raise bad_input(f"{option} must be whole numbers with commas between them, not {text!r}")
    return tuple(int(number) for number in found)


def words_of(text: str) -> tuple[str, ...]:
    """`bon,privbon` as names; `privbon-gaussian` is `privbon_gaussian`."""
    return tuple(dict.fromkeys(part.strip().lower().replace("-", "_") for part in text.split(",")))


def default_candidates(pool: Pool, *, distinct: bool) -> tuple[int, ...]:
    """1, 2, 4, … up to 64, or to the answers of the prompt that has fewest."""
    most = min(_MOST_DEFAULT, pool.fewest) if distinct else _MOST_DEFAULT
    return tuple(2**k for k in range(most.bit_length()) if 2**k <= most)


def pool_of(path: Path, bound: Callable[[Floats], Floats], reward_field: str) -> Pool:
    """The pool; a pool of fewer than two prompts has no standard error and is refused."""
    pool = read_pool(path, bound, reward_field=reward_field)
    if len(pool) < 2:
        raise bad_input(f"pool {path}: one prompt has no standard error; at least two are needed")
    return pool
