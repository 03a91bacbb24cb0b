"""Reading labelled records from a table: CSV or JSON lines, also gzipped; one row an answer, named columns.

Raises instead of guessing: a missing column, an empty or non-numeric cell, a loss outside [0, 1]. Messages name the row
and the column and never repeat a value.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.errors import AccountingError

__all__ = ["LabelledRecords", "RecordsInvalidError", "ScoreColumn", "read_records", "read_rows"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Row = Mapping[str, Any]


class RecordsInvalidError(AccountingError, ValueError):
    """The table cannot be used.

    Attributes:
        row: the first row at fault, from 1 (the header is none); 0 where the table as a whole is.
        problem: what is wrong with it.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"row {row}: {problem}" if row else problem)
        self.row = row
        self.problem = problem


@dataclass(frozen=True)
class ScoreColumn:
    """A column read as it stands, or turned round so that larger is better.

    Attributes:
        name: of the column.
        reversed: take its negative ("-COL"; "1-COL" is the same score up to a shift).
    """

    name: str
    reversed: bool = False


@dataclass(frozen=True)
class LabelledRecords:
    """All records of a table, in its order; n rows.

    Attributes:
        columns: raw score columns, larger is better, (n, C). Unbounded; the map into [0, 1] is fixed later.
        names: of the C columns.
        loss: declared loss in [0, 1], (n,).
        client: index of the record's client, (n,).
        clients: their names, in sorted order.
        group: index of what the record shares with others (an article, a person), (n,); each its own where no column
            was named.
    """

    columns: Array
    names: tuple[str, ...]
    loss: Array
    client: Index
    clients: tuple[str, ...]
    group: Index

    @property
    def size(self) -> int:
        """n."""
        return len(self.loss)

    def take(self, rows: Index) -> LabelledRecords:
        """Some of the records; clients keep their indices."""
        return LabelledRecords(
            self.columns[rows], self.names, self.loss[rows], self.client[rows], self.clients, self.group[rows]
        )


def read_records(
    path: Path, *, client: Sequence[str], score: str, loss: str, group: str | None = None
) -> LabelledRecords:
    """Read a table.

    Args:
        client: columns whose values together name a record's client; none for a single client.
        score: one column or several, separated by commas; "-COL" or "1-COL" turns one round. Larger is better.
        loss: a column with values in [0, 1], or "1-COL".
        group: column that tells which records belong together.

    Raises:
        OSError: the file cannot be read.
        RecordsInvalidError: the first row that cannot be used, or no rows.
    """
    rows = list(read_rows(path))
    if not rows:
        raise RecordsInvalidError(0, "the table has no rows")
    header = frozenset(rows[0])
    columns = [_column(name, header) for name in _names(score, header)]
    lost = _column(loss, header)
    for name in (*client, *([group] if group else [])):
        _require(name, header)
    losses = np.array([_number(row, i, lost.name) for i, row in enumerate(rows, start=1)])
    losses = 1.0 - losses if lost.reversed else losses
    outside = np.flatnonzero((losses < 0.0) | (losses > 1.0))
    if len(outside):
        raise RecordsInvalidError(int(outside[0]) + 1, f"the loss from {lost.name!r} does not lie in [0, 1]")
    raw = np.array([[_number(row, i, c.name) for c in columns] for i, row in enumerate(rows, start=1)])
    sign = np.array([-1.0 if c.reversed else 1.0 for c in columns])
    names, clients = _indexed([" / ".join(_text(row, i, c) for c in client) for i, row in enumerate(rows, start=1)])
    groups = (
        _indexed([_text(row, i, group) for i, row in enumerate(rows, start=1)])[1] if group else np.arange(len(rows))
    )
    shown = tuple(f"-{c.name}" if c.reversed else c.name for c in columns)
    return LabelledRecords(raw * sign, shown, losses, clients, names, groups)


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a CSV file (name ending in .csv) or of JSON lines (any other), gzipped when the name ends in .gz.

    Raises:
        OSError: the file cannot be read.
        RecordsInvalidError: a row that cannot be read.
    """
    with path.open("rb") as file:
        raw = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")  # type: ignore[type-var,unused-ignore]
        names = [suffix.lower() for suffix in path.suffixes]
        yield from (_csv_rows(text) if ".csv" in names[-2:] else _json_rows(text))


def _csv_rows(text: io.TextIOWrapper) -> Iterator[Row]:
    number = 0
    try:
        reader = csv.DictReader(text, strict=True)
        header = reader.fieldnames or []
        if len(set(header)) != len(header):
            raise RecordsInvalidError(0, "a column stands twice in the header")
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise RecordsInvalidError(number, "has another number of columns than the header")
            yield row
    except (csv.Error, UnicodeDecodeError):
        raise RecordsInvalidError(number + 1, "is not CSV in UTF-8") from None


def _json_rows(text: io.TextIOWrapper) -> Iterator[Row]:
    number = 0
    try:
        for line in text:
            if not line.strip():
                continue
            number += 1
            row = json.loads(line)
            if not isinstance(row, dict):
                raise RecordsInvalidError(number, "is not a JSON object")
            yield row
    except json.JSONDecodeError:
        raise RecordsInvalidError(number, "is not JSON") from None
    except UnicodeDecodeError:
        raise RecordsInvalidError(number + 1, "is not UTF-8") from None


def _names(score: str, header: frozenset[str]) -> list[str]:
    # A column may have a comma in its name.
    return [score] if score in header else [name.strip() for name in score.split(",")]


def _column(name: str, header: frozenset[str]) -> ScoreColumn:
    for prefix in ("1-", "-"):
        rest = name.removeprefix(prefix)
        if name not in header and rest != name and rest.strip() in header:
            return ScoreColumn(rest.strip(), reversed=True)
    _require(name, header)
    return ScoreColumn(name)


def _require(name: str, header: frozenset[str]) -> None:
    if name not in header:
        raise RecordsInvalidError(0, f"there is no column {name!r}; there are {', '.join(sorted(header))}")


def _number(row: Row, number: int, name: str) -> float:
    value = row.get(name)
    if value is None or value == "":
        raise RecordsInvalidError(number, f"has no {name!r}")
    try:
        found = math.nan if isinstance(value, list | dict) else float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise RecordsInvalidError(number, f"{name!r} is not a finite number")
    return found


def _text(row: Row, number: int, name: str) -> str:
    value = row.get(name)
    if value is None or value == "":
        raise RecordsInvalidError(number, f"has no {name!r}")
    return str(value)


def _indexed(values: Sequence[str]) -> tuple[tuple[str, ...], Index]:
    names = sorted(set(values))
    place = {name: index for index, name in enumerate(names)}
    return tuple(names), np.array([place[value] for value in values], dtype=np.int64)
