"""SelfCheckGPT (Manakul et al. 2023) over the other candidates: by n-grams or by an entailment model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reticent.rewards.errors import EncoderUnavailable
from reticent.rewards.text import VERSION, sentences, words

from .base import OfCandidates, ScoreInputs, within_unit
from .entailment import EntailmentModel

__all__ = ["SelfCheckNgram", "SelfCheckNli"]

_LARGEST_ORDER = 4
_START = ""
"""Stands before the first word; no text has such a word."""


@dataclass(frozen=True)
class SelfCheckNgram(OfCandidates):
    """exp of the mean (or least) log-probability of the answer's words under an n-gram model of all candidates.

    Args:
        order: n from 1 to 4; 1 counts single words.
        over: "mean" over the answer's words, or "min", the least likely one.

    The model is trained on the other candidates and the answer itself, each counted once, without smoothing, so that
    no word of the answer has probability 0: p(w | c) = count(c w)/count(c), c the n - 1 words before. With order 1 an
    answer of many different words scores low whatever the others say. Without other candidates, or without words, the
    score is 0. Costs no pass.

    Raises:
        ValueError: another order, or another `over`.
    """

    order: int = 1
    over: Literal["mean", "min"] = "mean"

    def __post_init__(self) -> None:
        if not 1 <= self.order <= _LARGEST_ORDER or self.over not in ("mean", "min"):
            raise ValueError(f"selfcheck takes an order from 1 to {_LARGEST_ORDER}, and mean or min")

    @property
    def name(self) -> str:
        return "selfcheck"

    @property
    def constants(self) -> Mapping[str, object]:
        return {"variant": "ngram", "order": self.order, "over": self.over, "text": VERSION}

    def compute(self, inputs: ScoreInputs) -> float:
        mine = self._grams(inputs.answer)
        if not mine or not inputs.others:
            return 0.0
        grams: Counter[tuple[str, ...]] = Counter(mine)
        for other in inputs.others:
            grams.update(self._grams(other))
        contexts: Counter[tuple[str, ...]] = Counter()
        for gram, count in grams.items():
            contexts[gram[:-1]] += count
        logs = [math.log(grams[gram] / contexts[gram[:-1]]) for gram in mine]
        return within_unit(math.exp(min(logs) if self.over == "min" else math.fsum(logs) / len(logs)))

    def _grams(self, text: str) -> list[tuple[str, ...]]:
        padded = [_START] * (self.order - 1) + words(text)
        return [tuple(padded[i : i + self.order]) for i in range(len(padded) - self.order + 1)]


@dataclass(frozen=True)
class SelfCheckNli(OfCandidates):
    """1 - mean over the answer's sentences and the other candidates of P(candidate contradicts sentence).

    Args:
        model: an entailment model with a label for contradiction; neutral is left out of the probability.

    Empty candidates are left out. Without other candidates, or for an empty answer, the score is 0. Costs no pass of
    the base model, and sentences × candidates passes of the entailment model.

    Raises:
        EncoderUnavailable: the model does not tell contradiction from neutral.
    """

    model: EntailmentModel = field(compare=False)
    revision: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.model.has_contradiction:
            raise EncoderUnavailable("entailment", "it has no label for contradiction")
        object.__setattr__(self, "revision", self.model.revision)

    @property
    def name(self) -> str:
        return "selfcheck"

    @property
    def constants(self) -> Mapping[str, object]:
        return {"variant": "nli", "model": self.revision, "text": VERSION}

    def compute(self, inputs: ScoreInputs) -> float:
        said, others = sentences(inputs.answer), [other for other in inputs.others if other.strip()]
        if not said or not others:
            return 0.0
        found = self.model.contradicts([(other, sentence) for sentence in said for other in others])
        return within_unit(1.0 - float(found.mean()))
