"""From an answer to OpenAI's chat completion, whole or as a stream of chunks, with the `reticent` object."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reticent.plugin.gate import GateVerdict
from reticent.plugin.handler import Answer, Choice
from reticent.plugin.ports import Position, Token
from reticent.plugin.resolve import Plan
from reticent.plugin.views import remaining

__all__ = ["completion", "extension", "stream_chunks"]

_REFUSALS = {
    "no_certificate": "I cannot answer: no certificate of answer quality is installed.",
    "certificate_expired": "I cannot answer: the certificate of answer quality has expired.",
    "fingerprint_mismatch": "I cannot answer: the certificate of answer quality was made for another configuration.",
    "no_valid_candidate": "I cannot answer in the form that was asked for.",
    "score_below_threshold": "I am not sure enough of an answer to give one.",
}
_NONPRIVATE_WARNING = (
    "This rule is not private: the answer can reveal the preferences that the reward model was trained on, "
    "and no budget bounds that."
)
_PIECE = re.compile(r"\S*\s+|\S+")


def extension(answer: Answer) -> dict[str, Any]:
    """The `reticent` object: what was done, what it cost, what is left, what is certified.

    `charge` and `remaining` are in nats at the data set's order; `charge` is null where nothing bounds the loss. Of
    several choices `charge` is the sum, and what each of them has of its own stands in `choices`.
    """
    plan = answer.plan
    private, selected = plan.rule.private, bool(answer.selections)
    found: dict[str, Any] = {
        "rule": plan.rule.name,
        "selection": plan.rule.name if selected else "base",
        "charge": answer.charge / 1e9 if private or not selected else None,
        "remaining": remaining(answer.statements),
    }
    if len(answer.choices) == 1:
        found |= _of_choice(answer.choices[0], plan)
    else:
        found["choices"] = [
            {"index": index, **_charge(choice, private=private), **_of_choice(choice, plan)}
            for index, choice in enumerate(answer.choices)
        ]
    if plan.subgroup is not None:
        found["subgroup"] = plan.subgroup
    if selected and not private:
        found["warning"] = _NONPRIVATE_WARNING
    return found


def _charge(choice: Choice, *, private: bool) -> dict[str, float | None]:
    if choice.selection is None:
        return {"charge": 0.0}
    return {"charge": choice.selection.charge / 1e9 if private else None}


def _of_choice(choice: Choice, plan: Plan) -> dict[str, Any]:
    selection = choice.selection
    return {
        "fallback": selection.fallback if selection is not None else False,
        "halting_time": selection.halting_time if selection is not None else None,
        "score_accepted": choice.verdict.accepted,
        "score": choice.score if plan.gate == "observe" else None,
        "certificate": _certificate(choice.verdict),
    }


def _certificate(verdict: GateVerdict) -> dict[str, Any]:
    found: dict[str, Any] = {
        "status": verdict.reason or "accepted",
        "detail": verdict.detail,
        "fingerprint": verdict.fingerprint,
    }
    if verdict.certificate is not None:
        certificate = verdict.certificate
        found |= {
            "digest": certificate.digest,
            "target_risk": certificate.plan.target_risk,
            "score": certificate.plan.score,
            "threshold": certificate.threshold,
            "expires_at": certificate.expires_at.isoformat(),
        }
    return found


def _usage(answer: Answer) -> dict[str, int]:
    """Tokens of the released answers, and of the prompt once. What was drawn beside them is the operator's metric."""
    prompt = answer.choices[0].chosen.prompt_tokens
    completion_tokens = sum(choice.chosen.completion_tokens for choice in answer.choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
    }


def completion(answer: Answer, *, identifier: str, model: str) -> dict[str, Any]:
    """The whole response."""
    asked = answer.plan.sampling.shown is not None
    return {
        "id": identifier,
        "object": "chat.completion",
        "created": answer.created,
        "model": model,
        "choices": [_choice(index, choice, asked=asked) for index, choice in enumerate(answer.choices)],
        "usage": _usage(answer),
        "reticent": extension(answer),
    }


