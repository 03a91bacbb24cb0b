"""Labelled records of one site: JSON lines or CSV, read strictly, every fault named by its line.

A record has a score and a loss, both in [0, 1], and may have an id and a person. A record without an id is known by
its content and by how many equal ones stand before it, so that adding lines to the file, or moving them, changes no
record's identity. Without ids a record that is scored again under another configuration looks like a new one.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reticent.accounting.calibration.site_errors import RecordLineInvalid
from reticent.accounting.fingerprint import parse_json, sha256_hex

__all__ = ["FieldNames", "SiteRecord", "read_records"]

MAX_LINE = 1 << 20
_KEY_LENGTH = 32


@dataclass(frozen=True)
class FieldNames:
    """Names of the columns or keys; other ones are not read."""

    score: str = "score"
    loss: str = "loss"
    id: str = "id"
    person: str = "person"


@dataclass(frozen=True, repr=False)
class SiteRecord:
    """One labelled record. Private: its repr shows nothing.

    Attributes:
        score, loss: in [0, 1].
        key: identifies the record in the site's state; a digest.
        person: identifies its person; a digest, the record's own key where the file names nobody.
        has_id: True when the file gives it an id.
    """

    score: float
    loss: float
    key: str
    person: str
    has_id: bool

    def __repr__(self) -> str:
        return "SiteRecord(private)"


def read_records(path: Path, names: FieldNames = FieldNames()) -> tuple[SiteRecord, ...]:
    """All records of a file, in its order. A name that ends in `.csv` is read as CSV, any other as JSON lines.

    Raises:
        OSError: the file cannot be read.
        RecordLineInvalid: the first line that is not a record, or repeats an id. No value is repeated in the message.
    """
    rows = _csv_rows(path, names) if path.suffix.lower() == ".csv" else _json_rows(path)
    equal: Counter[str] = Counter()
    seen: dict[str, int] = {}
    found = []
    for line, row, number in rows:
        score, loss = (number(line, name, row.get(name)) for name in (names.score, names.loss))
        label, person = (_text(line, name, row.get(name)) for name in (names.id, names.person))
        if label is None:
            content = sha256_hex({"score": score, "loss": loss, "person": person})
            key = _digest(f"content:{content}:{equal[content]}")
            equal[content] += 1
        else:
            key = _digest(f"id:{label}")
            if key in seen:
                raise RecordLineInvalid(line, f"has the same {names.id!r} as line {seen[key]}")
            seen[key] = line
        found.append(
            SiteRecord(score, loss, key, key if person is None else _digest(f"person:{person}"), label is not None)
        )
    return tuple(found)


_Row = tuple[int, Mapping[str, object], Callable[[int, str, object], float]]


def _json_rows(path: Path) -> Iterator[_Row]:
    with path.open("rb") as file:
        for line, data in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
            if len(data) > MAX_LINE:
                raise RecordLineInvalid(line, f"is longer than {MAX_LINE} bytes")
            if not data.strip():
                continue
            try:
                row = parse_json(data.decode("utf-8"))
            except ValueError:
                # The reader's own message may quote the line.
                raise RecordLineInvalid(line, "is not a JSON object in UTF-8") from None
            if not isinstance(row, dict):
                raise RecordLineInvalid(line, "is not a JSON object")
            yield line, row, _json_number


def _csv_rows(path: Path, names: FieldNames) -> Iterator[_Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            header = reader.fieldnames or []
            if missing := [name for name in (names.score, names.loss) if name not in header]:
                raise RecordLineInvalid(1, f"the header has no column {missing[0]!r}")
            if len(set(header)) != len(header):
                raise RecordLineInvalid(1, "a column stands twice in the header")
            for row in reader:
                if None in row or None in row.values():
                    raise RecordLineInvalid(reader.line_num, "has another number of columns than the header")
                yield reader.line_num, row, _csv_number
        except (csv.Error, UnicodeDecodeError):
            raise RecordLineInvalid(reader.line_num + 1, "is not CSV in UTF-8") from None


def _json_number(line: int, name: str, value: object) -> float:
    if value is None:
        raise RecordLineInvalid(line, f"has no {name!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordLineInvalid(line, f"{name!r} is not a number")
    return _in_range(line, name, value)


def _csv_number(line: int, name: str, value: object) -> float:
    text = str(value).strip()
    if not text:
        raise RecordLineInvalid(line, f"has no {name!r}")
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise RecordLineInvalid(line, f"{name!r} is not a number")
    return _in_range(line, name, number)


def _in_range(line: int, name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise RecordLineInvalid(line, f"{name!r} does not lie in [0, 1]")
    return float(value)


def _text(line: int, name: str, value: object) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise RecordLineInvalid(line, f"{name!r} is neither a text nor an integer")
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_LENGTH]
