"""Every kind of answer, over a real socket with the real `openai` client, against OpenAI's published schemas.

The schemas are those of OpenAI's OpenAPI document for chat completions (`shared/data/openai/chat_schemas.json`, beside
the repository or where `RETICENT_OPENAI_SCHEMAS` says); without them, or without `jsonschema`, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from reticent.plugin.tools import ToolCall
from tests.fakes.build import KEYS, MODEL, World, chat_body, make_world
from tests.fakes.parts import FakeSource
from tests.fakes.serving import open_with_app, serving

CHAT = "/v1/chat/completions"
ROOT = Path(__file__).resolve().parents[2]
PLACES = (ROOT / "shared", ROOT.parent / "shared")
MESSAGES: Any = [{"role": "user", "content": "What hangs in the hall?"}]
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
JSON_FORM: Any = {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "object"}}}


def _schemas() -> dict[str, Any]:
    named = os.environ.get("RETICENT_OPENAI_SCHEMAS")
    places = [Path(named)] if named else [place / "data" / "openai" / "chat_schemas.json" for place in PLACES]
    for place in places:
        if place.is_file():
            found: dict[str, Any] = json.loads(place.read_text())["components"]["schemas"]
            return found
    pytest.skip("OpenAI's schemas are not there (RETICENT_OPENAI_SCHEMAS)")


def _nullable(schema: Any) -> Any:
    """OpenAPI's `nullable: true` in JSON Schema's words."""
    if isinstance(schema, list):
        return [_nullable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _nullable(value) for name, value in schema.items() if name != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


class Contract:
    """Validates documents by a component's name."""

    def __init__(self, schemas: dict[str, Any], library: Any) -> None:
        self._components = {"components": {"schemas": _nullable(schemas)}}
        self._library = library

    def holds(self, component: str, document: Any) -> None:
        schema = {**self._components, "$ref": f"#/components/schemas/{component}"}
        self._library.Draft202012Validator(schema).validate(document)

    def refuses(self, component: str, document: Any) -> None:
        with pytest.raises(self._library.ValidationError):
            self.holds(component, document)


@pytest.fixture(scope="module")
def contract() -> Contract:
    library = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    return Contract(_schemas(), library)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, World]]:
    source = FakeSource(text=lambda i: '{"lamp": "copper \U0001f3ee"}')
    source.calls = lambda index: (ToolCall(f"c{index}", "look", "{}"),)
    made = make_world(tmp_path, {"tenants.1.user_budget.epsilon": 2.0}, source=source)
    with serving(open_with_app(made)) as url:
        yield url, made


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("lenient", {}),
    "withheld": ("strict", {}),
    "three": ("lenient", {"n": 3}),
    "log-probabilities": ("lenient", {"logprobs": True, "top_logprobs": 2, "n": 2}),
    "tools": ("lenient", {"tools": TOOLS, "n": 2}),
    "a form": ("lenient", {"response_format": JSON_FORM}),
    "stop": ("lenient", {"stop": ["x", "y"], "max_tokens": 1}),
    "privitp": ("lenient", {"reticent": {"rule": "privitp"}, "n": 2}),
    "not private": ("open", {"reticent": {"rule": "bon"}}),
    "everything": (
        "lenient",
        {"n": 2, "logprobs": True, "top_logprobs": 1, "tools": TOOLS, "tool_choice": "required", "seed": 5},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_and_its_stream_obey_openais_schemas(
    served: tuple[str, World], contract: Contract, kind: str
) -> None:
    url, _ = served
    tenant, more = KINDS[kind]
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEYS[tenant]}"}, timeout=30.0) as client:
        request = chat_body(**more)
        contract.holds("CreateChatCompletionRequest", {k: v for k, v in request.items() if k != "reticent"})
        response = client.post(CHAT, json=request)
        assert response.status_code == 200, response.text
        whole = response.json()
        contract.holds("CreateChatCompletionResponse", whole)
        assert len(whole["choices"]) == more.get("n", 1)
        body = chat_body(stream=True, stream_options={"include_usage": True}, **more)
        blocks = client.post(CHAT, json=body).text.split("\n\n")
        chunks = [json.loads(b.removeprefix("data: ")) for b in blocks if b.startswith("data: {")]
        for chunk in chunks:
            contract.holds("CreateChatCompletionStreamResponse", chunk)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("more", "status"), [({"n": 0}, 400), ({"model": "other"}, 404), ({"reticent": {"rule": "bon"}}, 403)]
)
def test_an_error_and_the_list_of_models_obey_openais_schemas(
    served: tuple[str, World], contract: Contract, more: dict[str, Any], status: int
) -> None:
    url, _ = served
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEYS['strict']}"}, timeout=30.0) as client:
        response = client.post(CHAT, json=chat_body(**more))
        assert response.status_code == status
        contract.holds("ErrorResponse", response.json())
        contract.holds("ListModelsResponse", client.get("/v1/models").json())


