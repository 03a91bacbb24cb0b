"""What `EngineSource` makes of the engine's outputs, with outputs of the engine's form made by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from reticent.plugin.candidates.engine import EngineSource, _candidate, _is_clients_fault
from reticent.plugin.ports import Candidate, Prompt, SamplingParameters
from reticent.plugin.tools import ToolUse
from reticent.rewards import Subject


def output(text: str, tokens: list[str], **more: Any) -> Any:
    """An output whose token number i spells `tokens[i]`, with two other tokens beside each."""
    logs = [
        {
            i: SimpleNamespace(logprob=-0.5 - i, decoded_token=token),
            1000: SimpleNamespace(logprob=-0.25, decoded_token="more"),
            1001: SimpleNamespace(logprob=float("-inf"), decoded_token=None),
        }
        for i, token in enumerate(tokens)
    ]
    made = SimpleNamespace(text=text, token_ids=list(range(len(tokens))), logprobs=logs, index=0)
    made.finish_reason, made.stop_reason = "stop", None
    for name, value in more.items():
        setattr(made, name, value)
    return made


def candidate(out: Any, shown: int | None = 2, read: int = 0) -> Candidate:
    return _candidate(out, 7, SamplingParameters(0.7, 1.0, 16, shown=shown, top_log_probabilities=read))


def spelled(found: Candidate) -> list[str]:
    assert found.positions is not None
    return [p.chosen.text for p in found.positions]


def test_the_end_token_is_not_shown() -> None:
    found = candidate(output("It is", ["It", " is", "<|im_end|>"]))
    assert spelled(found) == ["It", " is"]
    assert found.completion_tokens == 3


@pytest.mark.parametrize(
    ("text", "tokens", "kept"),
    [
        ("It is", ["It", " is", " E", "ND"], 2),
        ("It i", ["It", " isE", "ND so"], 2),
        ("", ["EN", "D"], 0),
    ],
    ids=["between tokens", "inside a token", "at once"],
)
def test_the_tokens_of_a_stop_string_are_not_shown(text: str, tokens: list[str], kept: int) -> None:
    assert spelled(candidate(output(text, tokens, stop_reason="END"))) == tokens[:kept]


def test_a_character_of_several_tokens_is_shown_with_all_its_bytes() -> None:
    found = candidate(output("A 🏮!", ["A", " ", "", "", "🏮", "!", "<end>"]))
    assert found.positions is not None
    assert bytes(b for p in found.positions for b in p.chosen.utf8 or ()).decode() == "A 🏮!"


def test_a_character_that_was_cut_off_is_in_no_text() -> None:
    found = candidate(output("A ", ["A", " ", "", ""], finish_reason="length"))
    assert spelled(found) == ["A", " "]
    assert found.finish_reason == "length"


def test_the_most_probable_tokens_come_first_and_a_score_reads_no_more_than_it_asked_for() -> None:
    found = candidate(output("It is", ["It", " is", "<end>"]), shown=3, read=1)
    assert found.positions is not None
    assert [t.text for t in found.positions[0].top] == ["more", "It", ""]
    assert [t.log_probability for t in found.positions[0].top] == [-0.25, -0.5, -9999.0]
    assert found.top_log_probabilities == ((-0.25,), (-0.25,))
    assert found.log_probabilities == (-0.5, -1.5)


def test_nothing_is_shown_unless_it_was_asked_for() -> None:
    assert candidate(output("It", ["It", "<end>"]), shown=None).positions is None
    assert candidate(output("It", ["It", "<end>"]), shown=0).positions != ()


def test_vllms_own_class_of_client_errors_is_the_clients_fault() -> None:
    class VLLMClientError(Exception):
        """As vLLM 0.32 has it: no `ValueError`."""

    class VLLMValidationError(VLLMClientError):
        pass

    faults = [VLLMValidationError("x"), ValueError("x"), TypeError("x")]
    assert all(_is_clients_fault(error) for error in faults)
    assert not any(_is_clients_fault(error) for error in (RuntimeError("x"), OSError("x")))


class Parser:
    """A parser of vLLM's form: `<think>…</think>` is reasoning, a line `CALL name arguments` a call."""

    def __init__(self, tokenizer: Any, tools: Any, *, chat_template_kwargs: Any, model_config: Any) -> None:
        assert (tokenizer, chat_template_kwargs, model_config) == ("tokenizer", {"k": 1}, "config")
        self.prompt: list[int] = []

    def set_prompt_token_ids(self, tokens: list[int]) -> None:
        self.prompt = tokens

    def parse(
        self, text: str, request: Any, *, enable_auto_tools: bool, model_output_token_ids: Any
    ) -> tuple[str | None, str | None, list[Any] | None]:
        assert self.prompt == [5, 6]
        assert enable_auto_tools
        reasoning, closed, content = text.partition("</think>")
        if not closed:
            return (text, None, None) if text.startswith("<think>") else (None, *self._calls(text))
        return (reasoning, *self._calls(content))

    def _calls(self, text: str) -> tuple[str | None, list[Any] | None]:
        lines = text.splitlines()
        words = [line.split(" ", 2) for line in lines if line.startswith("CALL ")]
        calls = [SimpleNamespace(id=None, name=name, arguments=arguments) for _, name, arguments in words]
        content = "\n".join(line for line in lines if not line.startswith("CALL "))
        return content or None, calls or None


