"""Semantic entropy (Farquhar et al. 2024): how far the candidates agree in meaning."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .base import OfCandidates, ScoreInputs, within_unit
from .equivalence import Equivalence, clusters

__all__ = ["SemanticEntropy"]


@dataclass(frozen=True)
class SemanticEntropy(OfCandidates):
    """1 - H/log n, H the entropy of the shares of the groups of equivalent answers among the n candidates.

    Args:
        equivalence: when two answers say the same.

    This is the discrete estimate: it reads texts, no log-probabilities. All candidates of a request have the same
    score; it tells how sure the model is of the question, not which answer is the better. Without other candidates, or
    for an empty answer, the score is 0. Reads the other candidates, costs no pass of the base model.
    """

    equivalence: Equivalence

    @property
    def name(self) -> str:
        return "semantic_entropy"

    @property
    def constants(self) -> Mapping[str, object]:
        return {"same": dict(self.equivalence.constants)}

    def compute(self, inputs: ScoreInputs) -> float:
        if not inputs.others or not inputs.answer.strip():
            return 0.0
        groups = clusters(self.equivalence, inputs.question, [inputs.answer, *inputs.others])
        n = len(groups)
        entropy = math.fsum(-count / n * math.log(count / n) for count in Counter(groups).values())
        return within_unit(1.0 - entropy / math.log(n))
