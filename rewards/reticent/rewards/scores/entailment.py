"""An entailment model from a folder: probabilities that one text entails or contradicts another."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.fingerprint import sha256_hex
from reticent.rewards.encoders.files import files_sha256
from reticent.rewards.errors import EncoderUnavailable

__all__ = ["EntailmentModel"]

_BATCH = 16
_MAX_TOKENS = 512


class EntailmentModel:
    """A sequence classifier whose labels include "entailment" (and, for SelfCheck, "contradiction").

    Args:
        folder: a model folder as transformers saves it, with its tokenizer.

    The model must not have been trained on D. Long premises are cut at their end, never the hypothesis. Texts run in
    batches of at most 16 with padding masked, in float32: a probability depends on its batch below 1e-5.

    Raises:
        EncoderUnavailable: no model in the folder, or one without such a label.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise EncoderUnavailable("entailment", "the folder has no config.json")
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self._torch: Any = torch
        self._folder = folder
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        self._model: Any = model.eval()
        labels = {str(label).lower(): int(index) for index, label in self._model.config.id2label.items()}
        if "entailment" not in labels:
            raise EncoderUnavailable("entailment", f"its labels are {sorted(labels)}, without entailment")
        self._entailment, self._contradiction = labels["entailment"], labels.get("contradiction")

    @property
    def has_contradiction(self) -> bool:
        """Whether the model tells contradiction from neutral."""
        return self._contradiction is not None

    @functools.cached_property
    def revision(self) -> str:
        """SHA-256 of weights, configuration and tokenizer."""
        files = files_sha256(self._folder, ("model.safetensors", "config.json", "tokenizer.json"))
        return sha256_hex({"model": "entailment", "files": files, "max_tokens": _MAX_TOKENS})

    def entails(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """P(premise entails hypothesis) of each pair, shape (len(pairs),)."""
        return self._softmax(self._logits(pairs))[:, self._entailment]

    def contradicts(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """e^c/(e^c + e^e) of each pair, neutral left out, shape (len(pairs),) (Manakul et al. 2023).

        Raises:
            EncoderUnavailable: the model has no label for contradiction.
        """
        if self._contradiction is None:
            raise EncoderUnavailable("entailment", "it has no label for contradiction")
        return self._softmax(self._logits(pairs)[:, [self._contradiction, self._entailment]])[:, 0]

    def _logits(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        out = np.zeros((len(pairs), self._model.config.num_labels))
        order = sorted(range(len(pairs)), key=lambda i: len("".join(pairs[i])))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            tokens = self._tokenizer(
                [pairs[i][0] for i in batch],
                [pairs[i][1] for i in batch],
                padding=True,
                truncation="only_first",
                max_length=_MAX_TOKENS,
                return_tensors="pt",
            )
            with self._torch.inference_mode():
                out[batch] = self._model(**tokens).logits.double().numpy()
        return out

    @staticmethod
    def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), dtype=np.float64)
