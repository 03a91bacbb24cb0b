"""Features from words alone: the grounded measures without an embedder. No torch, microseconds a candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reticent.accounting.fingerprint import sha256_hex
from reticent.rewards.text import VERSION as TEXT_VERSION

from .base import FeatureMatrix, Pair, normalised
from .grounded import LEXICAL_CONSTANTS, SubjectView, evidence_sentences, measures, standardised

__all__ = ["LexicalEncoder"]


class LexicalEncoder:
    """`grounded` features that read words only. See `Encoder` for what is guaranteed; rows here are exact."""

    name = "lexical/grounded"
    dimension = len(LEXICAL_CONSTANTS)

    @property
    def revision(self) -> str:
        return sha256_hex(
            {"name": self.name, "map": 1, "text": TEXT_VERSION, "constants": [list(c) for c in LEXICAL_CONSTANTS]}
        )

    def encode(self, pairs: Sequence[Pair]) -> FeatureMatrix:
        if not pairs:
            return np.zeros((0, self.dimension))
        views = {
            subject: SubjectView.of(subject.asked, evidence_sentences(subject.passages))
            for subject in dict.fromkeys(subject for subject, _ in pairs)
        }
        rows = [standardised(measures(views[subject], answer), LEXICAL_CONSTANTS) for subject, answer in pairs]
        return normalised(np.array(rows, dtype=np.float64))