def test_the_schemas_refuse_what_is_not_openais(contract: Contract) -> None:
    """The twin that must fail: a validator that takes everything would prove nothing."""
    contract.refuses("CreateChatCompletionResponse", {"id": "x"})
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "done", "logprobs": None}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    contract.refuses("CreateChatCompletionResponse", whole)
    contract.refuses("CreateChatCompletionStreamResponse", {**whole, "object": "chat.completion.chunk"})


def test_the_synchronous_client_reads_every_kind(served: tuple[str, World]) -> None:
    url, _ = served
    for tenant, more in KINDS.values():
        fields = {k: v for k, v in more.items() if k != "reticent"}
        extra = {k: v for k, v in more.items() if k == "reticent"}
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[tenant], max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra, **fields)
            assert [choice.index for choice in answer.choices] == list(range(more.get("n", 1)))
            for choice in answer.choices:
                assert (choice.message.refusal is not None) is (tenant == "strict")
                if "tools" in more:
                    assert choice.message.tool_calls
                    assert choice.finish_reason == "tool_calls"
                elif tenant != "strict":
                    assert json.loads(choice.message.content or "")["lamp"].startswith("copper")
                assert (choice.logprobs is not None) is bool(more.get("logprobs"))


def test_the_synchronous_clients_stream_helper_puts_choices_together(served: tuple[str, World]) -> None:
    url, _ = served
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS["lenient"], max_retries=0) as client:
        for more in ({"n": 3}, {"n": 2, "tools": TOOLS}, {"logprobs": True, "top_logprobs": 2}):
            fields: dict[str, Any] = more
            with client.chat.completions.stream(
                model=MODEL, messages=MESSAGES, stream_options={"include_usage": True}, **fields
            ) as stream:
                whole = stream.get_final_completion()
            assert [choice.index for choice in whole.choices] == list(range(fields.get("n", 1)))
            for choice in whole.choices:
                if "tools" in fields:
                    assert choice.finish_reason == "tool_calls"
                    assert choice.message.tool_calls is not None
                    assert [c.function.name for c in choice.message.tool_calls] == ["look"]
                else:
                    assert choice.finish_reason == "stop"
                    assert choice.message.content == '{"lamp": "copper \U0001f3ee"}'
                if fields.get("logprobs"):
                    assert choice.logprobs is not None
                    told = choice.logprobs.content or []
                    assert "".join(token.token for token in told) == choice.message.content
            assert whole.usage is not None


def test_the_asynchronous_client_reads_answers_and_streams(served: tuple[str, World]) -> None:
    url, _ = served

    async def story() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEYS["lenient"], max_retries=0) as client:

            async def one(n: int) -> int:
                answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=n)
                return len(answer.choices)

            assert list(await asyncio.gather(one(1), one(2), one(3))) == [1, 2, 3]
            texts = ["", ""]
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, stream=True)
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
            assert texts == ['{"lamp": "copper \U0001f3ee"}'] * 2
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=512)
            assert caught.value.param == "n"

    asyncio.run(story())
