"""Agreement of an answer with the other candidates (after Abbasi-Yadkori et al. 2024), by overlap of words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from reticent.rewards.text import VERSION, content_words, says_not_stated

from .base import OfCandidates, ScoreInputs

__all__ = ["SelfConsistency", "own_words"]

_NOT_STATED = "\0not stated"
"""Stands among the words of an answer that says that nothing is stated; no text has such a word."""


def own_words(question: str, answer: str) -> frozenset[str]:
    """Content words of `answer` without those of `question`, and a mark if it says that nothing is stated."""
    marks = frozenset({_NOT_STATED}) if says_not_stated(answer) else frozenset[str]()
    return (content_words(answer) - content_words(question)) | marks


@dataclass(frozen=True)
class SelfConsistency(OfCandidates):
    """Mean Jaccard overlap of the answer's own words with those of each other candidate.

    Jaccard overlap of A and B is |A ∩ B|/|A ∪ B|. Where either is empty it is 0: an answer that says nothing agrees
    with nothing. Without other candidates the score is 0. Reads the other candidates, costs no pass.
    """

    @property
    def name(self) -> str:
        return "self_consistency"

    @property
    def constants(self) -> Mapping[str, object]:
        return {"text": VERSION}

    def compute(self, inputs: ScoreInputs) -> float:
        mine = own_words(inputs.question, inputs.answer)
        if not mine or not inputs.others:
            return 0.0
        others = [own_words(inputs.question, other) for other in inputs.others]
        return math.fsum(len(mine & other) / len(mine | other) for other in others) / len(others)
