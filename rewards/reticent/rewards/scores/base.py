"""What a score is: a number in [0, 1] for the gate, larger for answers more likely right, that does not depend on D."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from reticent.rewards.errors import ScoreDependsOnRewards

__all__ = [
    "TOP_LOG_PROBABILITIES",
    "Need",
    "OfCandidates",
    "Score",
    "ScoreInputs",
    "require_independent_of_rewards",
    "score_facts",
    "within_unit",
]

Need: TypeAlias = Literal[
    "candidates", "log_probabilities", "top_log_probabilities", "teacher_forced", "verifier", "noisy_reward"
]
"""What a score wants beyond question, evidence and answer: the other candidates' texts, log-probabilities of the
answer's tokens from sampling, the largest log-probabilities at each of them, a pass of the answer without the evidence,
a verifier's number, or the answer's reward with noise that is charged."""

TOP_LOG_PROBABILITIES = 10
"""How many of the largest log-probabilities of a position scores read: part of what they are, so it never varies."""


@dataclass(frozen=True)
class ScoreInputs:
    """All that a score may read. Which answer was chosen depends on D, as the released text does; nothing else may.

    Attributes:
        question: the question.
        evidence: the texts of the evidence.
        answer: the answer to be scored.
        others: the texts of the other candidates of the same draw, the answer itself left out once.
        mean_log_probability: mean log-probability of the answer's tokens given the evidence, in nats, or None.
        lift_log_ratios: for each of the answer's tokens, log p(token | evidence) - log p(token | no evidence), in
            nats, or None.
        prompt: the rendered user message with the evidence in place, "" where unknown.
        top_log_probabilities: for each of the answer's tokens, the `TOP_LOG_PROBABILITIES` largest log-probabilities at
            its position given the evidence, in nats, or None.
        verifier: the number of a verifier service, or None.
        noisy_reward: the answer's reward plus Gaussian noise, clipped and divided by R. Only where the rule charges for
            it; None otherwise.
    """

    question: str
    evidence: tuple[str, ...]
    answer: str
    others: tuple[str, ...] = ()
    mean_log_probability: float | None = None
    lift_log_ratios: Sequence[float] | None = None
    prompt: str = ""
    top_log_probabilities: Sequence[Sequence[float]] | None = None
    verifier: float | None = None
    noisy_reward: float | None = None

    @property
    def mean_bare_log_probability(self) -> float | None:
        """Mean log-probability of the answer's tokens without the evidence, nats: the mean less the mean log-ratio."""
        ratios = self.lift_log_ratios
        if self.mean_log_probability is None or not ratios:
            return None
        # A plain sum: whatever an engine says gives a number, or none (NaN), and never an exception as `fsum` does.
        return self.mean_log_probability - sum(ratio / len(ratios) for ratio in ratios)


class Score(Protocol):
    """A score. Fixed before calibration: name and constants stand in the certificate's fingerprint."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        ...

    @property
    def depends_on_rewards(self) -> bool:
        """Whether the score reads anything computed from the reward model, beyond which answer was chosen."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """What must be in the inputs."""
        ...

    @property
    def constants(self) -> Mapping[str, object]:
        """Every number that the score was fixed with, as JSON."""
        ...

    def compute(self, inputs: ScoreInputs) -> float:
        """The score, in [0, 1].

        Raises:
            ScoreInputMissing: something of `needs` is not there.
        """
        ...


class OfCandidates:
    """What every score is that reads the question and the candidates' texts alone."""

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"candidates"})


def require_independent_of_rewards(score: Score) -> Score:
    """`score`, if the gate may use it without a charge.

    Raises:
        ScoreDependsOnRewards: it says that it depends on rewards.
    """
    if score.depends_on_rewards:
        raise ScoreDependsOnRewards(score.name)
    return score


def score_facts(score: Score) -> dict[str, object]:
    """What stands in a fingerprint, and from which `build_score` makes the score again."""
    return {"name": score.name, "constants": dict(score.constants)}


def within_unit(value: float) -> float:
    """`value` clipped to [0, 1]; NaN is 0."""
    return min(max(value, 0.0), 1.0) if not math.isnan(value) else 0.0
