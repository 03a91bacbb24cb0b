"""A CSV file that grows a row at a time and can be continued after an interruption."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["GrowingTable", "TableMismatch", "read_table"]


class TableMismatch(ValueError):  # noqa: N818 - it says what is wrong
    """The file that is there was made with other scores or other items, or has not the columns asked for."""


class GrowingTable:
    """Appends rows, each flushed at once. `done` holds the ids that are there already.

    Args:
        path: the CSV file. What its rows were made with stands beside it, in `PATH.meta.json`.
        columns: the first is the id.
        made_with: anything as JSON; a file made with something else is not continued.

    A last line that an interruption cut off is dropped.

    Raises:
        TableMismatch: the file there has other columns, or was made with something else, or does not say with what.
    """

    def __init__(self, path: Path, columns: Sequence[str], made_with: Mapping[str, Any]) -> None:
        self._path = path
        self._columns = tuple(columns)
        meta = path.with_name(path.name + ".meta.json")
        described = json.dumps({"columns": list(columns), **made_with}, sort_keys=True, indent=1)
        self.done: set[str] = set()
        if path.exists():
            if not meta.exists() or meta.read_text(encoding="utf-8") != described:
                raise TableMismatch(f"{path} was made with other scores, items or settings: take another file")
            self.done = self._resume()
        else:
            meta.write_text(described, encoding="utf-8")
            path.write_text(_line(self._columns), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8", newline="")

    def _resume(self) -> set[str]:
        whole = self._path.read_bytes()
        keep = whole[: whole.rfind(b"\n") + 1]
        rows = list(csv.reader(keep.decode("utf-8").splitlines()))
        if not rows or rows[0] != list(self._columns):
            raise TableMismatch(f"{self._path} does not begin with the columns {', '.join(self._columns)}")
        if len(keep) < len(whole):
            os.truncate(self._path, len(keep))
        return {row[0] for row in rows[1:]}

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row durably enough for an interrupted process (not for a power cut)."""
        self._file.write(_line([_cell(row[name]) for name in self._columns]))
        self._file.flush()
        self.done.add(str(row[self._columns[0]]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file that must have these columns.

    Raises:
        TableMismatch: it cannot be read, or lacks one of them.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                there = ", ".join(reader.fieldnames or ())
                raise TableMismatch(f"{path} has no column {', '.join(missing)}; it has {there}")
            return list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableMismatch(f"{path} cannot be read: {error}") from None


def digest_of(lines: Sequence[str]) -> str:
    """SHA-256 of all lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


def _line(cells: Sequence[str]) -> str:
    quoted = ('"' + c.replace('"', '""') + '"' if set(c) & set(',"\r\n') else c for c in cells)
    return ",".join(quoted) + "\n"