def read(text: str, tokens: list[str], *, parallel: bool | None = None, tools: bool = True) -> Candidate:
    """What the source makes of an output where vLLM has a parser."""
    chat = SimpleNamespace(
        parser_cls=Parser,
        renderer=SimpleNamespace(tokenizer="tokenizer"),
        model_config="config",
        enable_auto_tools=True,
        _effective_chat_template_kwargs=lambda request: {"k": 1},
    )
    use = ToolUse(({"type": "function", "function": {"name": "look"}},), None, parallel) if tools else None
    request = SimpleNamespace(tools=None, parallel_tool_calls=parallel)
    sampling = SamplingParameters(0.7, 1.0, 16, shown=0, tools=use)
    return EngineSource(None, chat, "m")._read(output(text, tokens), request, [5, 6], sampling)


def test_reasoning_is_neither_the_answer_nor_shown() -> None:
    found = read("<think>Hm.</think>It is.", ["<think>", "Hm.", "</think>", "It", " is.", "<end>"])
    assert found.text == "It is."
    assert spelled(found) == ["It", " is."]
    assert found.completion_tokens == 6
    assert found.tool_calls == ()


def test_an_answer_that_ends_inside_its_reasoning_is_empty() -> None:
    found = read("<think>Hm. It", ["<think>", "Hm.", " It"])
    assert (found.text, found.judged, spelled(found)) == ("", "", [])


def test_calls_are_taken_out_of_the_text_and_named() -> None:
    found = read('I look.\nCALL look {"x": 1}\nCALL look {"x": 2}', ["I look."])
    assert found.text == "I look."
    assert [call.arguments for call in found.tool_calls] == ['{"x": 1}', '{"x": 2}']
    assert len({call.id for call in found.tool_calls}) == 2
    assert all(call.id.startswith("call_") for call in found.tool_calls)


def test_without_parallel_calls_the_first_one_counts() -> None:
    text = 'CALL look {"x": 1}\nCALL look {"x": 2}'
    assert len(read(text, ["CALL"], parallel=False).tool_calls) == 1


def test_who_offers_no_tools_gets_no_calls() -> None:
    assert read('Well.\nCALL look {"x": 1}', ["Well."], tools=False).tool_calls == ()


@pytest.mark.parametrize(("temperature", "drawn"), [(0.0, 1), (0.7, 4)])
def test_without_a_temperature_one_candidate_is_drawn_and_stands_for_all(
    monkeypatch: pytest.MonkeyPatch, temperature: float, drawn: int
) -> None:
    asked: list[int] = []

    async def render(self: Any, messages: Any, sampling: Any, count: int, salt: str, offset: int) -> Any:
        asked.append(count)
        request = SimpleNamespace(to_sampling_params=lambda *_: None, tools=None, parallel_tool_calls=None)
        return request, {"prompt_token_ids": [5, 6]}

    async def generate(self: Any, *_: Any) -> Any:
        return SimpleNamespace(outputs=[output(f"It {i}", ["It", f" {i}", "<end>"], index=i) for i in range(asked[0])])

    monkeypatch.setattr(EngineSource, "_render", render)
    monkeypatch.setattr(EngineSource, "_generate", generate)
    engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=100))
    chat = SimpleNamespace(default_sampling_params={}, parser_cls=None)
    prompt = Prompt(({"role": "user", "content": "x"},), None, Subject("x"), "plain", "")
    source = EngineSource(engine, chat, "m")
    found = asyncio.run(source.draw(prompt, SamplingParameters(temperature, 1.0, 8), 4, salt="t", offset=0))
    assert asked == [drawn]
    assert len({c.text for c in found}) == drawn
    assert len({id(c) for c in found}) == 4, "two candidates with the same text are two candidates"
