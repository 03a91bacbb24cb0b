"""What a score is worth on labelled answers: the area under its curve, and how sure that is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

__all__ = ["auc", "auc_error"]

_BOOTSTRAPS = 400


def auc(scores: Sequence[float], right: Sequence[bool]) -> float:
    """Probability that a right answer scores above a wrong one, ties counted half.

    Raises:
        ValueError: lengths differ, one class only, or a NaN.
    """
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=bool)
    if s.shape != y.shape or not y.any() or y.all() or np.isnan(s).any():
        raise ValueError("an AUC needs one number a verdict, none of them NaN, and both right and wrong answers")
    _, inverse, counts = np.unique(s, return_inverse=True, return_counts=True)
    middle_ranks = np.cumsum(counts) - (counts - 1) / 2.0
    m = int(y.sum())
    return float((middle_ranks[inverse][y].sum() - m * (m + 1) / 2.0) / (m * (len(y) - m)))


def auc_error(scores: Sequence[float], right: Sequence[bool], groups: Sequence[Hashable], *, seed: int = 0) -> float:
    """Standard error of the AUC by a seeded bootstrap over groups of answers (400 draws; those of one class left out).

    Raises:
        ValueError: as `auc`.
    """
    auc(scores, right)
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    blocks = [np.array(block) for block in members.values()]
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=bool)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(_BOOTSTRAPS):
        drawn = np.concatenate([blocks[i] for i in rng.integers(0, len(blocks), len(blocks))])
        if y[drawn].any() and not y[drawn].all():
            found.append(auc(s[drawn].tolist(), y[drawn].tolist()))
    return float(np.std(found, ddof=1)) if len(found) > 1 else float("nan")
