"""Where an answer ends, and what is shown of its tokens: those that make up its text, and no others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reticent.plugin.ports import Position, Token

__all__ = ["LEAST", "before_stop", "fitted", "position"]

LEAST = -9999.0
"""Stands for the logarithm of 0, which JSON has no number for."""


def position(chosen: tuple[str, float], alternatives: Sequence[tuple[str, float]], top: int) -> Position:
    """A position from (text, log-probability) pairs. Of the alternatives the `top` most probable are kept.

    A token that is only a part of a character has the text "" and no bytes; the one that completes it has them all.
    """
    largest = sorted(alternatives, key=lambda pair: pair[1], reverse=True)[:top]
    return Position(_token(*chosen), tuple(_token(*pair) for pair in largest))


def _token(text: str, log_probability: float) -> Token:
    told = "\ufffd" not in text
    return Token(
        text,
        tuple(text.encode("utf-8", errors="replace")) if told else None,
        log_probability if math.isfinite(log_probability) else LEAST,
    )


def fitted(positions: Sequence[Position], text: str) -> tuple[Position, ...]:
    """The positions that begin inside `text`.

    A source tells the tokens of a stop string, of reasoning before the answer, and the one that ends it too; none of
    them is part of the answer. Where the tokens' texts do not spell the answer, nothing can be told apart, and all are
    kept.
    """
    drawn = "".join(p.chosen.text for p in positions)
    start = 0 if drawn.startswith(text) else drawn.rfind(text)
    if start < 0:
        return tuple(positions)
    kept, begin = [], 0
    for found in positions:
        if start <= begin < start + len(text):
            kept.append(found)
        begin += len(found.chosen.text)
    return tuple(kept)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it. vLLM ends there by itself; not every server does."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
