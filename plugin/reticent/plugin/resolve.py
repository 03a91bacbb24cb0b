"""From a request and a tenant's policy to what will be done: rule, sampling, prompt, user, and what to do when not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from reticent.accounting.ledger import ClaimRequest
from reticent.plugin.errors import BadRequest, Forbidden, ModelUnknown
from reticent.plugin.ports import Prompt, SamplingParameters
from reticent.plugin.response_format import ResponseFormat
from reticent.plugin.selection.base import Rule
from reticent.plugin.selection.rules import NONPRIVATE, RuleBook
from reticent.plugin.settings import PromptSettings, SamplingSettings, Settings, TenantPolicy
from reticent.plugin.tenants import Caller
from reticent.plugin.tools import ToolUse
from reticent.plugin.wire import ChatRequest, Message, ToolChoice
from reticent.rewards import Subject
from reticent.rewards.encoders.grounded import evidence_sentences
from reticent.rewards.protocol import MAX_CHARACTERS

__all__ = [
    "MAX_EVIDENCE_CHARACTERS",
    "MAX_QUESTION_CHARACTERS",
    "MAX_SENTENCES",
    "Plan",
    "render_prompt",
    "resolve",
]

MAX_EVIDENCE_CHARACTERS = 32_000
"""Most characters of all evidence of a request. The worker embeds every sentence, one request at a time: this much
takes it about 4 s on one core, and more would make other tenants wait."""
MAX_QUESTION_CHARACTERS = 32_000
"""Most characters of the last message, which stands for the evidence where there is none."""
MAX_SENTENCES = 512
"""Most sentences of the evidence, or of the last message where there is none."""

_T = TypeVar("_T", bound=str)


@dataclass(frozen=True)
class Plan:
    """Everything about one answer that is decided before anything is drawn. All of it is public."""

    caller: Caller
    user: str | None
    rule: Rule
    prompt: Prompt
    sampling: SamplingParameters
    on_exhausted: Literal["base", "refuse"]
    gate: Literal["abstain", "observe"]
    claim: ClaimRequest | None = None
    subgroup: str | None = None
    choices: int = 1

    @property
    def worst_case(self) -> int:
        """Largest possible charge of all choices together, in 1e-9 nat."""
        return self.choices * self.rule.worst_case

    @property
    def scope(self) -> str:
        """The ledger scope of the user, whose parents are the tenant's and the data set's."""
        return self.caller.user_scope(self.user)


def resolve(
    request: ChatRequest, caller: Caller, settings: Settings, rules: RuleBook, claim: ClaimRequest | None = None
) -> Plan:
    """Check a request against configuration and policy. `claim` is what its idempotency key asks for, if it has one.

    Raises:
        ModelUnknown, BadRequest, Forbidden: what the client asked for does not exist or is not allowed.
    """
    if request.model != settings.model.name:
        raise ModelUnknown(f"The model '{request.model}' does not exist.", "model")
    policy = caller.tenant.policy
    extension = request.reticent
    name = (extension.rule if extension else None) or settings.selection.rule
    allowed = policy.allow_nonprivate if name in NONPRIVATE else name in policy.rules
    if not allowed:
        raise Forbidden(f"Your policy does not allow the rule '{name}'.", "reticent.rule")
    return Plan(
        caller=caller,
        user=request.user or request.safety_identifier,
        rule=rules.rule(name, _candidates(request, policy, settings)),
        prompt=render_prompt(request, settings.prompt),
        sampling=_sampling(request, settings.sampling),
        on_exhausted=_stricter(extension.on_exhausted if extension else None, policy.on_exhausted, "refuse"),
        gate=_stricter(extension.gate if extension else None, policy.gate, "abstain"),
        claim=claim,
        subgroup=_subgroup(extension.subgroup if extension else None, policy),
        choices=_choices(request, policy, settings),
    )


def _candidates(request: ChatRequest, policy: TenantPolicy, settings: Settings) -> int:
    asked = request.reticent.candidates if request.reticent else None
    if asked is not None and request.best_of is not None and asked != request.best_of:
        raise BadRequest("best_of and reticent.candidates differ.", "best_of")
    count = asked or request.best_of or settings.selection.candidates
    most = min(settings.selection.max_candidates, policy.max_candidates or settings.selection.max_candidates)
    if count > most:
        raise BadRequest(f"At most {most} candidates are allowed.", "reticent.candidates" if asked else "best_of")
    return count


def _choices(request: ChatRequest, policy: TenantPolicy, settings: Settings) -> int:
    count = request.n or 1
    most = min(settings.selection.max_choices, policy.max_choices or settings.selection.max_choices)
    if count > most:
        raise BadRequest(f"At most {most} choices are allowed.", "n")
    return count


def _subgroup(asked: str | None, policy: TenantPolicy) -> str | None:
    """The registered subgroup that the request belongs to, decided here, before anything is drawn."""
    if asked is not None and asked not in policy.subgroups:
        raise Forbidden("Your requests cannot belong to this subgroup.", "reticent.subgroup")
    if asked is None and len(policy.subgroups) > 1:
        # Without a subgroup it would be judged by what was certified for all together.
        raise BadRequest("Say which subgroup this request belongs to.", "reticent.subgroup")
    return asked if asked is not None else next(iter(policy.subgroups), None)


def _stricter(asked: _T | None, allowed: _T, strict: _T) -> _T:
    """What the client asked for where that is the strict choice, else what the policy says."""
    return strict if strict in (asked, allowed) else allowed


def _sampling(request: ChatRequest, defaults: SamplingSettings) -> SamplingParameters:
    if request.max_tokens and request.max_completion_tokens and request.max_tokens != request.max_completion_tokens:
        raise BadRequest("max_tokens and max_completion_tokens differ.", "max_tokens")
    max_tokens = request.max_completion_tokens or request.max_tokens or defaults.max_tokens
    if max_tokens > defaults.max_tokens_limit:
        raise BadRequest(f"At most {defaults.max_tokens_limit} tokens are allowed.", "max_tokens")
    bias = sorted((int(token), value) for token, value in (request.logit_bias or {}).items())
    return SamplingParameters(
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        max_tokens=max_tokens,
        stop=request.stop_strings,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=tuple(bias),
        seed=request.seed,
        response_format=_form(request),
        tools=_tools(request),
        shown=(request.top_logprobs or 0) if request.logprobs else None,
    )


def _form(request: ChatRequest) -> ResponseFormat | None:
    """The form that answers must have; None for plain text, however that is said."""
    form = request.response_format
    if form is None or form.type == "text":
        return None
    return ResponseFormat(form.model_dump(by_alias=True, exclude_none=True))


def _tools(request: ChatRequest) -> ToolUse | None:
    """The tools that candidates may call; None where there are none."""
    if not request.tools:
        return None
    choice = request.tool_choice
    return ToolUse(
        tuple(tool.model_dump(exclude_none=True) for tool in request.tools),
        choice.model_dump() if isinstance(choice, ToolChoice) else choice,
        request.parallel_tool_calls,
    )


def render_prompt(request: ChatRequest, settings: PromptSettings) -> Prompt:
    """Put the evidence into the last user message by the configured template.

    The bare prompt has the same template with `no_evidence` in the evidence's place: what evidence lift compares with.

    Raises:
        BadRequest: the conversation does not end with a user message, nor with what tools gave after one; or that one
            is empty, or it or the evidence is longer than the reward worker can score in a bearable time.
    """
    place = _place_of_question(request.messages)
    last, after = request.messages[place], [_plain(message) for message in request.messages[place + 1 :]]
    evidence = tuple(request.reticent.evidence or ()) if request.reticent else ()
    if not all(text.strip() for text in evidence):
        raise BadRequest("Every piece of evidence must have text.", "reticent.evidence")
    earlier = _instructed(request.messages[:place])
    form = "tools" if after else "conversation" if earlier else ""
    _require_length(last.text, evidence)
    if not evidence:
        messages = (*earlier, _plain(last), *after)
        return Prompt(messages, None, Subject(last.text, last.text, ()), form or "plain", "")
    joined = settings.evidence_separator.join(evidence)
    rendered = _render(settings.evidence_template, joined, last.text)
    if len(rendered) > MAX_CHARACTERS:  # Possible with a long template only.
        raise BadRequest(
            f"The last message may have at most {MAX_CHARACTERS} characters with its evidence.", "messages"
        )
    bare = _render(settings.evidence_template, settings.no_evidence, last.text)
    template = hashlib.sha256(
        repr((settings.evidence_template, settings.evidence_separator, settings.no_evidence)).encode()
    ).hexdigest()
    return Prompt(
        messages=(*earlier, {"role": "user", "content": rendered}, *after),
        bare_messages=(*earlier, {"role": "user", "content": bare}, *after),
        subject=Subject(rendered, last.text, evidence),
        form=f"{form}-with-evidence" if form else "evidence",
        template=template,
    )


def _place_of_question(messages: Sequence[Message]) -> int:
    """Where the user's last message stands: at the end, or before the calls of tools and what they gave.

    It is what evidence is put into, and what an answer is judged by.
    """
    known = {call.id for message in messages for call in message.tool_calls or ()}
    for index, message in enumerate(messages):
        if message.tool_call_id is not None and message.tool_call_id not in known:
            raise BadRequest("No message before calls a tool by this name.", f"messages.{index}.tool_call_id")
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    ends = messages[-1].role in ("user", "tool")
    if not ends or not users or not messages[users[-1]].text.strip():
        raise BadRequest("The last message must be a user's, with text, or a tool's after one.", "messages")
    return users[-1]


def _require_length(question: str, evidence: tuple[str, ...]) -> None:
    """Refuse, before anything is reserved, what would hold the reward worker up."""
    if len(question) > MAX_QUESTION_CHARACTERS:
        raise BadRequest(f"The last message may have at most {MAX_QUESTION_CHARACTERS} characters.", "messages")
    if sum(map(len, evidence)) > MAX_EVIDENCE_CHARACTERS:
        raise BadRequest(
            f"The evidence may have at most {MAX_EVIDENCE_CHARACTERS} characters in all.", "reticent.evidence"
        )
    if len(evidence_sentences(evidence or (question,))) > MAX_SENTENCES:
        where = ("evidence", "reticent.evidence") if evidence else ("last message", "messages")
        raise BadRequest(f"The {where[0]} may have at most {MAX_SENTENCES} sentences.", where[1])


def _render(template: str, evidence: str, question: str) -> str:
    """Replace both places in one pass, so that braces in a client's text are never taken for places."""
    before, _, rest = template.partition("{evidence}")
    if "{question}" in before:
        head, _, tail = before.partition("{question}")
        return head + question + tail + evidence + rest
    middle, _, after = rest.partition("{question}")
    return before + evidence + middle + question + after


def _instructed(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages before the question; instructions that follow one another become one system message.

    Many chat templates refuse a second system message, and pass over a developer's in silence.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        plain = _plain(message)
        if message.role == "developer":
            plain["role"] = "system"
        before = found[-1] if found else {}
        if plain["role"] == "system" == before.get("role") and before.get("name") == plain.get("name"):
            before["content"] += f"\n\n{plain['content']}"
        else:
            found.append(plain)
    return found


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls is not None:
        # A message that only calls tools says nothing, which is not the same as an empty text.
        plain["content"] = message.text or None
        plain["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain
