"""The "grounded" feature map: two dozen measures of how an answer rests on its evidence.

A head on raw sentence embeddings spends its norm on what the answer is about. What decides whether a short answer is
right is its relation to the evidence: do its new words stand in the sentence that the question asks for, in several
sentences at once, or nowhere; does it say that nothing is stated, although a sentence fits the question. Each measure
reads the texts and, where an embedder is given, frozen embeddings. Then each is centred and scaled by the constants
below and the row is normalised. The constants were taken from a trial of other questions than any head is trained on
and rounded; they are part of the map's revision and never refitted.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.rewards.text import content_words, says_not_stated, sentences, words

__all__ = [
    "EMBEDDED_CONSTANTS",
    "LEXICAL_CONSTANTS",
    "SubjectView",
    "evidence_sentences",
    "measures",
    "standardised",
]

Vector = NDArray[np.float64]

_NEGATIONS = frozenset(
    ["not", "no", "unknown", "unclear", "cannot", "unstated", "unspecified", "isn't", "doesn't", "don't"]
)
_SHARPNESS = 12.0
"""How sharply the sentences are weighted by their fit to the question."""


@dataclass(frozen=True)
class SubjectView:
    """What all candidates of one subject share.

    Attributes:
        question: content words of the question.
        sentences: content words of each sentence of the evidence; at least one, maybe empty.
        fit: how well each sentence fits the question, lexically, in [0, 1]: shared words, rare ones weigh more.
        similarity: cosine of each sentence's and the question's embeddings, or None without an embedder.
    """

    question: frozenset[str]
    sentences: tuple[frozenset[str], ...]
    fit: Vector
    similarity: Vector | None = None

    @staticmethod
    def of(question: str, evidence_sentences: list[str], similarity: Vector | None = None) -> SubjectView:
        asked = content_words(question)
        told = tuple(content_words(sentence) for sentence in evidence_sentences) or (frozenset[str](),)
        # One pass over the sentences: a long question over long evidence must not cost their product.
        holding = Counter(w for s in told for w in s if w in asked)
        weight = {w: math.log((len(told) + 1) / (holding[w] + 0.5)) for w in sorted(asked)}
        total = math.fsum(weight.values()) or 1.0
        fit = np.array([math.fsum(weight[w] for w in sorted(asked & s)) / total for s in told])
        return SubjectView(asked, told, fit, similarity)

    @property
    def combined_fit(self) -> Vector:
        """Lexical fit, with the cosine where there is one."""
        return self.fit if self.similarity is None else self.similarity + 0.5 * self.fit

    @property
    def attention(self) -> Vector:
        """Weights of the sentences, summing to 1: a sharp softmax of the combined fit."""
        z = np.exp(_SHARPNESS * (self.combined_fit - self.combined_fit.max()))
        return np.asarray(z / z.sum(), dtype=np.float64)


def evidence_sentences(passages: tuple[str, ...]) -> list[str]:
    """All sentences of the evidence; one empty sentence where there is none."""
    return [sentence for passage in passages for sentence in sentences(passage)] or [""]


def measures(
    view: SubjectView, answer: str, to_sentences: Vector | None = None, to_question: float = 0.0
) -> list[float]:
    """The raw measures of one answer.

    Args:
        view: the subject.
        answer: the candidate's text.
        to_sentences: cosines of the answer with each sentence of the evidence; None without an embedder.
        to_question: cosine of the answer with the question; read only with `to_sentences`.

    Returns:
        As many numbers as `LEXICAL_CONSTANTS` has rows, or `EMBEDDED_CONSTANTS` with an embedder.
    """
    said = content_words(answer)
    new = said - view.question
    everything = frozenset[str]().union(*view.sentences)
    absent = float(says_not_stated(answer))
    negated = float(not _NEGATIONS.isdisjoint(words(answer)))
    covered = [len(new & s) / len(new) if new else 0.0 for s in view.sentences]
    recalled = np.array([len(new & s) / max(1, len(s - view.question)) for s in view.sentences])
    best = int(np.argmax(view.combined_fit))
    elsewhere = max((r for i, r in enumerate(recalled) if i != best), default=0.0)
    touched = sum(r > 0 for r in recalled)
    single = float(touched == 1)
    fit = float(view.combined_fit.max())
    attended = float(view.attention @ recalled)
    row = [
        attended * (1 - absent) * fit,
        float(recalled[best]) * single,
        float(recalled[best]),
        float(recalled[best]) * (1 - absent),
        attended,
        float(view.attention @ np.array(covered)),
        single,
        touched / len(view.sentences),
        float(recalled.mean()),
        len(new & everything) / len(new) * (1 - absent) if new else 0.0,
        len(new - everything) / len(new) if new else 0.0,
        min(len(new - everything), 6) / 6,
        float(elsewhere),
        absent,
        absent * fit,
        absent * float(view.fit.max()),
        (1 - absent) * float(view.fit.max()),
        negated,
        min(len(said), 12) / 12,
        len(said & view.question) / max(1, len(view.question)),
        float(not new),
    ]
    if to_sentences is not None:
        row += [float(to_sentences.max()), float(view.attention @ to_sentences), to_question]
    return row


# fmt: off
LEXICAL_CONSTANTS: tuple[tuple[float, float], ...] = (
    (0.26, 0.39), (0.36, 0.47), (0.43, 0.48), (0.38, 0.48), (0.42, 0.46), (0.29, 0.38), (0.5, 0.5), (0.34, 0.36),
    (0.3, 0.35), (0.39, 0.43), (0.55, 0.43), (0.35, 0.36), (0.17, 0.33), (0.15, 0.36), (0.07, 0.22), (0.07, 0.22),
    (0.45, 0.42), (0.22, 0.42), (0.42, 0.24), (0.61, 0.37), (0.04, 0.18),
)
"""Centre and scale of each measure without an embedder."""

EMBEDDED_CONSTANTS: tuple[tuple[float, float], ...] = (
    (0.45, 0.56), (0.37, 0.47), (0.44, 0.48), (0.4, 0.48), (0.43, 0.46), (0.3, 0.39), (0.5, 0.5), (0.34, 0.36),
    (0.3, 0.35), (0.39, 0.43), (0.55, 0.43), (0.35, 0.36), (0.15, 0.31), (0.15, 0.36), (0.16, 0.38), (0.07, 0.22),
    (0.45, 0.42), (0.22, 0.42), (0.42, 0.24), (0.61, 0.37), (0.04, 0.18), (0.68, 0.27), (0.63, 0.28), (0.63, 0.25),
)
"""Centre and scale of each measure with MiniLM."""
# fmt: on


def standardised(row: list[float], constants: tuple[tuple[float, float], ...]) -> list[float]:
    """`(measure - centre)/scale`, each clipped to [-4, 4] so that one odd measure cannot drown the others."""
    return [max(-4.0, min(4.0, (x - centre) / scale)) for x, (centre, scale) in zip(row, constants, strict=True)]
