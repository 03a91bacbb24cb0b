"""Feature maps: from texts, through an embedder, to one row a candidate in the unit ball.

| map | a row before normalising | width |
|---|---|---|
| `pair` | embedding of (prompt, answer) read as one sentence pair | d |
| `interaction` | e(a), 8·e(a)·e(p), abs(e(a) - e(p)) with p the prompt | 3d |
| `qa` | the same of e(question + answer) and e(evidence + question) | 3d |
| `grounded` | the measures of `grounded.py` | 24 |

Each is a plain function, so that a new one is a new entry in `FEATURE_MAPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import FeatureMatrix, Pair, Subject, TextEmbedder, normalised
from .grounded import EMBEDDED_CONSTANTS, SubjectView, evidence_sentences, measures, standardised

__all__ = ["FEATURE_MAPS", "FeatureMap"]

_PRODUCT_WEIGHT = 8.0
"""Products of two unit vectors' entries are small beside the entries; this brings them to like size."""

_Embed = Callable[[Sequence[str | tuple[str, str]]], dict[str | tuple[str, str], NDArray[np.float64]]]


@dataclass(frozen=True)
class FeatureMap:
    """One map: its width for embeddings of width d, and the function from pairs to normalised rows.

    `version` rises with every change that moves a feature; it is part of the encoder's revision.
    """

    version: int
    width: Callable[[int], int]
    rows: Callable[[Sequence[Pair], TextEmbedder], FeatureMatrix]


def _embedded(
    texts: Sequence[str | tuple[str, str]], embedder: TextEmbedder
) -> dict[str | tuple[str, str], NDArray[np.float64]]:
    """Every distinct text embedded once."""
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, embedder.embed(distinct), strict=True))


def _pair(pairs: Sequence[Pair], embedder: TextEmbedder) -> FeatureMatrix:
    keys = [(subject.prompt, answer) for subject, answer in pairs]
    vectors = _embedded(keys, embedder)
    return normalised(np.stack([vectors[key] for key in keys]))


def _joined(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([left, _PRODUCT_WEIGHT * left * right, np.abs(left - right)])


def _interaction(pairs: Sequence[Pair], embedder: TextEmbedder) -> FeatureMatrix:
    vectors = _embedded([text for subject, answer in pairs for text in (subject.prompt, answer)], embedder)
    return normalised(np.stack([_joined(vectors[answer], vectors[subject.prompt]) for subject, answer in pairs]))


def _qa(pairs: Sequence[Pair], embedder: TextEmbedder) -> FeatureMatrix:
    keys = [
        (f"{subject.asked} {answer}", " ".join((*subject.passages, subject.question)).strip())
        for subject, answer in pairs
    ]
    vectors = _embedded([text for key in keys for text in key], embedder)
    return normalised(np.stack([_joined(vectors[left], vectors[right]) for left, right in keys]))


def _grounded(pairs: Sequence[Pair], embedder: TextEmbedder) -> FeatureMatrix:
    answers = _embedded([answer for _, answer in pairs], embedder)
    # A subject's own texts are embedded apart: which sentence fits best is a jump, and must not depend on the batch.
    subjects = {subject: _SubjectVectors.of(subject, embedder) for subject in dict.fromkeys(s for s, _ in pairs)}
    rows = []
    for subject, answer in pairs:
        known, vector = subjects[subject], answers[answer]
        row = measures(known.view, answer, known.sentences @ vector, float(known.question @ vector))
        rows.append(standardised(row, EMBEDDED_CONSTANTS))
    return normalised(np.array(rows, dtype=np.float64))


@dataclass(frozen=True)
class _SubjectVectors:
    """A subject's view with the embeddings of its question, shape (d,), and sentences, shape (m, d)."""

    view: SubjectView
    question: NDArray[np.float64]
    sentences: NDArray[np.float64]

    @staticmethod
    def of(subject: Subject, embedder: TextEmbedder) -> _SubjectVectors:
        told = evidence_sentences(subject.passages)
        vectors = embedder.embed([subject.asked, *told])
        return _SubjectVectors(SubjectView.of(subject.asked, told, vectors[1:] @ vectors[0]), vectors[0], vectors[1:])


FEATURE_MAPS: dict[str, FeatureMap] = {
    "pair": FeatureMap(1, lambda d: d, _pair),
    "interaction": FeatureMap(1, lambda d: 3 * d, _interaction),
    "qa": FeatureMap(1, lambda d: 3 * d, _qa),
    "grounded": FeatureMap(1, lambda d: len(EMBEDDED_CONSTANTS), _grounded),
}
"""Every map by its name in a head file."""
