"""What the `reticent rewards` commands share: pairs, encoders and features from what was typed, or one clear line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import typer

from reticent.accounting.errors import AccountingError
from reticent.plugin.cli.common import fail, say
from reticent.rewards.encoders import Encoder, FeatureMatrix, build_encoder
from reticent.rewards.errors import RewardsError, UnusablePair
from reticent.rewards.feature_cache import FeatureCache, encode_pairs_cached
from reticent.rewards.pairs import PreferencePairs, read_pairs

__all__ = ["ENCODER_HELP", "EXIT_USAGE", "encoder_named", "features_of", "mistakes_end_it", "numbers", "pairs_from"]

EXIT_USAGE = 2

_SHORT = {"lexical": "lexical/grounded", "minilm": "minilm/interaction", "causal": "causal/-1"}
ENCODER_HELP = (
    "lexical, minilm (short for minilm/interaction), minilm/pair|interaction|qa|grounded, or causal/LAYERS with "
    "--model: hidden layers of a causal language model, 0 the embedding, -1 the last, several joined by commas."
)


@contextlib.contextmanager
def mistakes_end_it(what: str) -> Iterator[None]:
    """Bad input ends the command with its reason and code 2."""
    try:
        yield
    except (RewardsError, AccountingError, ValueError) as error:
        raise fail(f"{what}: {error}", EXIT_USAGE) from None
    except OSError as error:
        raise fail(f"{what}: {error.strerror or type(error).__name__}", EXIT_USAGE) from None


def numbers(text: str, option: str) -> list[float]:
    """Positive numbers joined by commas."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < float("inf") for number in found):
        raise fail(f"{option} takes positive numbers joined by commas, not {text!r}", EXIT_USAGE)
    return found


def pairs_from(
    path: Path, pairs_per_person: int | None, *, drop_unusable: bool = False
) -> tuple[PreferencePairs, tuple[UnusablePair, ...]]:
    """The pairs of a file, and the lines left out of it; an end with the line's number where it cannot be used."""
    try:
        pairs, dropped = read_pairs(path, pairs_per_person, drop_unusable=drop_unusable)
    except UnusablePair as error:
        raise fail(f"{path}: {error} (--drop-unusable leaves such lines out)", EXIT_USAGE) from None
    except RewardsError as error:
        raise fail(f"{path}: {error}", EXIT_USAGE) from None
    except OSError as error:
        raise fail(f"{path}: {error.strerror or type(error).__name__}", EXIT_USAGE) from None
    if dropped:
        shown = "; ".join(str(one) for one in dropped[:5]) + ("; …" if len(dropped) > 5 else "")
        say(f"left out {len(dropped)} lines: {shown}")
    if pairs_per_person is None and pairs.pairs_per_person > 1:
        say(f"k = {pairs.pairs_per_person} was counted in the data; declare it with --pairs-per-person")
    return pairs, dropped


def encoder_named(name: str, model: Path | None, threads: int | None) -> Encoder:
    """The encoder, or an end with a message."""
    try:
        return build_encoder(_SHORT.get(name, name), model_folder=model, threads=threads)
    except (RewardsError, OSError) as error:
        raise fail(f"{error} (--encoder, --model)", EXIT_USAGE) from None


def features_of(pairs: PreferencePairs, encoder: Encoder, cache: Path | None) -> tuple[FeatureMatrix, FeatureMatrix]:
    """Features of all pairs, through the cache where there is one."""
    try:
        kept = None if cache is None else FeatureCache(cache, encoder)
    except OSError as error:
        raise typer.BadParameter(f"{cache}: {error.strerror}", param_hint="--cache") from None

    def progress(done: int, total: int) -> None:
        if done % 1000 == 0 and done < total:
            say(f"{done:,} of {total:,} pairs encoded")

    return encode_pairs_cached(pairs, encoder, kept, progress)
