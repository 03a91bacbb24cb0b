"""When two answers to a question say the same: by words, by embeddings, or by an entailment model.

Answers are grouped as Farquhar et al. (2024) do: one after another, each into the first group whose first member says
the same. Groups of texts that say nothing at all do not exist: an empty text stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from reticent.rewards.encoders.base import TextEmbedder
from reticent.rewards.text import VERSION

from .entailment import EntailmentModel
from .self_consistency import own_words

__all__ = ["Equivalence", "SameEmbedding", "SameEntailment", "SameWords", "clusters"]


class Equivalence(Protocol):
    """A fixed rule for texts that say the same. It reads question and texts alone."""

    @property
    def constants(self) -> Mapping[str, object]:
        """Kind, threshold and model, as JSON."""
        ...

    def same(self, question: str, texts: Sequence[str]) -> list[list[bool]]:
        """Symmetric table: whether texts i and j say the same. The diagonal is not read."""
        ...


def clusters(equivalence: Equivalence, question: str, texts: Sequence[str]) -> list[int]:
    """Number of the group of each text, from 0 in order of appearance."""
    table = equivalence.same(question, texts)
    first: list[int] = []
    found = []
    for i, text in enumerate(texts):
        group = next((g for g, j in enumerate(first) if text.strip() and texts[j].strip() and table[i][j]), None)
        if group is None:
            group = len(first)
            first.append(i)
        found.append(group)
    return found


def _threshold(value: float) -> float:
    if not (math.isfinite(value) and 0.0 < value <= 1.0):
        raise ValueError(f"threshold must be above 0 and at most 1: {value}")
    return float(value)


class _ByConstants:
    """Two rules are the same when their constants are."""

    @property
    def constants(self) -> Mapping[str, object]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByConstants) and self.constants == other.constants

    def __hash__(self) -> int:
        return hash(repr(sorted(self.constants.items())))


class SameWords(_ByConstants):
    """Jaccard overlap of the answers' own words of at least `threshold`. No model.

    Raises:
        ValueError: threshold not above 0 and at most 1.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        self._threshold = _threshold(threshold)

    @property
    def constants(self) -> Mapping[str, object]:
        return {"kind": "words", "text": VERSION, "threshold": self._threshold}

    def same(self, question: str, texts: Sequence[str]) -> list[list[bool]]:
        bags = [own_words(question, text) for text in texts]
        return [[len(a & b) >= self._threshold * max(1, len(a | b)) for b in bags] for a in bags]


class SameEmbedding(_ByConstants):
    """Cosine of the embeddings of "question answer" of at least `threshold`.

    Raises:
        ValueError: threshold not above 0 and at most 1.
    """

    def __init__(self, embedder: TextEmbedder, threshold: float = 0.9) -> None:
        self._embedder = embedder
        self._threshold = _threshold(threshold)

    @property
    def constants(self) -> Mapping[str, object]:
        return {"kind": "embedding", "model": self._embedder.revision, "threshold": self._threshold}

    def same(self, question: str, texts: Sequence[str]) -> list[list[bool]]:
        distinct = list(dict.fromkeys(texts))
        vectors = self._embedder.embed([f"{question} {text}".strip() for text in distinct])
        rows = vectors[[distinct.index(text) for text in texts]]
        return [[bool(x >= self._threshold - 1e-6) for x in row] for row in rows @ rows.T]


class SameEntailment(_ByConstants):
    """Each entails the other, both after the question, with probability of at least `threshold`.

    Raises:
        ValueError: threshold not above 0 and at most 1.
    """

    def __init__(self, model: EntailmentModel, threshold: float = 0.5) -> None:
        self._model = model
        self._threshold = _threshold(threshold)

    @property
    def constants(self) -> Mapping[str, object]:
        return {"kind": "entailment", "model": self._model.revision, "threshold": self._threshold}

    def same(self, question: str, texts: Sequence[str]) -> list[list[bool]]:
        said = [f"{question} {text}".strip() for text in texts]
        distinct = list(dict.fromkeys(said))
        pairs = [(a, b) for a in distinct for b in distinct if a != b]
        entailed = dict(zip(pairs, self._model.entails(pairs) if pairs else (), strict=True))
        both = {p: min(x, entailed[p[1], p[0]]) >= self._threshold for p, x in entailed.items()}
        return [[a == b or both[a, b] for b in said] for a in said]
