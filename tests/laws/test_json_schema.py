"""The checker of schemas against an independent one, and schemas that must be refused or must not hold it up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.plugin.json_schema import MAX_DEPTH, MAX_SCHEMA_CHARACTERS, SchemaError, conforms, require_schema
from reticent.plugin.response_format import ResponseFormat

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0]) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
kinds = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])


def with_keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from("abc")
    return st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(0, 3),
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 3),
            "minimum": st.integers(-2, 2),
            "maximum": st.integers(-2, 2),
            "exclusiveMinimum": st.integers(-2, 2),
            "exclusiveMaximum": st.integers(-2, 2),
        },
    )


schemas = st.recursive(st.booleans() | with_keywords(st.booleans()), with_keywords, max_leaves=5)


@settings(max_examples=150, deadline=None)
@given(with_keywords(schemas), values)
def test_it_agrees_with_an_independent_checker(schema: dict[str, Any], value: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    require_schema(schema)
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert conforms(value, schema) is expected


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        ({"name": "a"}, True),
        ({"name": "a", "parts": [{"name": "b", "parts": []}]}, True),
        ({"name": "a", "parts": [{"parts": []}]}, False),
        ({"name": "a", "more": 1}, False),
        ([], False),
    ],
)
def test_references_inside_the_schema_are_followed(value: Any, holds: bool) -> None:
    require_schema(TREE)
    assert conforms(value, TREE) is holds
    named = {"$defs": {"a~b/c": TREE}, "$ref": "#/$defs/a~0b~1c"}
    require_schema(named)


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


WRONG: list[Any] = [
    {"type": "thing"},
    {"type": []},
    {"type": 5},
    {"type": ["string", 5]},
    {"type": None},
    {"properties": []},
    {"properties": {"a": 5}},
    {"required": "a"},
    {"required": [1]},
    {"enum": []},
    {"enum": "a"},
    {"anyOf": []},
    {"anyOf": {}},
    {"allOf": [None]},
    {"items": 7},
    {"additionalProperties": "no"},
    {"minItems": -1},
    {"minItems": True},
    {"maxLength": 1.5},
    {"minimum": "1"},
    {"pattern": 5},
    {"$ref": "http://127.0.0.1/x.json"},
    {"$ref": "other.json#/a"},
    {"$ref": "#/$defs/nowhere"},
    {"$ref": 5},
    {"$ref": "#/required", "required": ["a"]},
    {"properties": {"CANARY": {"$ref": "#/CANARY"}}},
    deep(MAX_DEPTH + 1),
    {"description": "x" * MAX_SCHEMA_CHARACTERS},
]


@pytest.mark.parametrize("schema", WRONG, ids=[json.dumps(s)[:40] for s in WRONG])
def test_a_schema_that_cannot_be_used_is_refused_without_its_values(schema: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        require_schema(schema)
    assert "CANARY" not in str(caught.value)
    require_schema(deep(MAX_DEPTH - 1))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(30)} | {"$defs": {}},
         "$ref": "#/$defs/0"},
    ],
    ids=["itself", "one another", "exponential"],
)  # fmt: skip
def test_a_schema_without_end_holds_nothing_up(schema: dict[str, Any]) -> None:
    if "$defs" in schema and "29" in schema["$defs"]:
        schema["$defs"]["30"] = False
    require_schema(schema)
    assert conforms({"a": 1}, schema) is False


@pytest.mark.parametrize(
    ("text", "is_object", "obeys"),
    [
        ('{"name": "a"}', True, True),
        (' {"name": "a"}\n', True, True),
        ('{"name": 1}', True, False),
        ('{"name": "a"', False, False),
        ('{"name": "a"} and more', False, False),
        ("[1]", False, False),
        ("null", False, False),
        ("", False, False),
        ("Sure! {}", False, False),
        ('{"name": NaN}', False, False),
        ("[" * 100_000, False, False),
        ('{"name": "\U0001f3ee"}', True, True),
    ],
)
def test_a_text_has_a_form_when_it_is_json_and_obeys(text: str, is_object: bool, obeys: bool) -> None:
    assert ResponseFormat({"type": "json_object"}).fits(text) is is_object
    assert ResponseFormat({"type": "json_schema", "json_schema": {"name": "x", "schema": TREE}}).fits(text) is obeys


def test_a_schema_that_is_not_there_asks_for_json_alone() -> None:
    form = ResponseFormat({"type": "json_schema", "json_schema": {"name": "x"}})
    assert form.fits("7")
    assert not form.fits("seven")
