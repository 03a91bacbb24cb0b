"""Hidden states of a causal language model, averaged over the answer's tokens.

The rendered prompt of a subject is run once and its key-value cache shared by that subject's candidates, so that a
candidate costs its own tokens only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.fingerprint import sha256_hex
from reticent.rewards.errors import EncoderUnavailable

from .base import FeatureMatrix, Pair, Subject, normalised
from .files import files_sha256

__all__ = ["CausalEncoder"]


class CausalEncoder:
    """Mean hidden states of chosen layers over an answer's tokens, each layer normalised, then concatenated.

    Args:
        folder: a model folder as transformers saves it, with its tokenizer and chat template.
        layers: indices into the hidden states (0 is the embedding, -1 the last layer).
        threads: torch's threads, None to leave them.
        max_tokens: longest prompt and answer together; an answer that does not fit gets a zero row (reward by the
            rule for broken candidates: the sigmoid's middle), a long prompt loses its start. Never is an answer cut.

    Raises:
        EncoderUnavailable: no model in the folder.
    """

    def __init__(
        self, folder: Path, layers: Sequence[int] = (-1,), threads: int | None = None, max_tokens: int = 2048
    ) -> None:
        if not (folder / "config.json").is_file():
            raise EncoderUnavailable("causal", "the folder has no config.json")
        import torch
        from transformers import AutoModel, AutoTokenizer

        if threads is not None:
            torch.set_num_threads(threads)
        self._torch: Any = torch
        self._folder = folder
        self._layers = tuple(layers)
        self._max_tokens = max_tokens
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
        self.name = "causal/" + ",".join(str(layer) for layer in self._layers)
        self.dimension = int(self._model.config.hidden_size) * len(self._layers)

    @functools.cached_property
    def revision(self) -> str:
        files = files_sha256(
            self._folder, ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja")
        )
        return sha256_hex({"name": self.name, "map": 1, "files": files, "max_tokens": self._max_tokens})

    def encode(self, pairs: Sequence[Pair]) -> FeatureMatrix:
        rows = np.zeros((len(pairs), self.dimension))
        for subject in dict.fromkeys(subject for subject, _ in pairs):
            indices = [i for i, (other, _) in enumerate(pairs) if other == subject]
            rows[indices] = self._of_subject(subject, [pairs[i][1] for i in indices])
        return normalised(rows)

    def _of_subject(self, subject: Subject, answers: list[str]) -> NDArray[np.float64]:
        rows = np.zeros((len(answers), self.dimension))
        prompt = self._prompt_tokens(subject.prompt)
        tokens = [self._tokenizer(answer, add_special_tokens=False)["input_ids"] for answer in answers]
        usable = [i for i, ids in enumerate(tokens) if 0 < len(ids) <= self._max_tokens // 2]
        if usable:
            rows[usable] = self._pooled(prompt[-(self._max_tokens // 2) :], [tokens[i] for i in usable])
        return rows

    def _prompt_tokens(self, prompt: str) -> list[int]:
        message = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        # The template has written the special tokens already; adding them again would double the first.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _pooled(self, prompt: list[int], answers: list[list[int]]) -> NDArray[np.float64]:
        torch = self._torch
        count, longest = len(answers), max(map(len, answers))
        ids = torch.zeros((count, longest), dtype=torch.long)
        mask = torch.zeros((count, longest), dtype=torch.long)
        for row, answer in enumerate(answers):
            ids[row, : len(answer)] = torch.tensor(answer)
            mask[row, : len(answer)] = 1
        with torch.inference_mode():
            cache = self._model(torch.tensor([prompt]), use_cache=True).past_key_values
            cache.batch_repeat_interleave(count)
            whole = torch.cat([torch.ones((count, len(prompt)), dtype=torch.long), mask], dim=1)
            states = self._model(
                ids, attention_mask=whole, past_key_values=cache, use_cache=True, output_hidden_states=True
            ).hidden_states
        weights = mask[..., None].double()
        means = [((states[layer].double() * weights).sum(1) / weights.sum(1)).numpy() for layer in self._layers]
        return np.concatenate([normalised(mean) for mean in means], axis=1)
