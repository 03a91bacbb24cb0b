"""FRANQ (Fadeeva et al. 2026): faithfulness to the evidence and factuality, reported apart.

An answer that is faithful to the evidence is as sure as the model is of it with the evidence; one that is not rests on
what the model knows by itself, and is as sure as the model is of it without:
factuality = f·u(log p | evidence) + (1 - f)·v(log p | no evidence), f the probability that the answer is faithful.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from reticent.rewards.bounds import sigmoid
from reticent.rewards.errors import ScoreInputMissing
from reticent.rewards.text import sentences

from .base import Need, Score, ScoreInputs, score_facts, within_unit
from .entailment import EntailmentModel
from .fitting import fit_logistic

__all__ = ["EntailedByEvidence", "Franq", "Sureness", "fit_franq"]

_LEAST_LOG = -20.0


@dataclass(frozen=True)
class Sureness:
    """From a mean log-probability l to a probability: sigmoid(intercept + slope·max(l, -20)), or e^l before any fit.

    Raises:
        ValueError: a number that is not finite, or only one of the two.
    """

    intercept: float | None = None
    slope: float | None = None

    def __post_init__(self) -> None:
        if (self.intercept is None) != (self.slope is None) or not all(
            x is None or math.isfinite(x) for x in (self.intercept, self.slope)
        ):
            raise ValueError("sureness needs both coefficients, finite, or none")

    def of(self, mean_log_probability: float) -> float:
        """The probability."""
        bounded = min(0.0, max(_LEAST_LOG, mean_log_probability)) if mean_log_probability > -math.inf else _LEAST_LOG
        if self.intercept is None or self.slope is None:
            return math.exp(bounded)
        return sigmoid(self.intercept + self.slope * bounded)

    @property
    def constants(self) -> list[float] | None:
        """The coefficients, or None."""
        return None if self.intercept is None or self.slope is None else [self.intercept, self.slope]


@dataclass(frozen=True)
class EntailedByEvidence:
    """Mean over the answer's sentences of the largest probability that one passage entails it, after the question.

    The faithfulness that the paper means; `Grounding` stands in for it where there is no entailment model. Without
    evidence, or for an empty answer, it is 0.
    """

    model: EntailmentModel

    @property
    def name(self) -> str:
        return "entailed_by_evidence"

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    @property
    def constants(self) -> Mapping[str, object]:
        return {"model": self.model.revision}

    def compute(self, inputs: ScoreInputs) -> float:
        said, told = sentences(inputs.answer), [text for text in inputs.evidence if text.strip()]
        if not said or not told:
            return 0.0
        pairs = [(text, f"{inputs.question} {sentence}".strip()) for sentence in said for text in told]
        return within_unit(float(self.model.entails(pairs).reshape(len(said), len(told)).max(axis=1).mean()))


@dataclass(frozen=True)
class Franq:
    """Faithfulness and factuality of an answer; the score is the one that `report` names.

    Args:
        faithfulness: a score in [0, 1] that says how probable it is that the evidence bears the answer out.
        faithful, unfaithful: how sure the model is, from its log-probability with and without the evidence.
        report: which of the two is the score.

    The paper calibrates both with isotonic regression; here they are logistic (`fit_franq`). Reads the log-probability
    with the evidence and, for factuality, one teacher-forced pass without it. Without evidence the answer counts as
    unfaithful, and the pass without is the pass that was.
    """

    faithfulness: Score
    faithful: Sureness = Sureness()
    unfaithful: Sureness = Sureness()
    report: Literal["factuality", "faithfulness"] = "factuality"

    def __post_init__(self) -> None:
        if self.report not in ("factuality", "faithfulness"):
            raise ValueError("franq reports factuality or faithfulness")

    @property
    def name(self) -> str:
        return "franq"

    @property
    def depends_on_rewards(self) -> bool:
        return self.faithfulness.depends_on_rewards

    @property
    def needs(self) -> frozenset[Need]:
        own: frozenset[Need] = frozenset({"log_probabilities", "teacher_forced"})
        return self.faithfulness.needs | (own if self.report == "factuality" else frozenset())

    @property
    def constants(self) -> Mapping[str, object]:
        return {
            "faithfulness": score_facts(self.faithfulness),
            "faithful": self.faithful.constants,
            "unfaithful": self.unfaithful.constants,
            "report": self.report,
            "end_token": "left out",
        }

    def compute(self, inputs: ScoreInputs) -> float:
        return self.parts(inputs)[self.report]

    def parts(self, inputs: ScoreInputs) -> dict[str, float]:
        """Both numbers; factuality only where the log-probabilities are there, or where it is the score."""
        faith = self.faithfulness.compute(inputs)
        if self.report == "faithfulness" and inputs.mean_bare_log_probability is None:
            return {"faithfulness": faith}
        return {"faithfulness": faith, "factuality": self._factuality(inputs, faith)}

    def _factuality(self, inputs: ScoreInputs, faith: float) -> float:
        told = inputs.mean_log_probability
        if told is None:
            raise ScoreInputMissing(self.name, "the mean log-probability of the answer's tokens")
        bare = told if not inputs.evidence else inputs.mean_bare_log_probability
        if bare is None:
            raise ScoreInputMissing(self.name, "the log-probabilities without evidence")
        return within_unit(faith * self.faithful.of(told) + (1.0 - faith) * self.unfaithful.of(bare))


def fit_franq(faithfulness: Score, inputs: Sequence[ScoreInputs], right: Sequence[bool], ridge: float = 1e-3) -> Franq:
    """Fit both sureness functions on a development split: on the half of answers that is the more faithful, and on the
    other half; where a half is of one class, on all of them.

    Raises:
        ValueError: lengths differ, or one class only in all.
        ScoreInputMissing: log-probabilities are not there.
    """
    if len(inputs) != len(right) or len(set(right)) != 2:
        raise ValueError("a fit needs one verdict an answer, and both right and wrong ones")
    faith = [faithfulness.compute(one) for one in inputs]
    middle = sorted(faith)[len(faith) // 2]

    def fitted(values: Sequence[float | None], chosen: Sequence[bool]) -> Sureness:
        if any(value is None for value in values):
            raise ScoreInputMissing("franq", "the log-probabilities with and without evidence")
        if len({good for good, taken in zip(right, chosen, strict=True) if taken}) != 2:
            chosen = [True] * len(right)
        bounded = [min(0.0, max(_LEAST_LOG, value)) for value in values if value is not None]
        rows = [[value] for value, taken in zip(bounded, chosen, strict=True) if taken]
        intercept, (slope,) = fit_logistic(rows, [g for g, taken in zip(right, chosen, strict=True) if taken], ridge)
        return Sureness(intercept, slope)

    return Franq(
        faithfulness,
        fitted([one.mean_log_probability for one in inputs], [f >= middle for f in faith]),
        fitted([one.mean_bare_log_probability for one in inputs], [f < middle for f in faith]),
    )
