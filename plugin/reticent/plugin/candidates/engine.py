"""Candidates from the vLLM engine in this process, reached as vLLM's own chat handler reaches it."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from typing import Any

from reticent.plugin.candidates.positions import fitted, position
from reticent.plugin.errors import PromptRefused, SourceUnavailable
from reticent.plugin.ports import Candidate, Position, Prompt, SamplingParameters
from reticent.plugin.tools import ToolCall, new_call_id

__all__ = ["EngineSource"]


class EngineSource:
    """Draws through `engine_client.generate`, one request for a whole chunk, which shares the prefill.

    Args:
        engine_client: vLLM's engine client (`init_state` of an endpoint plugin is given it).
        serving_chat: vLLM's chat handler, for its chat template and its checks.
        model: the served model's name.
    """

    def __init__(self, engine_client: Any, serving_chat: Any, model: str) -> None:
        self._engine = engine_client
        self._chat = serving_chat
        self._model = model

    async def draw(
        self, prompt: Prompt, sampling: SamplingParameters, count: int, *, salt: str, offset: int
    ) -> list[Candidate]:
        """See `CandidateSource.draw`."""
        # Without a temperature all candidates are the same one, and vLLM refuses to draw it more than once.
        different = 1 if sampling.temperature == 0.0 else count
        request, engine_input = await self._render(prompt.messages, sampling, different, salt, offset)
        tokens = engine_input["prompt_token_ids"]
        room = int(self._engine.model_config.max_model_len) - len(tokens)
        if room < sampling.max_tokens:
            # Refused rather than shortened: an answer cut shorter would not be the one that was certified.
            raise PromptRefused(
                f"This model's maximum context length is {self._engine.model_config.max_model_len} tokens. "
                f"Your messages have {len(tokens)}, and {sampling.max_tokens} were asked for the answer.",
                "messages",
            )
        stops = self._chat.default_sampling_params.get("stop_token_ids")
        param = "messages" if sampling.response_format is None else "response_format"
        try:
            parameters = request.to_sampling_params(sampling.max_tokens, {"stop_token_ids": stops} if stops else {})
        except Exception as error:
            if not _is_clients_fault(error):
                raise
            raise PromptRefused(f"The engine refuses this request: {error}", param) from None
        output = await self._generate(engine_input, parameters, param, self._reasoning(request, tokens))
        found = {o.index: self._read(o, request, tokens, sampling) for o in output.outputs}
        lost = Candidate("", "error", 0, len(tokens))
        return [replace(found.get(index if different == count else 0, lost)) for index in range(count)]

    async def score_without_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        """See `CandidateSource.score_without_evidence`: the answer's own tokens after the prompt without evidence."""
        return await self._forced(prompt.bare_messages, answer, salt)

    async def score_with_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        """See `CandidateSource.score_with_evidence`."""
        return await self._forced(prompt.messages, answer, salt)

    async def _forced(
        self, messages: tuple[dict[str, Any], ...] | None, answer: Candidate, salt: str
    ) -> tuple[float, ...]:
        if messages is None or not answer.tokens:
            return ()
        from vllm import SamplingParams

        plain = SamplingParameters(temperature=0.0, top_p=1.0, max_tokens=1)
        _, engine_input = await self._render(messages, plain, 1, salt, 0)
        context = list(engine_input["prompt_token_ids"])
        forced = {"type": "token", "prompt_token_ids": [*context, *answer.tokens], "cache_salt": salt}
        output = await self._generate(forced, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0))
        table = output.prompt_logprobs[len(context) :]
        return tuple(float(entry[token].logprob) for entry, token in zip(table, answer.tokens, strict=True))

    async def check(self) -> None:
        """See `CandidateSource.check`."""
        try:
            await self._engine.check_health()
        except Exception as error:
            raise SourceUnavailable("The engine does not answer.") from error

    async def close(self) -> None:
        """Nothing to let go of: the engine belongs to vLLM."""

    async def _render(
        self, messages: tuple[dict[str, Any], ...], sampling: SamplingParameters, count: int, salt: str, offset: int
    ) -> tuple[Any, Any]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        try:
            request = ChatCompletionRequest(
                model=self._model,
                messages=[dict(message) for message in messages],
                n=count,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                stop=list(sampling.stop) or None,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                logit_bias={str(token): bias for token, bias in sampling.logit_bias} or None,
                seed=None if sampling.seed is None else (sampling.seed + offset) % 2**63,
                response_format=None if sampling.response_format is None else dict(sampling.response_format.wire),
                **({"tools": None} if sampling.tools is None else sampling.tools.wire()),
                logprobs=True,
                top_logprobs=sampling.top,
                cache_salt=salt,
            )
            result = await self._chat.render_chat_request(request)
        except Exception as error:
            if not _is_clients_fault(error):
                raise
            # Raised by vLLM's checks of the prompt, before anything was drawn; its text speaks of the prompt alone.
            raise PromptRefused(f"The model cannot take these messages: {error}", "messages") from None
        if isinstance(result, ErrorResponse):
            # A server without a parser of tool calls says so here.
            raise PromptRefused(result.error.message, "messages" if sampling.tools is None else "tools")
        _, engine_inputs = result
        return request, engine_inputs[0]

    def _parser(self, request: Any) -> Any:
        """vLLM's parser of reasoning and tool calls for one answer; None where the server was started without."""
        if getattr(self._chat, "parser_cls", None) is None:
            return None
        return self._chat.parser_cls(
            self._chat.renderer.tokenizer,
            request.tools,
            chat_template_kwargs=self._chat._effective_chat_template_kwargs(request),
            model_config=self._chat.model_config,
        )

    def _reasoning(self, request: Any, tokens: list[int]) -> dict[str, Any]:
        """What the engine must know of a model that reasons before it answers in a form."""
        parser = self._parser(request)
        if parser is None:
            return {}
        found: dict[str, Any] = self._chat._engine_reasoning_kwargs(
            request, parser, self._chat._effective_chat_template_kwargs(request), tokens
        )
        return found

    def _read(self, output: Any, request: Any, tokens: list[int], sampling: SamplingParameters) -> Candidate:
        """A candidate from one output: what is left of its text when reasoning and calls are taken out, and the calls.

        Of a model that only reasoned nothing is left: an empty candidate, whose reward is 0 by rule.
        """
        parser = self._parser(request)
        if parser is None:
            return _candidate(output, len(tokens), sampling)
        parser.set_prompt_token_ids(tokens)
        _, content, calls = parser.parse(
            output.text,
            request,
            enable_auto_tools=self._chat.enable_auto_tools,
            model_output_token_ids=output.token_ids,
        )
        made = tuple(ToolCall(call.id or new_call_id(), call.name, call.arguments) for call in calls or ())
        if request.parallel_tool_calls is False:
            made = made[:1]
        return _candidate(output, len(tokens), sampling, content or "", made if sampling.tools is not None else ())

    async def _generate(
        self, engine_input: Any, parameters: Any, param: str = "messages", more: dict[str, Any] | None = None
    ) -> Any:
        """Run one request to its end. The generator is closed in any case: an open one keeps the engine working.

        vLLM checks a request, its schema included, before the engine sees it. `param` is what is to blame then.
        """
        stream = self._engine.generate(engine_input, parameters, f"reticent-{uuid.uuid4().hex}", **(more or {}))
        last = None
        try:
            async with contextlib.aclosing(stream):
                async for output in stream:
                    last = output
        except Exception as error:
            if _is_clients_fault(error):
                raise PromptRefused(f"The engine refuses this request: {error}", param) from None
            if type(error).__name__ in {"EngineDeadError", "EngineGenerateError"}:
                raise SourceUnavailable("The engine has stopped.") from error
            raise
        if last is None:
            raise SourceUnavailable("The engine gave no output.")
        return last


