"""Public configuration facts, bound to a certificate by a digest.

A certificate speaks about one configuration only: base model and revision, reward model and revision, selection rule
and its parameters, prompts, score and its transformation, grid, loss, target, weights. A `Fingerprint` holds those
facts as JSON values. Two fingerprints are equal when their canonical JSON is equal, character by character; so 1 and
1.0 differ, and a running server that differs in one field can be told which one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Fingerprint", "canonical_json", "differences", "parse_json", "sha256_hex"]


def canonical_json(value: object) -> str:
    """The one text of a JSON value: keys sorted, no spaces, floats in their shortest exact form, ASCII only.

    Raises:
        ValueError: NaN or an infinity, at any depth.
        TypeError: something that is not a JSON value, or a key that is not a string.
    """
    _check(value, "")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_hex(value: object) -> str:
    """SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def parse_json(text: str) -> object:
    """Read JSON strictly: a repeated key or a NaN is an error, where Python's reader would let it pass.

    Raises:
        ValueError: not JSON, a repeated key, NaN or an infinity, a number too large to read, or nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_object_without_repeats, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


@dataclass(frozen=True, init=False)
class Fingerprint:
    """A frozen mapping of named public facts.

    Args:
        facts: names to nested JSON values. Copied; later changes to the argument have no effect.

    Raises:
        ValueError, TypeError: as `canonical_json`, or if `facts` is empty: an empty fingerprint would bind nothing.
    """

    canonical: str

    def __init__(self, facts: Mapping[str, object]) -> None:
        if not facts:
            raise ValueError("a fingerprint needs at least one fact")
        object.__setattr__(self, "canonical", canonical_json(dict(facts)))

    @property
    def facts(self) -> dict[str, object]:
        """A fresh copy of the facts."""
        value = json.loads(self.canonical)
        return dict(value)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.canonical.encode("ascii")).hexdigest()


def differences(a: Fingerprint, b: Fingerprint) -> tuple[str, ...]:
    """The dotted names of the fields in which `a` and `b` differ, sorted; empty exactly when they are equal.

    A list element is named by its index (`grid.3`); a field that only one of them has is named by its own path.
    """
    return tuple(sorted(_differing("", a.facts, b.facts)))


def _differing(path: str, a: object, b: object) -> Iterable[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            name = f"{path}.{key}" if path else str(key)
            if key not in a or key not in b:
                yield name
            else:
                yield from _differing(name, a[key], b[key])
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _differing(f"{path}.{index}", left, right)
    elif canonical_json(a) != canonical_json(b):
        yield path


def _check(value: object, path: str) -> None:
    """json.dumps would quietly turn the key 1 into "1" and a tuple into a list; only the second is wanted."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} at {path or 'the top'!r} is not a string")
            _check(item, f"{path}.{key}" if path else key)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{path}.{index}")
    elif not isinstance(value, (str, int, float, bool, type(None))):
        raise TypeError(f"{path or 'the value'!r} is a {type(value).__name__}, which is not a JSON value")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path or 'the value'!r} is {value!r}, which has no JSON form")


def _object_without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} has no JSON form")
