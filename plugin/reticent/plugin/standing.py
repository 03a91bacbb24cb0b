"""What a tenant is shown of each certificate: its declaration, what it states in words, and whether it holds now.

A certificate fits requests, not servers: rule, sampling, form and subgroup are a request's own. So it is compared with
the request that asks for exactly what was certified, made by the same code as any other request of this caller. What
the configuration or the caller's policy does not allow is left at its default, and so is found to differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from reticent.accounting.calibration.subgroup import SUBGROUP_FACT
from reticent.accounting.certificates import Certificate, serving_rule
from reticent.accounting.fingerprint import Fingerprint, differences
from reticent.plugin.errors import ApiError
from reticent.plugin.facts import request_facts
from reticent.plugin.resolve import resolve
from reticent.plugin.tenants import Caller
from reticent.plugin.wire import ChatRequest

if TYPE_CHECKING:
    from reticent.plugin.core import Core

__all__ = ["STANDINGS", "request_of_form", "standings", "statement"]

STANDINGS = ("accepting", "superseded", "mismatch", "expired", "withdrawn")
"""What can be said of a certificate now; "accepting" only where the gate lets answers through under it."""

_EVIDENCE_FORMS = ("evidence", "conversation-with-evidence", "tools-with-evidence")
_CONVERSATIONS = ("conversation", "conversation-with-evidence")
_TOOLS = ("tools", "tools-with-evidence")
_CALL = {"id": "-", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_CALLED = [
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "content": "-", "tool_call_id": "-"},
]


def standings(core: Core, caller: Caller) -> list[dict[str, Any]]:
    """Every certificate that is or was installed, those in force first, as JSON values."""
    gate, files = core.gate, core.renewal.files
    installed, now = gate.certificates, gate.now()
    shown = [_standing(core, caller, certificate, installed, now) for certificate in installed]
    shown += [_shown(certificate, "withdrawn", ()) for certificate in files.withdrawn]
    return sorted(shown, key=lambda item: STANDINGS.index(item["status"]))


def statement(certificate: Certificate) -> str:
    """The certificate in words."""
    plan = certificate.plan
    failure = sum(serving_rule(plan.rule, plan.release).failure_probabilities(plan.claim).values())
    who = "answers" if plan.subgroup is None else f"answers of subgroup {plan.subgroup.name}"
    return (
        f"With probability at least {1.0 - failure:.6g} over the calibration, and if the declared drift holds: of the "
        f"{who} accepted under the declared mixture the mean declared loss ({plan.loss}) is at most "
        f"{plan.target_risk:g}, and at least {plan.min_acceptance:g} of all {who} are accepted. "
        "It is a statement about a mean: of a single answer it says nothing."
    )


def _standing(
    core: Core, caller: Caller, certificate: Certificate, installed: Iterable[Certificate], now: datetime
) -> dict[str, Any]:
    running = Fingerprint(_nearest_facts(core, caller, certificate.fingerprint.facts))
    differing = differences(certificate.fingerprint, running)
    if certificate.is_expired(now):
        return _shown(certificate, "expired", differing)
    if differing:
        return _shown(certificate, "mismatch", differing)
    rivals = (c for c in installed if c.fingerprint == certificate.fingerprint and not c.is_expired(now))
    return _shown(certificate, "accepting" if next(rivals) is certificate else "superseded", ())


def _shown(certificate: Certificate, status: str, differing: tuple[str, ...]) -> dict[str, Any]:
    facts = certificate.fingerprint.facts
    asks = {name: facts[name] for name in ("selection", "sampling", "prompt") if name in facts}
    return {
        **certificate.declaration(),
        "statement": statement(certificate),
        "asks": asks,
        "status": status,
        "differs": list(differing),
    }


def _nearest_facts(core: Core, caller: Caller, certified: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of this caller's request that asks for as much of what was certified as it may."""
    parts = list(_parts(certified))
    for count in range(len(parts), -1, -1):
        for chosen in combinations(parts, count):
            facts = _facts(core, caller, chosen)
            if facts is not None:
                return facts
    return dict(core.facts)  # This caller's policy allows no request at all.


def _parts(facts: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pieces of a request, (fields, extension fields), that ask for one part of the facts each."""
    match facts.get("selection"):
        case {"rule": rule, "candidates": candidates}:
            yield {}, {"rule": rule, "candidates": candidates}
    match facts.get("sampling"):
        case {"logit_bias": [*pairs], **fields}:
            bias = {str(pair[0]): pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2}
            yield {str(name): value for name, value in fields.items()} | {"logit_bias": bias}, {}
    match facts.get("prompt"):
        case {"form": form}:
            yield request_of_form(form)
    if SUBGROUP_FACT in facts:
        yield {}, {"subgroup": facts[SUBGROUP_FACT]}
    if "choices" in facts:
        yield {"n": facts["choices"]}, {}


def request_of_form(form: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields, extension fields) of a request whose prompt has this form, of any other one for "plain"."""
    earlier = [{"role": "system", "content": "-"}] if form in _CONVERSATIONS else []
    messages = [*earlier, {"role": "user", "content": "-"}, *(_CALLED if form in _TOOLS else [])]
    return {"messages": messages}, {"evidence": ["-"]} if form in _EVIDENCE_FORMS else {}


def _least(caller: Caller) -> dict[str, Any]:
    """What any request of this caller must ask for, where the defaults are not allowed."""
    policy = caller.tenant.policy
    return {"subgroup": policy.subgroups[0]} if len(policy.subgroups) > 1 else {}


def _facts(core: Core, caller: Caller, parts: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any] | None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "-"}]}
    extension = _least(caller)
    for fields, more in parts:
        body |= fields
        extension |= more
    try:
        request = ChatRequest.model_validate({"model": core.settings.model.name, "reticent": extension, **body})
        return request_facts(core.facts, resolve(request, caller, core.settings, core.rules))
    except (ValidationError, ApiError, TypeError):
        return None
