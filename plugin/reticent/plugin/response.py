"""From an answer to OpenAI's chat completion, whole or as a stream of chunks, with the `reticent` object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reticent.plugin.gate import GateVerdict
from reticent.plugin.handler import Answer
from reticent.plugin.views import remaining

__all__ = ["completion", "extension", "stream_chunks"]

_REFUSALS = {
    "no_certificate": "I cannot answer: no certificate of answer quality is installed.",
    "certificate_expired": "I cannot answer: the certificate of answer quality has expired.",
    "fingerprint_mismatch": "I cannot answer: the certificate of answer quality was made for another configuration.",
    "score_below_threshold": "I am not sure enough of an answer to give one.",
}
_NONPRIVATE_WARNING = (
    "This rule is not private: the answer can reveal the preferences that the reward model was trained on, "
    "and no budget bounds that."
)
_PIECE = re.compile(r"\S*\s+|\S+")


def extension(answer: Answer) -> dict[str, Any]:
    """The `reticent` object: what was done, what it cost, what is left, what is certified.

    `charge` and `remaining` are in nats at the data set's order; `charge` is null where nothing bounds the loss.
    """
    selection, plan = answer.selection, answer.plan
    private = plan.rule.private
    found: dict[str, Any] = {
        "rule": plan.rule.name,
        "selection": plan.rule.name if selection is not None else "base",
        "charge": 0.0 if selection is None else (selection.charge / 1e9 if private else None),
        "remaining": remaining(answer.statements),
        "fallback": selection.fallback if selection is not None else False,
        "halting_time": selection.halting_time if selection is not None else None,
        "score_accepted": answer.verdict.accepted,
        "score": answer.score if plan.gate == "observe" else None,
        "certificate": _certificate(answer.verdict),
    }
    if plan.subgroup is not None:
        found["subgroup"] = plan.subgroup
    if selection is not None and not private:
        found["warning"] = _NONPRIVATE_WARNING
    return found


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
    """Tokens of the released answer. What was drawn beside it is the operator's metric."""
    prompt, completion_tokens = answer.chosen.prompt_tokens, answer.chosen.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
    }


def _said(answer: Answer) -> tuple[str, str, str]:
    """(field, text, finish_reason): the content, or a refusal."""
    if answer.outcome == "abstained":
        return "refusal", _REFUSALS[answer.verdict.reason or "score_below_threshold"], "stop"
    return "content", answer.chosen.text, "length" if answer.chosen.finish_reason == "length" else "stop"


def completion(answer: Answer, *, identifier: str, model: str) -> dict[str, Any]:
    """The whole response."""
    said, text, finish_reason = _said(answer)
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, said: text}
    return {
        "id": identifier,
        "object": "chat.completion",
        "created": answer.created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": _usage(answer),
        "reticent": extension(answer),
    }


def stream_chunks(whole: Mapping[str, Any], *, include_usage: bool) -> Iterator[str]:
    """A settled completion (see `completion`) as server-sent events, word by word, ending with `[DONE]`."""
    (choice,) = whole["choices"]
    said = "content" if choice["message"]["refusal"] is None else "refusal"
    base = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    if include_usage:
        base["usage"] = None

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        part = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {json.dumps({**base, 'choices': [part], **more})}\n\n"

    yield chunk({"role": "assistant", "content": "" if said == "content" else None})
    for piece in _PIECE.findall(choice["message"][said]):
        yield chunk({said: piece})
    yield chunk({}, choice["finish_reason"], reticent=whole["reticent"])
    if include_usage:
        yield f"data: {json.dumps({**base, 'choices': [], 'usage': whole['usage']})}\n\n"
    yield "data: [DONE]\n\n"
