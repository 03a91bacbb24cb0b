"""`reticent calibrate facts`: what a certificate for a server's answers is bound to, for `calibrate plan`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.accounting.calibration.documents import read_file, read_object, write_atomically
from reticent.accounting.fingerprint import Fingerprint, canonical_json
from reticent.plugin.cli.calibrate_inputs import messages
from reticent.plugin.cli.common import fail, load_or_exit, say
from reticent.plugin.core import configured_parts
from reticent.plugin.errors import ApiError
from reticent.plugin.facts import request_facts
from reticent.plugin.resolve import resolve
from reticent.plugin.rewards_source import load_reward_model
from reticent.plugin.settings import ConfigurationError, Settings, TenantSettings
from reticent.plugin.standing import request_of_form
from reticent.plugin.tenants import Caller
from reticent.plugin.wire import parse_chat_request
from reticent.rewards.errors import RewardsError

__all__ = ["facts"]


class Form(StrEnum):
    """What a request is made of."""

    plain = "plain"
    evidence = "evidence"
    conversation = "conversation"
    conversation_with_evidence = "conversation-with-evidence"


def facts(
    config: Annotated[Path, typer.Option(help="The server's configuration file.")],
    out: Annotated[Path, typer.Option(help="Where the facts go, for `calibrate plan --fingerprint`.")],
    form: Annotated[Form | None, typer.Option(help="What the questions are made of [default: plain].")] = None,
    rule: Annotated[str | None, typer.Option(help="The rule that requests name [default: selection.rule].")] = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Candidates that requests ask for [default: selection.candidates].")
    ] = None,
    subgroup: Annotated[str | None, typer.Option(help="The subgroup that requests belong to.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose policy applies [default: the first tenant].")] = None,
    request: Annotated[
        Path | None, typer.Option(help="A request body as clients send it (JSON), instead of --form: for its sampling.")
    ] = None,
) -> None:
    """Write the facts that the server's answers to such requests have, and print their fingerprint.

    The server's answers show the same fingerprint (`reticent.certificate.fingerprint`): compare the two before you
    register a plan. Of a request's texts only this is in it: whether there is evidence, and whether earlier messages.
    """
    settings = load_or_exit(config)
    with messages():
        if request is not None and form is not None:
            raise ValueError("--request says the form; leave --form out")
        body = _form(form or Form.plain) if request is None else _request(request)
        asked = {"rule": rule, "candidates": candidates, "subgroup": subgroup}
        found = _facts(settings, tenant, body, {name: value for name, value in asked.items() if value is not None})
        write_atomically(out, canonical_json(found.facts) + "\n")
    for name in ("selection", "sampling", "prompt"):
        say(f"{name}: {canonical_json(found.facts[name])}")
    typer.echo(found.digest)


def _facts(settings: Settings, tenant: str | None, body: dict[str, Any], asked: dict[str, Any]) -> Fingerprint:
    """What the server itself would do with the request: parsed, resolved and fingerprinted by its own code."""
    extension = body.get("reticent") or {}
    if asked and isinstance(extension, dict):
        body["reticent"] = {**extension, **asked}
    body.setdefault("model", settings.model.name)
    body.setdefault("messages", _form(Form.plain)["messages"])
    try:
        parts = configured_parts(settings, load_reward_model(settings.rewards))
        wanted = parse_chat_request(json.dumps(body).encode(), max_messages=settings.server.max_messages)
        plan = resolve(wanted, Caller(_tenant(settings, tenant), settings.dataset.id), settings, parts.rules)
        return Fingerprint(request_facts(parts.facts, plan))
    except ApiError as error:
        raise fail(f"the server would refuse such a request: {error.message}", 78) from None
    except RewardsError as error:
        raise fail(f"the server would not start: {error}", 78) from None


def _tenant(settings: Settings, name: str | None) -> TenantSettings:
    for tenant in settings.tenants:
        if name in (None, tenant.id):
            return tenant
    raise ConfigurationError("the configuration has no tenant" + ("" if name is None else f" {name!r}"))


def _request(path: Path) -> dict[str, Any]:
    return dict(read_object(read_file(path, "request"), "request"))


def _form(form: Form) -> dict[str, Any]:
    """A request of this form; what its texts say is no part of the facts."""
    fields, extension = request_of_form(form)
    return {**fields, "reticent": extension} if extension else fields
