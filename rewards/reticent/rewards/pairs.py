"""Preference pairs: JSON lines, plain or gzipped, with `prompt`, `chosen`, `rejected`, and maybe `person`, `question`,
`evidence`. `source` and `id` may stand there too and are not read. The whole file is checked before anything is
trained."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from reticent.accounting.fingerprint import parse_json, sha256_hex

from .encoders.base import Subject
from .errors import InvalidPairs, UnusablePair

__all__ = [
    "PreferencePair",
    "PreferencePairs",
    "as_json_lines",
    "folds_by_prompt",
    "load_pairs",
    "read_pairs",
    "split_by_prompt",
]

_FIELDS = {"prompt", "chosen", "rejected", "person", "question", "evidence"}
_PASSED_OVER = {"source", "id"}
"""Where a pair comes from and what it is called. Any other unknown field is refused: a mistyped `person` would make k
too small."""


@dataclass(frozen=True)
class PreferencePair:
    """One preference: `chosen` over `rejected` as an answer to `subject`, by `person` where that is known."""

    subject: Subject
    chosen: str
    rejected: str
    person: str | None = None


@dataclass(frozen=True)
class PreferencePairs:
    """N preferences.

    Attributes:
        rows: the pairs, at least one.
        declared_per_person: k as the operator declares it, or None to take the largest count in the data. A count
            from the data is itself data: declare k wherever persons are named.

    Raises:
        InvalidPairs: no rows; one person gave more than the declared k.
    """

    rows: tuple[PreferencePair, ...]
    declared_per_person: int | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise InvalidPairs("there are no pairs")
        largest = self._largest_count
        if self.declared_per_person is not None and largest > self.declared_per_person:
            raise InvalidPairs(f"one person gave {largest} pairs, declared are at most {self.declared_per_person}")

    @property
    def _largest_count(self) -> int:
        """Largest number of pairs of one person; a pair without a person is a person of its own."""
        return max(Counter(row.person for row in self.rows if row.person is not None).values(), default=1)

    @property
    def pairs_per_person(self) -> int:
        """k of the sensitivity."""
        return self._largest_count if self.declared_per_person is None else self.declared_per_person

    @cached_property
    def sha256(self) -> str:
        """Hash of the pairs, in order. Confidential, as it confirms a guess of the data."""
        return sha256_hex([_as_json(row) for row in self.rows])


def load_pairs(path: Path, pairs_per_person: int | None = None) -> PreferencePairs:
    """Read a pairs file; gzip is recognised by its first bytes, not by its name.

    Raises:
        FileNotFoundError: no such file.
        InvalidPairs: not UTF-8 JSON lines, a missing or unknown field, an empty text, `chosen` equal to `rejected`, a
            repeated or contradicting pair, or no pairs at all. The message names the line. Different named persons
            may agree and disagree about a pair.
    """
    return read_pairs(path, pairs_per_person)[0]


def read_pairs(
    path: Path, pairs_per_person: int | None = None, *, drop_unusable: bool = False
) -> tuple[PreferencePairs, tuple[UnusablePair, ...]]:
    """As `load_pairs`; with `drop_unusable` empty answers, equal answers and repetitions are left out and returned.

    A contradiction is never left out: which of the two lines is right is not for a program to say.
    """
    rows: list[PreferencePair] = []
    dropped: list[UnusablePair] = []
    seen: dict[tuple[Subject, frozenset[str]], list[tuple[PreferencePair, int]]] = {}
    for number, line in enumerate(_text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _parse(line, number)
            same = seen.setdefault((row.subject, frozenset((row.chosen, row.rejected))), [])
            _refuse_repetition(row, number, same)
        except UnusablePair as error:
            if not drop_unusable:
                raise
            dropped.append(error)
            continue
        same.append((row, number))
        rows.append(row)
    return PreferencePairs(tuple(rows), pairs_per_person), tuple(dropped)


def folds_by_prompt(pairs: PreferencePairs, folds: int, seed: int) -> tuple[int, ...]:
    """The fold, 0 to `folds` - 1, of every pair, by a hash of its prompt alone: pairs of one prompt share theirs.

    Raises:
        InvalidPairs: a fold is empty: too few prompts.
        ValueError: fewer than two folds.
    """
    if folds < 2:
        raise ValueError(f"at least two folds are needed: {folds}")
    dealt = tuple(_prompt_hash(row.subject.prompt, seed) % folds for row in pairs.rows)
    if len(set(dealt)) < folds:
        raise InvalidPairs(f"too few prompts for {folds} folds: one of them is empty (fewer folds, or another seed)")
    return dealt


def _prompt_hash(prompt: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}\0{prompt}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


def _text_of(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise InvalidPairs(f"not a text in UTF-8, plain or gzipped: {type(error).__name__}") from error


def _refuse_repetition(row: PreferencePair, number: int, same: list[tuple[PreferencePair, int]]) -> None:
    """Refuse what the same person, or somebody unnamed, has said before about this prompt and these two answers."""
    for other, first in same:
        if row.person is not None and other.person is not None and row.person != other.person:
            continue
        if row.chosen != other.chosen:
            raise InvalidPairs(f"the opposite of line {first}", number)
        raise UnusablePair(f"a duplicate of line {first}", number)


def split_by_prompt(pairs: PreferencePairs, heldout_share: float, seed: int) -> tuple[PreferencePairs, PreferencePairs]:
    """Split into (training, held-out) so that no prompt stands on both sides; the same for the same arguments.

    Each prompt falls to a side by a hash of itself alone, held out with a chance of `heldout_share`. So one person's
    pairs move nobody else's from side to side, and Δ of a head trained on one side holds for all pairs together.

    Raises:
        InvalidPairs: all prompts fall to one side.
        ValueError: `heldout_share` outside (0, 1).
    """
    if not 0 < heldout_share < 1:
        raise ValueError(f"heldout_share must lie in (0, 1): {heldout_share}")
    limit = round(heldout_share * 2**64)

    def side(wanted: bool) -> PreferencePairs:
        rows = tuple(row for row in pairs.rows if (_prompt_hash(row.subject.prompt, seed) < limit) is wanted)
        if not rows:
            raise InvalidPairs("every prompt fell to one side of the held-out split: too few prompts, or another seed")
        return replace(pairs, rows=rows)

    return side(False), side(True)


def _parse(line: str, number: int) -> PreferencePair:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise InvalidPairs("not JSON, or a repeated key", number) from error
    if not isinstance(value, dict):
        raise InvalidPairs("not a JSON object", number)
    if unknown := value.keys() - _FIELDS - _PASSED_OVER:
        raise InvalidPairs(f"unknown field {', '.join(sorted(unknown))}", number)
    prompt, chosen, rejected = (_text(value, name, number) for name in ("prompt", "chosen", "rejected"))
    if chosen == rejected:
        raise UnusablePair("chosen and rejected are the same", number)
    person = _text(value, "person", number) if value.get("person") is not None else None
    question = _text(value, "question", number) if value.get("question") is not None else ""
    return PreferencePair(Subject(prompt, question, _evidence(value, number)), chosen, rejected, person)


def _text(value: Mapping[str, object], name: str, number: int) -> str:
    text = value.get(name)
    if not isinstance(text, str):
        raise InvalidPairs(f"{name} is missing or no string", number)
    if not text.strip():
        raise UnusablePair(f"{name} is empty", number)
    return text


def _evidence(value: Mapping[str, object], number: int) -> tuple[str, ...]:
    texts = value.get("evidence")
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidPairs("evidence is no list of strings", number)
    return tuple(texts)


def _as_json(row: PreferencePair) -> Mapping[str, object]:
    return {
        "prompt": row.subject.prompt,
        "question": row.subject.question,
        "evidence": list(row.subject.evidence),
        "chosen": row.chosen,
        "rejected": row.rejected,
        "person": row.person,
    }


def as_json_lines(rows: Iterable[PreferencePair]) -> Iterable[Mapping[str, object]]:
    """The JSON objects of a pairs file; empty optional fields are left out."""
    for row in rows:
        yield {name: part for name, part in _as_json(row).items() if part not in (None, "", [])}
