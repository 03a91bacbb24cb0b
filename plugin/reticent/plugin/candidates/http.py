"""Candidates from OpenAI-compatible servers elsewhere, through the `openai` client (no torch, no vLLM here)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import openai
from openai.types.chat import ChatCompletion

from reticent.plugin.candidates.positions import before_stop, fitted, position
from reticent.plugin.errors import PromptRefused, SourceUnavailable
from reticent.plugin.ports import Candidate, Position, Prompt, SamplingParameters
from reticent.plugin.tools import ToolCall, new_call_id

__all__ = ["HttpSource"]


class HttpSource:
    """Draws from one or more upstream servers in turn.

    Where an upstream refuses `n`, as some do, candidates come from parallel calls of one each.

    Args:
        urls: base addresses that end in `/v1`.
        key: the upstream's key, or None.
        model: the upstream's model name.
        timeout: seconds a call may take.
    """

    def __init__(self, urls: tuple[str, ...], key: str | None, model: str, timeout: float) -> None:
        if not urls:
            raise ValueError("the gateway needs at least one upstream (model.upstreams)")
        # Not retried here: a retried draw would be a second, selected sample.
        self._clients = [
            openai.AsyncOpenAI(base_url=url, api_key=key or "none", timeout=timeout, max_retries=0) for url in urls
        ]
        self._turn = itertools.cycle(range(len(urls)))
        self._model = model
        self._single: set[int] = set()

    async def draw(
        self, prompt: Prompt, sampling: SamplingParameters, count: int, *, salt: str, offset: int
    ) -> list[Candidate]:
        """See `CandidateSource.draw`."""
        which = next(self._turn)
        found: list[Candidate] = []
        if count > 1 and which not in self._single:
            # A refusal may be of `n` alone: single calls tell. Others ignore `n` and give one.
            with contextlib.suppress(PromptRefused):
                found = await self._ask(which, prompt, sampling, count, salt, offset)
        if len(found) < count:
            begun = len(found)
            found += await self._singles(which, prompt, sampling, count - begun, salt, offset + begun)
            if count > 1:
                self._single.add(which)
        return found

    async def score_without_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        """See `CandidateSource.score_without_evidence`; needs an upstream with vLLM's `prompt_logprobs`."""
        return await self._forced(prompt.bare_messages, answer, salt)

    async def score_with_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        """See `CandidateSource.score_with_evidence`; needs the same."""
        return await self._forced(prompt.messages, answer, salt)

    async def _forced(
        self, messages: tuple[dict[str, Any], ...] | None, answer: Candidate, salt: str
    ) -> tuple[float, ...]:
        # A call cannot be forced: its tokens stand in no text that an upstream could be given.
        if messages is None or not answer.text or answer.tool_calls:
            return ()
        which = next(self._turn)
        plain = SamplingParameters(temperature=0.0, top_p=1.0, max_tokens=1)
        context = await self._call(which, list(messages), plain, 1, salt, 0, {})
        forced = await self._call(
            which,
            [*messages, {"role": "assistant", "content": answer.text}],
            plain,
            1,
            salt,
            0,
            {"add_generation_prompt": False, "continue_final_message": True, "prompt_logprobs": 0},
        )
        table = (forced.model_extra or {}).get("prompt_logprobs") or []
        tail = table[context.usage.prompt_tokens :] if context.usage else []
        return tuple(float(next(iter(entry.values()))["logprob"]) for entry in tail if entry)

    async def check(self) -> None:
        """See `CandidateSource.check`: one upstream that answers is enough."""
        for client in self._clients:
            try:
                await client.models.list(timeout=5.0)
            except openai.OpenAIError:
                continue
            return
        raise SourceUnavailable("No upstream answers.")

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.close()

    async def _singles(
        self, which: int, prompt: Prompt, sampling: SamplingParameters, count: int, salt: str, offset: int
    ) -> list[Candidate]:
        """Parallel calls of one each. One that fails gives a candidate without text, unless all of them do."""
        calls = (self._ask(which, prompt, sampling, 1, salt, offset + i) for i in range(count))
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if len(errors) == count or not isinstance(error, SourceUnavailable):
                raise error
        return [Candidate("", "error", 0, 0) if isinstance(r, BaseException) else r[0] for r in results]

    async def _ask(
        self, which: int, prompt: Prompt, sampling: SamplingParameters, count: int, salt: str, offset: int
    ) -> list[Candidate]:
        """What one call gives: up to `count` candidates, at least one."""
        answer = await self._call(which, list(prompt.messages), sampling, count, salt, offset, {})
        prompt_tokens = answer.usage.prompt_tokens if answer.usage else 0
        total = answer.usage.completion_tokens if answer.usage else 0
        # In the order in which they came: their numbers are the upstream's word, and the draws are independent.
        choices = answer.choices[:count]
        return [_candidate(choice, prompt_tokens, total // len(choices), sampling) for choice in choices]

    async def _call(
        self,
        which: int,
        messages: list[Any],
        sampling: SamplingParameters,
        count: int,
        salt: str,
        offset: int,
        extra: dict[str, Any],
    ) -> ChatCompletion:
        optional: dict[str, Any] = {}
        if count > 1:
            optional["n"] = count
        if sampling.stop:
            optional["stop"] = list(sampling.stop)
        if sampling.logit_bias:
            optional["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
        if sampling.top:
            optional["top_logprobs"] = sampling.top
        if sampling.response_format is not None:
            optional["response_format"] = dict(sampling.response_format.wire)
        if sampling.tools is not None:
            optional |= sampling.tools.wire()
        if sampling.seed is not None:
            optional["seed"] = (sampling.seed + offset) % 2**63
        try:
            answer = await self._clients[which].chat.completions.create(
                model=self._model,
                messages=messages,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                logprobs=True,
                extra_body={"cache_salt": salt, **extra},
                **optional,
            )
        except (openai.BadRequestError, openai.UnprocessableEntityError):
            raise PromptRefused("The upstream model refuses this request.", "messages") from None
        except openai.OpenAIError as error:
            raise SourceUnavailable("The upstream model does not answer.") from error
        # The client believes whatever comes with status 200.
        if not isinstance(answer, ChatCompletion) or not answer.choices:
            raise SourceUnavailable("The upstream model does not answer as an OpenAI server does.")
        return answer


def _candidate(choice: Any, prompt_tokens: int, tokens_guess: int, sampling: SamplingParameters) -> Candidate:
    top = sampling.top_log_probabilities
    if choice is None or choice.message is None:
        return Candidate("", "error", tokens_guess, prompt_tokens)
    told = choice.message.content or ""
    text = before_stop(told, sampling.stop)
    table = choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
    tells, drawn = bool(table), len(table) or tokens_guess
    if text != told:
        table = table[: len(_positions(table, text, 0))]
    # The token that ends an answer is no part of its text; the pass without evidence does not have it either.
    if choice.finish_reason == "stop" and table and "".join(entry.token for entry in table[:-1]) == text:
        table = table[:-1]
    chosen = tuple(float(entry.logprob) for entry in table)
    reason = choice.finish_reason if choice.finish_reason in ("stop", "length") else "error"
    calls = _calls(choice.message) if sampling.tools is not None else ()
    if calls and choice.finish_reason == "tool_calls":
        reason = "stop"
    if text != told:
        reason = "stop"
    largest = tuple(
        tuple(sorted((float(found.logprob) for found in entry.top_logprobs), reverse=True)[:top]) for entry in table
    )
    # A server that ignores the wish tells nothing, which is not the same as certainty.
    known = largest if top and all(largest) else ()
    shown = None if sampling.shown is None or not tells else _positions(table, text, sampling.shown)
    return Candidate(text, reason, drawn, prompt_tokens, chosen, (), known, shown, tool_calls=calls)


def _calls(message: Any) -> tuple[ToolCall, ...]:
    """The calls of functions that a message makes. Of another kind there is none: none was offered."""
    found = [call for call in message.tool_calls or () if getattr(call, "function", None) is not None]
    return tuple(ToolCall(c.id or new_call_id(), c.function.name or "", c.function.arguments or "") for c in found)


def _positions(table: list[Any], text: str, top: int) -> tuple[Position, ...]:
    found = [
        position((e.token, float(e.logprob)), [(other.token, float(other.logprob)) for other in e.top_logprobs], top)
        for e in table
    ]
    return fitted(found, text)
