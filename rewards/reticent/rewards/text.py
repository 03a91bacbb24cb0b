"""Plain text measures that scores and encoders share: words, content words, sentences, statements of not knowing.

All of it is fixed and reads only the text, so whatever is built on it does not depend on D. A change here changes
scores and features: raise `VERSION`, which stands in every fingerprint that uses this module.
"""

from __future__ import annotations

import re

__all__ = ["STOP_WORDS", "VERSION", "content_words", "says_not_stated", "sentences", "stem", "words"]

VERSION = 1

_STOP_TEXT = """
    a about all also am an and any are as at be been being but by can could did do does doing for from had has
    have he her hers him his how i if in into is it its just many me more most much my no nor not of on or our
    she should so some such than that the their them then there these they this those to too us was we were
    what when where which while who whom whose why will with would you your passage answer question stated
"""

STOP_WORDS: frozenset[str] = frozenset(_STOP_TEXT.split())
"""Words that carry no answer of their own, with the few that the embedded prompt itself brings into answers."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_NOT_STATED = re.compile(
    r"\bnot\b[^.]{0,40}\b(?:stat|giv|mention|specif|provid|said\b|say\b|known\b|clear\b|determin)"
    r"|\bno (?:information|mention)\b|\bunknown\b|\bunstated\b|\bcannot be (?:determined|known)\b"
)
_SUFFIXES = ("'s", "’s", "ing", "ed", "es", "s", "e")


def words(text: str) -> list[str]:
    """The words of `text` in lower case, in order; digits count as words, apostrophes stay inside."""
    return _WORD.findall(text.lower())


def stem(word: str) -> str:
    """`word` without the first of a few English endings that leaves at least three letters."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def content_words(text: str) -> frozenset[str]:
    """The stems of the words of `text` that are no stop words."""
    return frozenset(stem(word) for word in words(text) if word not in STOP_WORDS)


def sentences(text: str) -> list[str]:
    """`text` cut after `.`, `!` or `?` before white space, and at line ends; no empty pieces."""
    return [piece.strip() for piece in _SENTENCE_END.split(text) if piece.strip()]


def says_not_stated(text: str) -> bool:
    """Whether `text` says that the answer is not given ("It is not stated.", "No information on that.")."""
    return _NOT_STATED.search(text.lower()) is not None