def _candidate(
    output: Any,
    prompt_tokens: int,
    sampling: SamplingParameters,
    content: str | None = None,
    calls: tuple[ToolCall, ...] = (),
) -> Candidate:
    """A candidate from an output, with `content` in its text's place where a parser has read it."""
    text = output.text if content is None else content
    top = sampling.top_log_probabilities
    drawn = tuple(int(token) for token in output.token_ids)
    reason = output.finish_reason if output.finish_reason in ("stop", "length") else "error"
    # The token that ends an answer is no part of its text. (`stop_reason` names a stop string or token that was asked
    # for; without one, an answer that stopped did so at the model's own end token.)
    ended = reason == "stop" and output.stop_reason is None
    tokens = drawn[:-1] if ended else drawn
    chosen = tuple(float(entry[token].logprob) for entry, token in zip(output.logprobs or [], tokens, strict=False))
    largest = tuple(
        tuple(sorted((float(found.logprob) for found in entry.values()), reverse=True)[:top])
        for entry, _ in zip(output.logprobs or [], tokens, strict=False)
    )
    shown = None if sampling.shown is None else _positions(output, tokens, text, sampling.shown)
    told = largest if top else ()
    return Candidate(text, reason, len(drawn), prompt_tokens, chosen, tokens, told, shown, tool_calls=calls)


def _positions(output: Any, tokens: tuple[int, ...], text: str, top: int) -> tuple[Position, ...]:
    found = []
    for entry, token in zip(output.logprobs or [], tokens, strict=False):
        told = {number: (value.decoded_token or "", float(value.logprob)) for number, value in entry.items()}
        found.append(position(told[token], list(told.values()), top))
    return fitted(found, text)


def _is_clients_fault(error: Exception) -> bool:
    """Whether vLLM says that the request is wrong. From 0.32 on its own class for that is no `ValueError` any more."""
    return isinstance(error, ValueError | TypeError) or "VLLMClientError" in {c.__name__ for c in type(error).__mro__}
