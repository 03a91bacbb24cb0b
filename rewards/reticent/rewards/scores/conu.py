"""Conformal self-consistency, after ConU (Wang et al. 2024) and SConU (Wang et al. 2025).

Both start from the share of candidates that say the same as the answer. ConU takes it as it is; SConU asks how it
stands among the right answers of a development split, as a conformal p-value.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .base import OfCandidates, ScoreInputs
from .equivalence import Equivalence

__all__ = ["ConU", "SConU", "fit_sconu"]

_MOST_KEPT = 200


@dataclass(frozen=True)
class ConU(OfCandidates):
    """Share of the other candidates that say the same as the answer.

    Args:
        equivalence: when two answers say the same.

    Without other candidates, or for an empty answer, the score is 0. Reads the other candidates, costs no pass of the
    base model.
    """

    equivalence: Equivalence

    @property
    def name(self) -> str:
        return "conu"

    @property
    def constants(self) -> Mapping[str, object]:
        return {"same": dict(self.equivalence.constants)}

    def compute(self, inputs: ScoreInputs) -> float:
        if not inputs.others or not inputs.answer.strip():
            return 0.0
        texts = [inputs.answer, *inputs.others]
        row = self.equivalence.same(inputs.question, texts)[0]
        return sum(same and bool(text.strip()) for same, text in zip(row[1:], texts[1:], strict=True)) / len(
            inputs.others
        )


@dataclass(frozen=True)
class SConU(OfCandidates):
    """(1 + #{i : s_i ≤ s})/(N + 1): the conformal p-value of the answer's share s among those of N right answers.

    Args:
        equivalence: when two answers say the same.
        calibration: shares s_i of right answers of a development split, ascending, in [0, 1], at least one. (That
            split is not the certificate's calibration; it only fixes the score.)

    If the answer is right and exchangeable with those, the score is at most p with probability at most p, rounded down
    to a multiple of 1/(N + 1); that is not what the certificate rests on. Reads and costs as `ConU`.

    Raises:
        ValueError: no calibration, not ascending, or outside [0, 1].
    """

    equivalence: Equivalence
    calibration: tuple[float, ...]

    def __post_init__(self) -> None:
        known = self.calibration
        if not known or list(known) != sorted(known) or not all(0.0 <= s <= 1.0 for s in known):
            raise ValueError("the calibration must be shares in [0, 1] in ascending order")

    @property
    def name(self) -> str:
        return "sconu"

    @property
    def constants(self) -> Mapping[str, object]:
        return {"same": dict(self.equivalence.constants), "calibration": list(self.calibration)}

    def compute(self, inputs: ScoreInputs) -> float:
        share = ConU(self.equivalence).compute(inputs)
        if not inputs.answer.strip():
            return 0.0
        return (1 + bisect.bisect_right(self.calibration, round(share, 4))) / (len(self.calibration) + 1)


def fit_sconu(equivalence: Equivalence, inputs: Sequence[ScoreInputs], right: Sequence[bool]) -> SConU:
    """Take the shares of the right answers of a development split, rounded to four digits.

    Of more than 200, every ceil(N/200)-th in order is kept: a configuration has to state them.

    Raises:
        ValueError: lengths differ, or no answer is right.
    """
    if len(inputs) != len(right):
        raise ValueError("a fit needs one verdict an answer")
    score = ConU(equivalence)
    shares = sorted(round(score.compute(one), 4) for one, good in zip(inputs, right, strict=True) if good)
    step = max(1, math.ceil(len(shares) / _MOST_KEPT))
    return SConU(equivalence, tuple(shares[step // 2 :: step]))
