"""Frozen encoders, one a file, and the registry that builds one from what a head file names."""

from __future__ import annotations

from pathlib import Path

from reticent.rewards.errors import EncoderUnavailable, UnknownName

from .base import Encoder, FeatureMatrix, Pair, Subject, TextEmbedder, normalised

__all__ = [
    "Encoder",
    "FeatureMatrix",
    "Pair",
    "Subject",
    "TextEmbedder",
    "build_encoder",
    "encoder_names",
    "normalised",
]


def encoder_names() -> tuple[str, ...]:
    """The names that `build_encoder` knows; `causal/` takes a comma-separated list of layers after it."""
    from .maps import FEATURE_MAPS

    return ("lexical/grounded", *(f"minilm/{name}" for name in FEATURE_MAPS), "causal/-1")


def build_encoder(name: str, *, model_folder: Path | None = None, threads: int | None = None) -> Encoder:
    """The encoder called `name` ("lexical/grounded", "minilm/MAP", "causal/LAYERS").

    Args:
        name: as an encoder's own `name` says it.
        model_folder: where the model is; needed by `causal`, optional for `minilm` (default: its package).
        threads: torch's threads; None leaves them. `lexical` needs no torch.

    Raises:
        UnknownName: no such encoder or feature map.
        EncoderUnavailable: its files are not there.
    """
    family, _, rest = name.partition("/")
    if name == "lexical/grounded":
        from .lexical import LexicalEncoder

        return LexicalEncoder()
    if family == "minilm":
        from .maps import FEATURE_MAPS
        from .minilm import MiniLmEmbedder, MiniLmEncoder

        if rest not in FEATURE_MAPS:
            raise UnknownName("feature map", rest, tuple(FEATURE_MAPS))
        return MiniLmEncoder(rest, MiniLmEmbedder(model_folder, threads))
    if family == "causal":
        from .causal import CausalEncoder

        try:
            layers = [int(layer) for layer in rest.split(",")]
        except ValueError:
            raise UnknownName("encoder", name, encoder_names()) from None
        if model_folder is None:
            raise EncoderUnavailable(name, "it needs the folder of its model")
        return CausalEncoder(model_folder, layers, threads)
    raise UnknownName("encoder", name, encoder_names())
