"""The request as it comes over the wire: OpenAI's chat completion request, with the `reticent` extension.

A field that nobody knows is refused rather than ignored. Fields of OpenAI's that make no difference here are accepted
and listed in `INERT_FIELDS`; those that would make one but are not there yet are refused by name.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from reticent.accounting.scope_ids import MAX_USER_NAME
from reticent.plugin.errors import BadRequest
from reticent.plugin.json_schema import require_schema
from reticent.plugin.settings import RuleName

__all__ = [
    "INERT_FIELDS",
    "MAX_KEYS",
    "MAX_VALUES",
    "Call",
    "CalledFunction",
    "ChatRequest",
    "ChosenFunction",
    "Extension",
    "Form",
    "Function",
    "JsonSchema",
    "Message",
    "RefusalPart",
    "StreamOptions",
    "TextPart",
    "Tool",
    "ToolChoice",
    "parse_chat_request",
]

INERT_FIELDS = frozenset(
    {"store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "metadata", "verbosity"}
)
"""OpenAI's fields that are accepted and change nothing."""

_NOT_HERE = {
    "functions": "functions are not supported",
    "function_call": "functions are not supported",
    "audio": "only text is supported",
    "modalities": "only text is supported",
    "prediction": "predicted outputs are not supported",
    "reasoning_effort": "reasoning effort is not supported",
    "web_search_options": "web search is not supported",
}
_NEUTRAL: tuple[Any, ...] = (None, False, [], {"type": "text"}, ["text"], "none")
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_ECHO = 100
_MAX_ERRORS_READ = 20
_MAX_DEPTH_MESSAGE = "The request body is nested too deeply."

MAX_NAME = 256
MAX_VALUES = 20_000
"""Most objects, lists and members of either in a body. Counted before any is made: a body of a megabyte has room for
hundreds of thousands, which take the event loop a second to check and to report on."""
MAX_KEYS = 2_000
"""Most keys of one object in a body; above the longest `logit_bias`, so that this one is still refused by name."""
_Text = Annotated[str, Field(max_length=1_000_000)]
_FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(_Strict):
    """One part of a message's content; only text parts exist here."""

    type: Literal["text"]
    text: _Text


class RefusalPart(_Strict):
    """A part of an assistant's message that says that it refused."""

    type: Literal["refusal"]
    refusal: _Text


class CalledFunction(_Strict):
    """Which function an assistant called, and with what: the arguments are the text that the model wrote."""

    name: _FunctionName
    arguments: _Text


class Call(_Strict):
    """A call of a tool in an assistant's message."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    type: Literal["function"]
    function: CalledFunction


class Message(_Strict):
    """One message of the conversation. Which fields go with which role is checked by `parse_chat_request`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        _Text | Annotated[list[TextPart | RefusalPart], Field(min_length=1, max_length=1000, fail_fast=True)] | None
    ) = None
    name: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    refusal: _Text | None = None
    tool_calls: Annotated[list[Call], Field(min_length=1, max_length=128, fail_fast=True)] | None = None
    tool_call_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None

    @property
    def text(self) -> str:
        """The content as one string (an assistant's refusal counts as what it said)."""
        if isinstance(self.content, list):
            return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in self.content)
        return self.content if self.content is not None else (self.refusal or "")


