"""Strict reading of JSON documents, and writing them whole or not at all.

A certificate is read by a server that must fail closed, so nothing is coerced: a boolean is not an integer, a text is
not a number, an unknown field is an error.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from reticent.accounting.errors import AccountingError
from reticent.accounting.fingerprint import parse_json

__all__ = [
    "InvalidDocumentError",
    "parse_document",
    "read_bytes",
    "read_fields",
    "read_file",
    "read_float",
    "read_floats",
    "read_int",
    "read_ints",
    "read_list",
    "read_object",
    "read_text",
    "read_texts",
    "read_time",
    "write_atomically",
]

# Integers beyond this are not exact as floats, and no release of at most 1e9 slots reaches it.
MAX_INTEGER = 2**53
MAX_BYTES = 64 * 2**20


class InvalidDocumentError(AccountingError, ValueError):
    """A document that cannot be read.

    Attributes:
        where: dotted path of the offending field.
        problem: what is wrong with it.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


def read_fields(value: object, where: str, names: Sequence[str]) -> Mapping[str, object]:
    """An object with exactly these fields."""
    doc = read_object(value, where)
    missing, unknown = sorted(set(names) - doc.keys()), sorted(doc.keys() - set(names))
    if missing or unknown:
        raise InvalidDocumentError(where, f"missing fields {missing}, unknown fields {unknown}")
    return doc


def read_object(value: object, where: str) -> Mapping[str, object]:
    """An object."""
    if not isinstance(value, dict):
        raise InvalidDocumentError(where, f"expected an object, found {type(value).__name__}")
    return value


def read_list(value: object, where: str) -> Sequence[object]:
    """A list."""
    if not isinstance(value, list):
        raise InvalidDocumentError(where, f"expected a list, found {type(value).__name__}")
    return value


def read_text(value: object, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise InvalidDocumentError(where, f"expected a text, found {type(value).__name__}")
    return value


def read_texts(value: object, where: str) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(read_text(item, f"{where}.{i}") for i, item in enumerate(read_list(value, where)))


def read_int(value: object, where: str) -> int:
    """An integer of at most 2^53 in size."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidDocumentError(where, f"expected an integer, found {type(value).__name__}")
    if abs(value) > MAX_INTEGER:
        raise InvalidDocumentError(where, "the integer is larger than 2^53")
    return value


def read_ints(value: object, where: str) -> tuple[int, ...]:
    """A list of integers."""
    return tuple(read_int(item, f"{where}.{i}") for i, item in enumerate(read_list(value, where)))


def read_float(value: object, where: str) -> float:
    """A finite number written with a decimal point or an exponent, as Python writes floats."""
    if not isinstance(value, float):
        raise InvalidDocumentError(where, f"expected a floating-point number, found {type(value).__name__}")
    if not math.isfinite(value):
        raise InvalidDocumentError(where, "the number is not finite")
    return value


def read_floats(value: object, where: str) -> tuple[float, ...]:
    """A list of finite numbers."""
    return tuple(read_float(item, f"{where}.{i}") for i, item in enumerate(read_list(value, where)))


def read_time(value: object, where: str) -> datetime:
    """A time in ISO 8601, in UTC, in the one spelling that `datetime.isoformat` gives it."""
    text = read_text(value, where)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidDocumentError(where, f"{text!r} is not a time in ISO 8601") from error
    if time.utcoffset() != timedelta(0) or time.isoformat() != text:
        raise InvalidDocumentError(where, f"{text!r} is not a UTC time as in 2030-01-31T12:00:00+00:00")
    return time


def read_file(path: str | os.PathLike[str], where: str) -> object:
    """The JSON value in a file of at most 64 MiB.

    Raises:
        OSError: the file cannot be read.
        InvalidDocumentError: it is too large, not UTF-8, or not JSON.
    """
    return parse_document(read_bytes(path), where)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The first 64 MiB of a file, and one byte more where there are more, so that `parse_document` refuses it.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)


def parse_document(data: bytes, where: str) -> object:
    """The JSON value in at most 64 MiB of text.

    Raises:
        InvalidDocumentError: too much, not UTF-8, or not JSON.
    """
    if len(data) > MAX_BYTES:
        raise InvalidDocumentError(where, f"the file is larger than {MAX_BYTES} bytes")
    try:
        return parse_json(data.decode("utf-8"))
    except ValueError as error:
        raise InvalidDocumentError(where, str(error)) from error


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Replace `path` by a file with `text`, durably: a reader or a crash sees the old file or the new one, whole."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