def _choice(index: int, choice: Choice, *, asked: bool) -> dict[str, Any]:
    """One of the response's choices: the content, with its log-probabilities where `asked` for, or a refusal.

    A refusal has none: they would tell the answer that was withheld.
    """
    chosen = choice.chosen
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    finish_reason, logprobs = "stop", None
    if choice.outcome == "abstained" or not chosen.fit:
        message["refusal"] = _REFUSALS[choice.verdict.reason or "score_below_threshold"]
    else:
        message["content"] = chosen.text if chosen.text or not chosen.tool_calls else None
        finish_reason = "length" if chosen.finish_reason == "length" else "stop"
        if chosen.tool_calls:
            message["tool_calls"] = [call.wire() for call in chosen.tool_calls]
            finish_reason = "tool_calls"
        logprobs = _logprobs(chosen.positions) if asked else None
    return {"index": index, "message": message, "finish_reason": finish_reason, "logprobs": logprobs}


def _logprobs(positions: Sequence[Position] | None) -> dict[str, Any]:
    """The base model's log-probabilities of the released text: no reward moves them, once it is known which text."""
    told = [{**_token(p.chosen), "top_logprobs": [_token(token) for token in p.top]} for p in positions or ()]
    return {"content": None if positions is None else told, "refusal": None}


def _token(token: Token) -> dict[str, Any]:
    told = None if token.utf8 is None else list(token.utf8)
    return {"token": token.text, "logprob": token.log_probability, "bytes": told}


def stream_chunks(whole: Mapping[str, Any], *, include_usage: bool) -> Iterator[str]:
    """A settled completion (see `completion`) as server-sent events, ending with `[DONE]`.

    One choice after the other, word by word; every chunk carries the index of its choice. The last chunk of the last
    choice carries `reticent`.
    """
    base = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    if include_usage:
        base["usage"] = None
    for choice in whole["choices"]:
        *deltas, last = _parts(choice)
        more = {"reticent": whole["reticent"]} if choice is whole["choices"][-1] else {}
        for part in deltas:
            yield f"data: {json.dumps({**base, 'choices': [part]})}\n\n"
        yield f"data: {json.dumps({**base, 'choices': [last], **more})}\n\n"
    if include_usage:
        yield f"data: {json.dumps({**base, 'choices': [], 'usage': whole['usage']})}\n\n"
    yield "data: [DONE]\n\n"


def _parts(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks' `choices` of one choice: its role, its text in pieces, its tool calls, its finish reason."""

    def part(delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        return {"index": choice["index"], "delta": delta, "finish_reason": finish, "logprobs": logprobs}

    message = choice["message"]
    said = "content" if message["refusal"] is None else "refusal"
    yield part({"role": "assistant", "content": None if message["content"] is None else ""})
    pieces = _PIECE.findall(message[said] or "")
    for piece, logprobs in zip(pieces, _logprobs_of_pieces(pieces, choice["logprobs"]), strict=True):
        yield part({said: piece}, logprobs=logprobs)
    for index, call in enumerate(message.get("tool_calls", ())):
        # The name whole, then the arguments: clients put the pieces of one index together.
        function = call["function"]
        yield part({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        yield part({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]})
    yield part({}, choice["finish_reason"])


def _logprobs_of_pieces(pieces: Sequence[str], whole: Mapping[str, Any] | None) -> list[dict[str, Any] | None]:
    """The `logprobs` of each piece of a text: those of the tokens that begin in it, of the last one all the rest."""
    if whole is None or whole["content"] is None:
        return [None] * len(pieces)
    tokens, end, begin = deque(whole["content"]), 0, 0
    found: list[dict[str, Any] | None] = []
    for index, piece in enumerate(pieces):
        end += len(piece)
        mine = []
        while tokens and (begin < end or index == len(pieces) - 1):
            mine.append(tokens.popleft())
            begin += len(mine[-1]["token"])
        found.append({"content": mine, "refusal": None})
    return found
