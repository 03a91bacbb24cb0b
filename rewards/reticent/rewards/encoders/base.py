"""What an encoder is: frozen features of a candidate, in the unit ball, that do not depend on D."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Encoder", "FeatureMatrix", "Pair", "Subject", "TextEmbedder", "normalised"]

FeatureMatrix: TypeAlias = NDArray[np.float64]
"""Features, one candidate a row, float64, every row of L2 norm at most 1."""

_SHRINK = 1.0 - 1e-9
"""Rows are shrunk by this after normalising, so that rounding cannot lift a norm above 1."""


@dataclass(frozen=True)
class Subject:
    """What candidates answer.

    Attributes:
        prompt: the rendered user message, evidence and question included. Never empty for a real request.
        question: the question alone, or "" where the caller does not know it apart.
        evidence: the texts that the answer should rest on, in order; may be empty.
    """

    prompt: str
    question: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """The question where it is known, else the whole prompt."""
        return self.question or self.prompt

    @property
    def passages(self) -> tuple[str, ...]:
        """The evidence where it is known, else the whole prompt as one text."""
        return self.evidence or (self.prompt,)


Pair: TypeAlias = tuple[Subject, str]
"""One candidate with what it answers."""


class Encoder(Protocol):
    """Frozen features of candidates.

    What an implementation guarantees: every row of `encode` has L2 norm at most 1 and is finite; a row depends on its
    own subject and answer only, up to 1e-5 in each entry (the composition of a batch may change the order of float32
    sums); nothing in it was fitted on D.

    What it does not promise: bit-equal rows in different batches. Training therefore encodes one pair at a time.
    """

    @property
    def name(self) -> str:
        """Name in the registry, with the feature map: "minilm/grounded"."""
        ...

    @property
    def revision(self) -> str:
        """SHA-256 that changes with the weights, the tokenizer, or the code of the feature map."""
        ...

    @property
    def dimension(self) -> int:
        """Width d of a row."""
        ...

    def encode(self, pairs: Sequence[Pair]) -> FeatureMatrix:
        """Features of shape (len(pairs), d)."""
        ...


class TextEmbedder(Protocol):
    """Frozen unit vectors of texts, or of text pairs."""

    @property
    def dimension(self) -> int: ...

    @property
    def revision(self) -> str: ...

    def embed(self, texts: Sequence[str | tuple[str, str]]) -> FeatureMatrix:
        """Vectors of shape (len(texts), dimension); each of norm at most 1."""
        ...


def normalised(rows: NDArray[np.float64]) -> FeatureMatrix:
    """Every row divided by its L2 norm, in float64, then shrunk by 1e-9; zero and non-finite rows become zero.

    The rule for broken rows reads one candidate only, so a broken candidate changes no other.
    """
    out = np.zeros(np.shape(rows), dtype=np.float64)
    for i, row in enumerate(np.asarray(rows, dtype=np.float64)):
        largest = float(np.max(np.abs(row), initial=0.0))
        # Divided by the largest entry first, so that squares neither overflow nor vanish.
        if 0.0 < largest < math.inf:
            scaled = row / largest
            out[i] = scaled / math.sqrt(float(np.sum(scaled * scaled))) * _SHRINK
    return out