class Function(_Strict):
    """A function that a model may call. Its parameters are a schema, of which `json_schema.py` must make sense."""

    name: _FunctionName
    description: _Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _can_be_read(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            require_schema(schema)
        return schema


class Tool(_Strict):
    """A tool; only functions exist here."""

    type: Literal["function"]
    function: Function


class ChosenFunction(_Strict):
    """The name of a function."""

    name: _FunctionName


class ToolChoice(_Strict):
    """The one function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(_Strict):
    """A schema for the answer, and its name. What of a schema is checked here: `json_schema.py`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: _Text | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @field_validator("definition")
    @classmethod
    def _can_be_read(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            require_schema(schema)
        return schema


class Form(_Strict):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Extension(_Strict):
    """The `reticent` field of a request. A client can only be stricter than its tenant's policy."""

    rule: RuleName | None = None
    candidates: Annotated[int, Field(ge=1)] | None = None
    evidence: Annotated[list[_Text], Field(min_length=1, max_length=64, fail_fast=True)] | None = None
    on_exhausted: Literal["base", "refuse"] | None = None
    gate: Literal["abstain", "observe"] | None = None
    subgroup: Annotated[str, Field(max_length=MAX_NAME)] | None = None


class ChatRequest(_Strict):
    """A chat completion request, checked for form. What the configuration allows is checked by `resolve`."""

    model: Annotated[str, Field(max_length=MAX_NAME)]
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    stop: (
        Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=MAX_NAME)]], Field(max_length=4)]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=1024),
        ]
        | None
    ) = None
    n: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(min_length=1, max_length=MAX_USER_NAME)] | None = None
    safety_identifier: Annotated[str, Field(min_length=1, max_length=MAX_USER_NAME)] | None = None
    response_format: Form | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reticent: Extension | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def usage_in_stream(self) -> bool:
        """Whether the stream is to end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


def parse_chat_request(body: bytes, *, max_messages: int) -> ChatRequest:
    """Read a request body.

    Raises:
        BadRequest: not JSON, too much of it, unknown or wrong fields; `param` names the first one. Values are not
            repeated.
    """
    document = _load(body)
    for name in [name for name in document if name in INERT_FIELDS]:
        del document[name]
    for name in [name for name in document if name in _NOT_HERE]:
        if document[name] not in _NEUTRAL:
            _refuse(f"{_NOT_HERE[name]} by this server.", name, "unsupported_parameter")
        del document[name]
    for name in document:
        if name not in ChatRequest.model_fields:
            _refuse_unknown(name)
    messages = document.get("messages")
    if isinstance(messages, list) and len(messages) > max_messages:
        _refuse(f"At most {max_messages} messages are allowed.", "messages")
    try:
        request = ChatRequest.model_validate(document)
    except ValidationError as error:
        _refuse_first(error, document)
    _check_fields(request)
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages.{index}")
    return request


def _check_fields(request: ChatRequest) -> None:
    """What one field says of another."""
    if request.user is not None and request.safety_identifier not in (None, request.user):
        _refuse("user and safety_identifier name different users.", "safety_identifier")
    if request.top_logprobs is not None and not request.logprobs:
        _refuse("top_logprobs needs logprobs to be true.", "top_logprobs")
    form = request.response_format
    if form is not None and (form.type == "json_schema") is not (form.json_schema is not None):
        _refuse("response_format.json_schema goes with the type 'json_schema'.", "response_format.json_schema")
    choice, names = request.tool_choice, [tool.function.name for tool in request.tools or ()]
    if len(set(names)) != len(names):
        _refuse("Two tools have the same name.", "tools")
    if not names and choice not in (None, "none"):
        _refuse("tool_choice needs tools.", "tool_choice")
    if isinstance(choice, ToolChoice) and choice.function.name not in names:
        _refuse("tool_choice names a function that is not among the tools.", "tool_choice.function.name")


def _check_message(message: Message, path: str) -> None:
    """Which fields a message of its role may and must have."""
    assistant, tool = message.role == "assistant", message.role == "tool"
    if message.tool_calls is not None and not assistant:
        _refuse_unknown(f"{path}.tool_calls")
    if message.tool_call_id is not None and not tool:
        _refuse_unknown(f"{path}.tool_call_id")
    for name in ("tool_call_id", "content") if tool else ():
        if getattr(message, name) is None:
            _refuse(f"Missing required parameter: '{path}.{name}'.", f"{path}.{name}", "missing_required_parameter")
    for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if isinstance(part, RefusalPart) and not assistant:
            place = f"{path}.content.{index}.type"
            _refuse(f"Invalid value for '{place}': only text parts are supported.", place)


def _load(body: bytes) -> dict[str, Any]:
    if _values(body) > MAX_VALUES:
        raise BadRequest(f"The request body may hold at most {MAX_VALUES} values.")
    try:
        document = json.loads(
            body.decode("utf-8"), object_pairs_hook=_object_without_repeats, parse_constant=_no_constant
        )
        if _HALF_A_PAIR.search(body):
            # Half of a surrogate pair is no character: no tokenizer and no log could take it.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise BadRequest(_MAX_DEPTH_MESSAGE) from None
    except ValueError:
        raise BadRequest("We could not parse the JSON body of your request.") from None
    if not isinstance(document, dict):
        raise BadRequest("The request body must be a JSON object.")
    return document


def _values(body: bytes) -> int:
    """How many objects and lists, and members of either beyond the first, a JSON text has.

    Reads bytes alone, in a few passes: without escapes, every second piece between quotation marks is a string, and
    every member but the first of its list or object follows a comma. Of a text that is no JSON, it counts at least
    what stands before the first fault, and so at least what a parser would make of it.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * MAX_VALUES:
        # Each value has at most two strings, itself and its key, so that these are too many however they are split.
        return MAX_VALUES + 1
    outside = b"".join(plain.split(b'"')[::2])
    return sum(outside.count(mark) for mark in (b",", b"[", b"{"))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two values for one key, readers on the way may have seen either."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    if len(found) > MAX_KEYS:
        raise BadRequest(f"An object in the request body may have at most {MAX_KEYS} keys.")
    return found


def _refuse(message: str, param: str | None, code: str | None = None) -> NoReturn:
    raise BadRequest(message, param, code)


def _refuse_unknown(path: str) -> NoReturn:
    param = path[:_MAX_ECHO]
    _refuse(f"Unrecognized request argument supplied: {param}.", param, "unknown_parameter")


def _refuse_first(error: ValidationError, document: dict[str, Any]) -> NoReturn:
    """Turn the first wrong field into OpenAI's form: which field, what was wrong, not what was sent.

    Where several forms of a field are allowed (a text or a list of parts), pydantic reports what is wrong with each;
    the form whose error lies deepest is the one that was meant. Errors of one field stand together, and lists stop at
    their first wrong element, so that the first few errors hold all forms of the first wrong field.
    """
    reported = error.errors(include_url=False, include_context=False, include_input=False)
    found = [(_field(e["loc"], e["type"] == "missing", document), e) for e in islice(reported, _MAX_ERRORS_READ)]
    start = found[0][0]
    path, first = max((pair for pair in found if pair[0][: len(start)] == start), key=lambda pair: len(pair[0]))
    param = ".".join(path)[:_MAX_ECHO] or None
    if first["type"] == "extra_forbidden":
        _refuse_unknown(".".join(path))
    if first["type"] == "missing":
        _refuse(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    if path[0] == "messages" and path[-1] == "type" and first["type"] == "literal_error":
        _refuse(f"Invalid value for '{param}': only text parts are supported.", param)
    _refuse(f"Invalid value for '{param}': {first['msg']}.", param)


def _field(location: tuple[int | str, ...], missing: bool, document: Any) -> list[str]:
    """The part of an error's location that is in the request: pydantic adds names of union branches to it."""
    path: list[str] = []
    for left, step in enumerate(location, start=1 - len(location)):
        if isinstance(document, dict) and isinstance(step, str) and (step in document or (missing and left == 0)):
            document = document.get(step)
        elif isinstance(document, list) and isinstance(step, int) and step < len(document):
            document = document[step]
        else:
            continue
        path.append(str(step))
    return path
