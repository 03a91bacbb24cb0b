"""Whether a JSON value obeys a JSON schema, and whether a schema can be read at all.

Only what takes bounded time and no connection is checked here: types, `enum` and `const`, properties, items, bounds of
numbers and lengths, `anyOf`, `oneOf`, `allOf`, `not`, and `$ref` inside the schema. Whatever else a schema says
(`pattern`, `format`, …) is left to the guided decoding of the source: a client's regular expression could hold this
process up for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_DEPTH", "MAX_SCHEMA_CHARACTERS", "MAX_STEPS", "SchemaError", "conforms", "require_schema"]

MAX_DEPTH = 32
"""Most levels of a schema."""
MAX_SCHEMA_CHARACTERS = 32_000
"""Most characters of a schema as JSON."""
MAX_STEPS = 20_000
"""Most schemas that are looked at for one value. A schema can ask for exponentially many."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": (int, float),
}
_SCHEMAS = ("items", "additionalProperties", "not")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS_OF_SCHEMAS = ("properties", "$defs", "definitions")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


class SchemaError(ValueError):
    """A schema that cannot be used. The text names the place and repeats no value."""


class _OutOfSteps(Exception):  # noqa: N818 - it says what happened
    """A value took too long to compare."""


def require_schema(schema: Mapping[str, Any]) -> None:
    """Check that a schema can be used.

    Raises:
        SchemaError: too long or too deep, a keyword of the wrong form, a reference that leads nowhere.
    """
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_SCHEMA_CHARACTERS:
        raise SchemaError(f"it may have at most {MAX_SCHEMA_CHARACTERS} characters")
    _require(schema, schema, "", MAX_DEPTH)


def _require(schema: Any, root: Mapping[str, Any], place: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise SchemaError(f"{place or 'it'} must be an object")
    if depth == 0:
        raise SchemaError(f"it may have at most {MAX_DEPTH} levels")
    _require_keywords(schema, root, place)
    for name in _SCHEMAS:
        if name in schema:
            _require(schema[name], root, f"{place}/{name}", depth - 1)
    for name in _LISTS_OF_SCHEMAS:
        if name in schema:
            if not isinstance(schema[name], list) or not schema[name]:
                raise SchemaError(f"{place}/{name} must be a list that is not empty")
            for index, inner in enumerate(schema[name]):
                _require(inner, root, f"{place}/{name}/{index}", depth - 1)
    for name in _MAPS_OF_SCHEMAS:
        if name in schema:
            if not isinstance(schema[name], dict):
                raise SchemaError(f"{place}/{name} must be an object")
            for index, inner in enumerate(schema[name].values()):
                _require(inner, root, f"{place}/{name}/({index})", depth - 1)


def _require_keywords(schema: dict[str, Any], root: Mapping[str, Any], place: str) -> None:
    def need(name: str, holds: bool, what: str) -> None:
        if name in schema and not holds:
            raise SchemaError(f"{place}/{name} must be {what}")

    kinds = schema.get("type")
    names = kinds if isinstance(kinds, list) else [kinds]
    need("type", bool(names) and all(isinstance(k, str) and k in _TYPES for k in names), "a type of JSON, or several")
    required = schema.get("required")
    need("required", isinstance(required, list) and all(isinstance(k, str) for k in required), "a list of names")
    need("enum", isinstance(schema.get("enum"), list) and bool(schema.get("enum")), "a list that is not empty")
    need("pattern", isinstance(schema.get("pattern"), str), "a text")
    for name in _COUNTS:
        need(name, type(schema.get(name)) is int and schema[name] >= 0, "a number of things")
    for name in _NUMBERS:
        need(name, _is_number(schema.get(name)), "a number")
    if "$ref" in schema:
        _resolve(schema["$ref"], root, place)


def _resolve(reference: Any, root: Mapping[str, Any], place: str = "") -> Any:
    """What a reference inside the schema leads to. Nothing is ever fetched."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise SchemaError(f"{place}/$ref must lead to a place in this schema")
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise SchemaError(f"{place}/$ref leads nowhere")
    if not isinstance(found, dict | bool):
        raise SchemaError(f"{place}/$ref leads to no schema")
    return found


def conforms(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value obeys what is checked here of a schema (see `require_schema`).

    False too where the answer takes more than `MAX_STEPS`, or the schema refers to itself without end.
    """
    try:
        return _Checker(schema).holds(value, schema)
    except (_OutOfSteps, RecursionError, SchemaError):
        return False


class _Checker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def holds(self, value: Any, schema: Any) -> bool:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _OutOfSteps
        if isinstance(schema, bool):
            return schema
        return (
            self._is_named(value, schema)
            and self._is_composed(value, schema)
            and (not isinstance(value, dict) or self._has_members(value, schema))
            and (not isinstance(value, list) or self._has_items(value, schema))
            and (not isinstance(value, str) or _within(len(value), schema, "minLength", "maxLength"))
            and (not _is_number(value) or _is_in_range(value, schema))
        )

    def _is_named(self, value: Any, schema: Mapping[str, Any]) -> bool:
        kinds = schema.get("type")
        if kinds is not None and not any(_is(value, k) for k in (kinds if isinstance(kinds, list) else [kinds])):
            return False
        if "const" in schema and not _same(value, schema["const"]):
            return False
        return "enum" not in schema or any(_same(value, other) for other in schema["enum"])

    def _is_composed(self, value: Any, schema: Mapping[str, Any]) -> bool:
        if "$ref" in schema and not self.holds(value, _resolve(schema["$ref"], self._root)):
            return False
        if not all(self.holds(value, inner) for inner in schema.get("allOf", ())):
            return False
        if "anyOf" in schema and not any(self.holds(value, inner) for inner in schema["anyOf"]):
            return False
        if "oneOf" in schema and sum(self.holds(value, inner) for inner in schema["oneOf"]) != 1:
            return False
        return "not" not in schema or not self.holds(value, schema["not"])

    def _has_members(self, value: dict[str, Any], schema: Mapping[str, Any]) -> bool:
        known = schema.get("properties", {})
        # What `patternProperties` is about is left to the source, names included.
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        return all(name in value for name in schema.get("required", ())) and all(
            self.holds(member, known.get(name, others)) for name, member in value.items()
        )

    def _has_items(self, value: list[Any], schema: Mapping[str, Any]) -> bool:
        first = schema.get("prefixItems", ())
        rest = schema.get("items", True)
        return _within(len(value), schema, "minItems", "maxItems") and all(
            self.holds(item, first[index] if index < len(first) else rest) for index, item in enumerate(value)
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values: `true` is not 1, and 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _within(count: int, schema: Mapping[str, Any], least: str, most: str) -> bool:
    return schema.get(least, 0) <= count and (most not in schema or count <= schema[most])


def _is_in_range(value: float, schema: Mapping[str, Any]) -> bool:
    return (
        ("minimum" not in schema or value >= schema["minimum"])
        and ("maximum" not in schema or value <= schema["maximum"])
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )
