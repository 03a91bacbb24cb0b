"""Labelled answers from files, for scores in bulk."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Item", "ItemsInvalid", "as_line", "read_items", "split_of"]

Split = Literal["development", "test"]


class ItemsInvalid(ValueError):  # noqa: N818 - it says what is wrong
    """A file of items that cannot be used; names the line."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if line is None else f"{path}, line {line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


@dataclass(frozen=True)
class Item:
    """One answer.

    Attributes:
        id: its name, unique in a file.
        group: what it belongs to; answers of one group are always in the same split.
        question, evidence, answer: texts.
        others: other answers of the model to the same question, empty where none were drawn.
        right: whether the answer is right, None where that is not known.
        verifier: a verifier's number, None where there is none.
    """

    id: str
    group: str
    question: str
    evidence: tuple[str, ...]
    answer: str
    others: tuple[str, ...] = ()
    right: bool | None = None
    verifier: float | None = None

    @property
    def split(self) -> Split:
        """Half of the groups, by a hash of the name, are for development; the others for the test."""
        return split_of(self.group)


def split_of(group: str) -> Split:
    """See `Item.split`."""
    return "development" if hashlib.sha256(group.encode()).digest()[0] % 2 == 0 else "test"


def as_line(item: Item) -> str:
    """The item as a JSON line that `read_items` reads."""
    return json.dumps({**asdict(item), "evidence": list(item.evidence), "others": list(item.others)}) + "\n"


def read_items(path: Path, limit: int | None = None) -> list[Item]:
    """Items of a file of JSON lines, plain or gzipped.

    A line has `question`, `answer`, and optionally `id`, `group`, `evidence` (a text or a list), `others`, `right`
    (true, false, 1, 0), `verifier`. A line of HaluEval's form (`knowledge`, `question`, `right_answer`,
    `hallucinated_answer`) gives two items of one group.

    Args:
        path: the file.
        limit: most lines to read; None reads all.

    Raises:
        ItemsInvalid: a line of another form, an id that stands twice, or no item at all.
    """
    found: list[Item] = []
    seen: set[str] = set()
    try:
        for number, value in _lines(path, limit):
            for item in _items(path, number, value):
                if item.id in seen:
                    raise ItemsInvalid(path, number, f"the id {item.id!r} stands twice")
                seen.add(item.id)
                found.append(item)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ItemsInvalid(path, None, f"cannot be read: {error}") from None
    if not found:
        raise ItemsInvalid(path, None, "has no items")
    return found


def _lines(path: Path, limit: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    open_ = gzip.open if path.suffix == ".gz" else open
    with open_(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if limit is not None and number > limit:
                return
            try:
                value = json.loads(line)
            except ValueError:
                raise ItemsInvalid(path, number, "is not JSON") from None
            if not isinstance(value, dict):
                raise ItemsInvalid(path, number, "is not an object")
            yield number, value


def _items(path: Path, number: int, value: dict[str, Any]) -> Iterable[Item]:
    if "hallucinated_answer" in value:
        value = {**value, "answer": value.get("right_answer"), "evidence": value.get("knowledge")}
        one = _item(path, number, {**value, "id": f"{number}-right", "group": str(number), "right": True})
        wrong = {"id": f"{number}-wrong", "answer": value["hallucinated_answer"], "right": False}
        return one, _item(path, number, {**value, "group": str(number), **wrong})
    return (_item(path, number, value),)


def _item(path: Path, number: int, value: dict[str, Any]) -> Item:
    def texts(name: str) -> tuple[str, ...]:
        found = value.get(name) or []
        found = [found] if isinstance(found, str) else found
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise ItemsInvalid(path, number, f"{name} must be a text or a list of texts")
        return tuple(found)

    for name in ("question", "answer"):
        if not isinstance(value.get(name), str):
            raise ItemsInvalid(path, number, f"{name} must be a text")
    right, verifier = value.get("right"), value.get("verifier")
    if right not in (None, True, False):
        raise ItemsInvalid(path, number, "right must be true or false")
    if verifier is not None and (isinstance(verifier, bool) or not isinstance(verifier, int | float)):
        raise ItemsInvalid(path, number, "verifier must be a number")
    identifier = str(value.get("id", number))
    return Item(
        id=identifier,
        group=str(value.get("group", identifier)),
        question=value["question"],
        evidence=texts("evidence"),
        answer=value["answer"],
        others=texts("others"),
        right=None if right is None else bool(right),
        verifier=None if verifier is None else float(verifier),
    )
