"""The request's form: what is taken, what is refused, and how the refusal names the field without repeating values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reticent.plugin import wire
from reticent.plugin.errors import ApiError, BadRequest, envelope
from reticent.plugin.wire import INERT_FIELDS, MAX_KEYS, MAX_VALUES, ChatRequest, parse_chat_request

GOOD: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hello?"}]}


def parse(document: Any, max_messages: int = 5) -> ChatRequest:
    return parse_chat_request(json.dumps(document).encode(), max_messages=max_messages)


def refused(document: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(document)
    return caught.value


def message(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "messages": [{"role": "user", **fields}]}


def test_the_smallest_request_is_taken() -> None:
    request = parse(GOOD)
    assert request.messages[0].text == "Hello?"
    assert request.stop_strings == ()


def test_every_supported_field_is_taken() -> None:
    request = parse(
        {
            "model": "small",
            "messages": [
                {"role": "system", "content": "Be short.", "name": "rules"},
                {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
                {"role": "assistant", "content": None, "refusal": "No."},
                {"role": "user", "content": "Hello?"},
            ],
            "max_tokens": 5,
            "max_completion_tokens": 5,
            "temperature": 1,
            "top_p": 0.5,
            "stop": ["a", "b"],
            "seed": -(2**63),
            "presence_penalty": -2,
            "frequency_penalty": 2.0,
            "logit_bias": {"17": -100},
            "n": 1,
            "best_of": 3,
            "stream": True,
            "stream_options": {"include_usage": True, "include_obfuscation": False},
            "user": "ann",
            "safety_identifier": "ann",
            "reticent": {
                "rule": "privitp",
                "candidates": 3,
                "evidence": ["x"],
                "on_exhausted": "refuse",
                "gate": "abstain",
            },
        }
    )
    assert [m.text for m in request.messages] == ["Be short.", "Be kind.", "No.", "Hello?"]
    assert request.stop_strings == ("a", "b")
    assert parse({**GOOD, "stop": "end"}).stop_strings == ("end",)


@pytest.mark.parametrize("name", sorted(INERT_FIELDS))
def test_a_field_that_makes_no_difference_is_taken_whatever_it_holds(name: str) -> None:
    for value in (None, True, {"a": [1]}, "x"):
        assert parse({**GOOD, name: value}) == parse(GOOD)


@pytest.mark.parametrize(
    ("name", "neutral", "meant"),
    [
        ("modalities", ["text"], ["audio"]),
    ],
)
def test_a_field_that_is_not_there_yet_is_refused_by_name_when_it_is_meant(name: str, neutral: Any, meant: Any) -> None:
    assert parse({**GOOD, name: neutral}) == parse(GOOD)
    error = refused({**GOOD, name: meant})
    assert (error.param, error.code) == (name, "unsupported_parameter")


WRONG = [
    ({"messages": GOOD["messages"]}, "model", "missing_required_parameter"),
    ({"model": "small"}, "messages", "missing_required_parameter"),
    ({**GOOD, "colour": "blue"}, "colour", "unknown_parameter"),
    ({**GOOD, "Colour": "blue"}, "Colour", "unknown_parameter"),
    ({**GOOD, "123": "blue"}, "123", "unknown_parameter"),
    ({**GOOD, "constrained-str": 1}, "constrained-str", "unknown_parameter"),
    ({**GOOD, "n": -1}, "n", "invalid_value"),
    ({**GOOD, "n": 1.5}, "n", "invalid_value"),
    ({**GOOD, "n": 0}, "n", "invalid_value"),
    ({**GOOD, "n": 1e9}, "n", "invalid_value"),
    ({**GOOD, "n": "1"}, "n", "invalid_value"),
    ({**GOOD, "n": True}, "n", "invalid_value"),
    ({**GOOD, "messages": []}, "messages", "invalid_value"),
    ({**GOOD, "messages": "Hello?"}, "messages", "invalid_value"),
    ({**GOOD, "messages": [*GOOD["messages"]] * 6}, "messages", "invalid_value"),
    ({**GOOD, "messages": ["Hello?"]}, "messages.0", "invalid_value"),
    ({**GOOD, "messages": [{}]}, "messages.0.role", "missing_required_parameter"),
    ({**GOOD, "messages": [{"role": "pirate", "content": "x"}]}, "messages.0.role", "invalid_value"),
    (message(content="x", tool_calls=[]), "messages.0.tool_calls", "invalid_value"),
    (message(content=5), "messages.0.content", "invalid_value"),
    (message(content={"type": "text"}), "messages.0.content", "invalid_value"),
    (message(content=[]), "messages.0.content", "invalid_value"),
    (message(content=[{"type": "text"}]), "messages.0.content.0.text", "missing_required_parameter"),
    (message(content=[{"type": "text", "text": 1}]), "messages.0.content.0.text", "invalid_value"),
    (message(content=[{"type": "text", "text": "a"}, 7]), "messages.0.content.1", "invalid_value"),
    (
        message(content=[{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]),
        "messages.0.content.0.type",
        "invalid_value",
    ),
    ({**GOOD, "temperature": "hot"}, "temperature", "invalid_value"),
    ({**GOOD, "temperature": 2.1}, "temperature", "invalid_value"),
    ({**GOOD, "temperature": True}, "temperature", "invalid_value"),
    ({**GOOD, "top_p": 0}, "top_p", "invalid_value"),
    ({**GOOD, "max_tokens": 0}, "max_tokens", "invalid_value"),
    ({**GOOD, "max_tokens": 3.5}, "max_tokens", "invalid_value"),
    ({**GOOD, "stop": ["a"] * 5}, "stop", "invalid_value"),
    ({**GOOD, "stop": ["a", 1]}, "stop.1", "invalid_value"),
    ({**GOOD, "stop": ""}, "stop", "invalid_value"),
    ({**GOOD, "stop": "x" * 300}, "stop", "invalid_value"),
    ({**GOOD, "seed": 2**63}, "seed", "invalid_value"),
    ({**GOOD, "logit_bias": {"cat": 1}}, "logit_bias.cat", "invalid_value"),
    ({**GOOD, "logit_bias": {"17": 101}}, "logit_bias.17", "invalid_value"),
    ({**GOOD, "stream": "yes"}, "stream", "invalid_value"),
    ({**GOOD, "stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
    ({**GOOD, "user": ""}, "user", "invalid_value"),
    ({**GOOD, "user": "x" * 1025}, "user", "invalid_value"),
    ({**GOOD, "user": 5}, "user", "invalid_value"),
    ({**GOOD, "user": "ann", "safety_identifier": "bob"}, "safety_identifier", "invalid_value"),
    ({**GOOD, "reticent": {"sigma": 0.1}}, "reticent.sigma", "unknown_parameter"),
    ({**GOOD, "reticent": {"noise_scale": 0.1}}, "reticent.noise_scale", "unknown_parameter"),
    ({**GOOD, "reticent": {"rule": "best"}}, "reticent.rule", "invalid_value"),
    ({**GOOD, "reticent": {"evidence": "text"}}, "reticent.evidence", "invalid_value"),
    ({**GOOD, "reticent": {"evidence": ["a", 2]}}, "reticent.evidence.1", "invalid_value"),
    ({**GOOD, "reticent": {"evidence": []}}, "reticent.evidence", "invalid_value"),
    ({**GOOD, "reticent": []}, "reticent", "invalid_value"),
    ({**GOOD, "response_format": "json"}, "response_format", "invalid_value"),
    ({**GOOD, "response_format": {}}, "response_format.type", "missing_required_parameter"),
    ({**GOOD, "response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({**GOOD, "response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
    (
        {**GOOD, "response_format": {"type": "json_object", "json_schema": {"name": "x"}}},
        "response_format.json_schema",
        "invalid_value",
    ),
    (
        {**GOOD, "response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.name",
        "missing_required_parameter",
    ),
    (
        {**GOOD, "response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        "response_format.json_schema.name",
        "invalid_value",
    ),
    (
        {
            **GOOD,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "CANARY"}}},
        },
        "response_format.json_schema.schema",
        "invalid_value",
    ),
    (
        {**GOOD, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}},
        "response_format.json_schema.schema",
        "invalid_value",
    ),
]


@pytest.mark.parametrize(("document", "param", "code"), WRONG, ids=[f"{p}-{i}" for i, (_, p, _) in enumerate(WRONG)])
def test_a_wrong_field_is_named_as_the_client_knows_it(document: Any, param: str, code: str) -> None:
    error = refused(document)
    assert (error.param, error.code, error.status) == (param, code, 400)
    assert param in error.message
    json.dumps(envelope(error), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"model": "small", "messages": [NaN]}',
        b'{"model": "small", "temperature": Infinity}',
        b'{"model": "small", "model": "large"}',
        b'{"messages": [{"role": "user", "role": "system"}]}',
        b'{"model": "\xff"}',
        '{"model": "small"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"model": "small"}',
        b'{"model": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
        b"[]",
        b"null",
        b'"text"',
        b"7",
    ],
)
def test_a_body_that_is_not_one_clean_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat_request(body, max_messages=5)
    assert caught.value.param is None


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat_request(b'{"model": "small", "messages": [], "temperature": 1e999}', max_messages=5)
    assert caught.value.param in ("messages", "temperature")


def test_characters_outside_the_basic_plane_are_taken() -> None:
    body = b'{"model": "small", "messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}'
    assert parse_chat_request(body, max_messages=5).messages[0].text == "\U0001f600"


@pytest.mark.parametrize(
    "document",
    [
        {**GOOD, "temperature": "CANARY"},
        {**GOOD, "user": ["CANARY"]},
        message(content=[{"type": "text", "text": ["CANARY"]}]),
        message(content=[{"type": "CANARY", "CANARY": "CANARY"}]),
        {**GOOD, "stop": [["CANARY"]]},
        {**GOOD, "reticent": {"rule": "CANARY"}},
        {**GOOD, "logit_bias": {"1": "CANARY"}},
    ],
)
def test_a_refusal_repeats_no_value(document: Any) -> None:
    assert "CANARY" not in json.dumps(envelope(refused(document)))


def test_a_very_long_name_is_cut_in_the_refusal() -> None:
    assert len(json.dumps(envelope(refused({**GOOD, "x" * 100_000: 1})))) < 500


# --- the work that a body makes -----------------------------------------------------------------------------------


def many(count: int, value: Any = 0) -> dict[str, Any]:
    return {f"k{i}": value for i in range(count)}


ROOMY: list[tuple[Any, str]] = [
    ({**GOOD, "messages": [{"role": "user", "content": [{}] * 95}] * 100}, "messages.0.content.0.type"),
    ({**GOOD, "messages": [{"role": "user", "content": [{"type": "text"}] * 60}] * 100}, "messages.0.content.0.text"),
    ({**GOOD, "messages": [{"a": 1}] * 100}, "messages.0.role"),
    ({**GOOD, "messages": [5] * 100}, "messages.0"),
    ({**GOOD, "reticent": {"evidence": [1] * 10_000}}, "reticent.evidence.0"),
    ({**GOOD, "reticent": {"evidence": ["a"] * 10_000}}, "reticent.evidence"),
    ({**GOOD, "stop": [1] * 10_000}, "stop"),
]
"""Bodies within the limits that are wrong in as many places as fit, and the field that is named."""


@pytest.mark.parametrize(("document", "param"), ROOMY, ids=[param for _, param in ROOMY])
def test_a_body_that_is_wrong_all_over_is_not_read_beyond_its_first_faults(
    document: Any, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError) as found:
        ChatRequest.model_validate(document)
    assert found.value.error_count() <= 10
    read = count_calls(monkeypatch, "_field")
    error = refused_of_many(document)
    assert error.param == param
    assert len(read) <= 10


@pytest.mark.parametrize("place", ["reticent", "stream_options", "logit_bias", "message", "part", "everywhere"])
def test_the_number_of_errors_that_are_read_is_bounded(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = many(MAX_KEYS)
    part = full if place in ("part", "everywhere") else {"type": "text", "text": "x"}
    message = full if place in ("message", "everywhere") else {"role": "user"}
    names = ("reticent", "stream_options", "logit_bias")
    fields = {name: full for name in names if place in (name, "everywhere")}
    document = {**GOOD, "messages": [{**message, "content": [part]} if place != "message" else message], **fields}
    read = count_calls(monkeypatch, "_field")
    refused_of_many(document)
    assert len(read) <= 20


def test_unknown_fields_are_refused_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_calls(monkeypatch, "_field")
    error = refused_of_many({**GOOD, **many(MAX_KEYS - len(GOOD))})
    assert (error.param, error.code) == ("k0", "unknown_parameter")
    assert read == []


def test_too_many_keys_of_one_object_are_refused() -> None:
    assert parse({**GOOD, "metadata": many(MAX_KEYS)}) == parse(GOOD)
    assert str(MAX_KEYS) in refused({**GOOD, "metadata": many(MAX_KEYS + 1)}).message
    assert refused({**GOOD, "logit_bias": {str(i): 0 for i in range(1025)}}).param == "logit_bias"


@pytest.mark.parametrize(
    "value",
    [
        [0] * MAX_VALUES,
        [[]] * MAX_VALUES,
        [{}] * MAX_VALUES,
        [""] * MAX_VALUES,
        ['"'] * MAX_VALUES,
        ["\\"] * MAX_VALUES,
        many(MAX_VALUES, "x"),
        [{"": ""}] * MAX_VALUES,
    ],
    ids=["numbers", "lists", "objects", "texts", "quotes", "backslashes", "keys", "pairs"],
)
def test_a_body_of_too_many_values_is_refused_before_any_is_made(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({**GOOD, "metadata": value}).encode()
    monkeypatch.setattr("reticent.plugin.wire.json.loads", None)
    with pytest.raises(BadRequest, match=f"at most {MAX_VALUES} values"):
        parse_chat_request(body, max_messages=5)


@pytest.mark.parametrize("text", [",[{" * 100_000, '"' * 100_000, "\\" * 100_000, '\\",' * 100_000, ',"\\' * 100_000])
def test_what_stands_in_a_text_is_not_counted(text: str) -> None:
    assert parse(message(content=text)).messages[0].text == text


def test_as_many_values_as_are_allowed_are_taken() -> None:
    parts = [{"type": "text", "text": '\\"[{,'}] * 900
    document = {**GOOD, "messages": [{"role": "user", "content": parts}] * 7}
    assert wire._values(json.dumps(document).encode()) < MAX_VALUES
    assert len(parse_chat_request(json.dumps(document).encode(), max_messages=10).messages) == 7


def slow_values(document: Any) -> int:
    """Every object and list, and every member of either but the first."""
    if isinstance(document, dict):
        return 1 + max(0, len(document) - 1) + sum(map(slow_values, document.values()))
    if isinstance(document, list):
        return 1 + max(0, len(document) - 1) + sum(map(slow_values, document))
    return 0


awkward = st.text(st.sampled_from('\\"[]{},: aé\n'), max_size=12)
awkward_json = st.recursive(
    st.none() | st.integers() | awkward,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(awkward, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(awkward_json, st.booleans(), st.sampled_from([None, 1]))
def test_values_are_counted_as_a_walk_counts_them(document: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    assert wire._values(body) == slow_values(document)


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    calls: list[str] = []
    real = getattr(wire, name)

    def counted(*arguments: Any) -> Any:
        calls.append(name)
        return real(*arguments)

    monkeypatch.setattr(wire, name, counted)
    return calls


def refused_of_many(document: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse_chat_request(json.dumps(document).encode(), max_messages=100)
    return caught.value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from([*ChatRequest.model_fields, *INERT_FIELDS, "tools", "colour"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(fields, json_values, max_size=4))
def test_whatever_a_client_sends_it_is_taken_or_refused_in_form(changes: dict[str, Any]) -> None:
    try:
        parse({**GOOD, **changes})
        return
    except ApiError as refusal:
        error = refusal
    assert error.status == 400
    assert len(json.dumps(envelope(error), ensure_ascii=False).encode()) < 2000
