"""Drawn samples of the embedded task on disk, and the preference pairs that they give."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reticent.plugin.embedded.sampling import Sample
from reticent.plugin.embedded.task import EVIDENCE_TEMPLATE, Item, is_right
from reticent.rewards.encoders.base import Subject
from reticent.rewards.pairs import PreferencePair, as_json_lines

__all__ = ["Drawn", "make_pairs", "read_drawn", "subject_of", "write_drawn", "write_json_lines_gz", "write_pairs"]


@dataclass(frozen=True)
class Drawn:
    """One item with its candidates."""

    item: Item
    samples: tuple[Sample, ...]


def subject_of(item: Item) -> Subject:
    """What the reward model judges an answer to this item by: just what the server gives it."""
    prompt = EVIDENCE_TEMPLATE.format(evidence=item.passage, question=item.question)
    return Subject(prompt, item.question, (item.passage,))


def make_pairs(drawn: Iterable[Drawn], seed: int, most_per_item: int = 4) -> Iterator[PreferencePair]:
    """Pairs of a right and a wrong candidate of the same item, no two of them alike, at most `most_per_item` an item.

    Every pair is taken as one person's preference (k = 1): the persons are invented, as the passages are.
    """
    rng = random.Random(seed)  # noqa: S311 - shuffles made-up data
    person = 0
    for one in drawn:
        texts = list(dict.fromkeys(sample.text for sample in one.samples if sample.text))
        right = [text for text in texts if is_right(one.item, text)]
        wrong = [text for text in texts if not is_right(one.item, text)]
        couples = [(chosen, rejected) for chosen in right for rejected in wrong]
        rng.shuffle(couples)
        for chosen, rejected in couples[:most_per_item]:
            yield PreferencePair(subject_of(one.item), chosen, rejected, f"person-{person}")
            person += 1


def write_drawn(path: Path, drawn: Iterable[Drawn]) -> int:
    """Write samples as gzipped JSON lines; return how many items."""
    return write_json_lines_gz(
        path, ({"item": asdict(d.item), "samples": [asdict(s) for s in d.samples]} for d in drawn)
    )


def read_drawn(path: Path) -> Iterator[Drawn]:
    """Read what `write_drawn` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            value = json.loads(line)
            item = Item(**{**value["item"], "wrong_values": tuple(value["item"]["wrong_values"])})
            yield Drawn(item, tuple(Sample(**sample) for sample in value["samples"]))


def write_pairs(path: Path, pairs: Iterable[PreferencePair]) -> int:
    """Write a pairs file; return how many pairs."""
    return write_json_lines_gz(path, as_json_lines(pairs))


def write_json_lines_gz(path: Path, rows: Iterable[Any]) -> int:
    """Write gzipped JSON lines, byte for byte the same for the same rows (no name and no time in the header)."""
    count = 0
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count
