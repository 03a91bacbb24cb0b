"""Mean entropy of the base model's choice at each of the answer's tokens (fed-src, section D.3, "token entropy")."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reticent.rewards.errors import ScoreInputMissing

from .base import TOP_LOG_PROBABILITIES, Need, ScoreInputs, within_unit

__all__ = ["TokenEntropy", "lumped_entropy"]


def lumped_entropy(log_probabilities: Sequence[float], top: int = TOP_LOG_PROBABILITIES) -> float:
    """Entropy in nats of the law that keeps the `top` largest outcomes and lumps all others into one.

    Between 0 and log(top + 1), and never above the entropy of the whole law. Servers round: probabilities that sum to
    more than 1 are divided by their sum; NaN counts as probability 0.
    """
    kept = [math.exp(min(x, 0.0)) for x in sorted((x for x in log_probabilities if x > -math.inf), reverse=True)[:top]]
    total = math.fsum(kept)
    if total > 1.0:
        kept = [p / total for p in kept]
    parts = (*kept, max(0.0, 1.0 - total))
    return math.fsum(-p * math.log(p) for p in parts if p > 0.0)


@dataclass(frozen=True)
class TokenEntropy:
    """1 - (mean over the answer's tokens of the lumped entropy)/log(top + 1).

    An answer without tokens scores 0. Reads the largest log-probabilities of each position, which come with sampling;
    costs no pass. A server that gives fewer of them than asked gives a law that is lumped more, and a larger score:
    what is certified is certified with the server at hand.
    """

    @property
    def name(self) -> str:
        return "token_entropy"

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"top_log_probabilities"})

    @property
    def constants(self) -> Mapping[str, object]:
        return {"end_token": "left out", "top": TOP_LOG_PROBABILITIES}

    def compute(self, inputs: ScoreInputs) -> float:
        table = inputs.top_log_probabilities
        if table is None:
            raise ScoreInputMissing(self.name, "the largest log-probabilities at the answer's tokens")
        if not table:
            return 0.0
        mean = math.fsum(lumped_entropy(row) for row in table) / len(table)
        return within_unit(1.0 - mean / math.log(TOP_LOG_PROBABILITIES + 1))
