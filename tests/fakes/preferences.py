"""Small made-up preferences from which the lexical encoder learns something, and their file."""

from __future__ import annotations

import json
from pathlib import Path

from reticent.rewards.encoders import Subject
from reticent.rewards.pairs import PreferencePair, PreferencePairs, as_json_lines

__all__ = ["pet_pairs", "write_lines"]

PETS = ("cat", "dog", "goat", "pony", "parrot", "rabbit")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ivy", "Jon")


def pet_pairs(per_person: int = 0) -> PreferencePairs:
    """60 pairs; with `per_person` that many consecutive pairs are one person's."""
    rows = []
    for i, name in enumerate(NAMES):
        for j, pet in enumerate(PETS):
            passage = f"{name} has a {pet}. {name} lives in Oakford."
            question = f"What pet does {name} have?"
            subject = Subject(f"Passage: {passage}\n\nQuestion: {question}", question, (passage,))
            wrong = (f"{name} has a {PETS[j - 1]}.", "It is not stated.", f"{name} lives in Oakford.")[(i + j) % 3]
            person = f"person {len(rows) // per_person}" if per_person else None
            rows.append(PreferencePair(subject, f"{name} has a {pet}.", wrong, person))
    return PreferencePairs(tuple(rows), per_person or None)


def write_lines(path: Path, pairs: PreferencePairs) -> Path:
    """The pairs as a plain pairs file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in as_json_lines(pairs.rows)), encoding="utf-8")
    return path
