"""The paper's tables beside what can be computed here: values and the published figures.

A table is a list of blocks, one for each published row; a block has the published figures and, for every population and
rule, the computed ones under the same names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from reticent.accounting.errors import AccountingError

__all__ = ["PAPER_TABLES", "Block", "Figures", "PaperTable", "UnknownTableError", "published_table"]

PAPER_TABLES: tuple[int, ...] = (2, 4, 5, 6, 7, 9, 10, 12)


class UnknownTableError(AccountingError, ValueError):
    """No such table here.

    Attributes:
        number: that was asked for.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"the tables are {', '.join(str(n) for n in PAPER_TABLES)}, got {number}")
        self.number = number


@dataclass(frozen=True)
class Figures:
    """Computed figures of one row.

    Attributes:
        population: "synthetic …" or the name of a set of real records.
        rule: that was run.
        values: by name; None where there is nothing to say.
    """

    population: str
    rule: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """A published row and what was computed for it."""

    label: str
    published: Mapping[str, Any]
    computed: tuple[Figures, ...]


@dataclass(frozen=True)
class PaperTable:
    """A recomputed table.

    Attributes:
        number, title: as published.
        trials, seed: of the computed figures.
        blocks: in the published order.
        notes: what differs, and what cannot be computed here.
    """

    number: int
    title: str
    trials: int
    seed: int
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "table": self.number,
            "title": self.title,
            "trials": self.trials,
            "seed": self.seed,
            "rows": [
                {
                    "label": block.label,
                    "published": dict(block.published),
                    "computed": [{"population": f.population, "rule": f.rule, **f.values} for f in block.computed],
                }
                for block in self.blocks
            ],
            "notes": list(self.notes),
        }


def published_table(number: int) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Title and rows as published.

    Raises:
        UnknownTableError: not one of `PAPER_TABLES`.
    """
    if number not in PAPER_TABLES:
        raise UnknownTableError(number)
    table = _document()["tables"][str(number)]
    return table["title"], tuple(table["rows"])


@cache
def _document() -> Mapping[str, Any]:
    text = files("reticent.accounting.studies.certificates").joinpath("published.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document
