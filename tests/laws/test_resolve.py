"""From a request and a policy to a plan: a client can only be stricter, and its text is never taken for a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.plugin.errors import ApiError, BadRequest, Forbidden, ModelUnknown
from reticent.plugin.resolve import (
    MAX_EVIDENCE_CHARACTERS,
    MAX_QUESTION_CHARACTERS,
    MAX_SENTENCES,
    render_prompt,
)
from reticent.plugin.settings import PromptSettings
from reticent.plugin.wire import ChatRequest, parse_chat_request
from reticent.rewards.protocol import MAX_CHARACTERS
from tests.fakes.build import QUESTION, chat_body, make_settings, plan_for

HERE = Path("nowhere")


def plan(tenant: str = "strict", changes: dict[str, Any] | None = None, **more: Any) -> Any:
    return plan_for(make_settings(HERE, changes), tenant, **more)


def test_defaults_come_from_the_configuration() -> None:
    found = plan()
    assert (found.rule.name, found.rule.facts()["candidates"]) == ("privbon", 4)
    assert (found.sampling.temperature, found.sampling.max_tokens, found.sampling.seed) == (0.7, 48, None)
    assert (found.on_exhausted, found.gate, found.user) == ("refuse", "abstain", None)
    assert found.scope == "user:notes/strict/anonymous"


def test_an_unknown_model_is_not_served() -> None:
    with pytest.raises(ModelUnknown) as caught:
        plan(model="large")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


@pytest.mark.parametrize("rule", ["bon", "itp"])
def test_a_rule_without_privacy_needs_the_policys_word(rule: str) -> None:
    for tenant in ("strict", "lenient"):
        with pytest.raises(Forbidden) as caught:
            plan(tenant, reticent={"rule": rule})
        assert (caught.value.status, caught.value.param) == (403, "reticent.rule")
    assert plan("open", reticent={"rule": rule}).rule.private is False
    # Naming it among the rules is not enough: the operator must say `allow_nonprivate`.
    with pytest.raises(Forbidden):
        plan("strict", {"tenants.0.policy": {"rules": ["privbon", "bon", "itp"]}}, reticent={"rule": rule})


def test_a_rule_that_the_policy_leaves_out_is_refused() -> None:
    changes = {"tenants.0.policy": {"rules": ["privbon"]}}
    assert plan(changes=changes).rule.name == "privbon"
    with pytest.raises(Forbidden):
        plan(changes=changes, reticent={"rule": "privitp"})


@pytest.mark.parametrize("gate", [None, "abstain", "observe"])
@pytest.mark.parametrize("exhausted", [None, "base", "refuse"])
@pytest.mark.parametrize("tenant", ["strict", "lenient"])
def test_the_stricter_of_policy_and_wish_holds(tenant: str, gate: str | None, exhausted: str | None) -> None:
    wish = {k: v for k, v in {"gate": gate, "on_exhausted": exhausted}.items() if v is not None}
    found = plan(tenant, reticent=wish)
    lenient = tenant == "lenient"
    assert found.gate == ("observe" if lenient and gate != "abstain" else "abstain")
    assert found.on_exhausted == ("base" if lenient and exhausted != "refuse" else "refuse")


def test_candidates_can_be_fewer_and_never_more_than_allowed() -> None:
    assert plan(reticent={"candidates": 1}).rule.facts()["candidates"] == 1
    assert plan(best_of=16).rule.facts()["candidates"] == 16
    assert plan(best_of=3, reticent={"candidates": 3}).rule.facts()["candidates"] == 3
    for more, param in (
        ({"best_of": 17}, "best_of"),
        ({"reticent": {"candidates": 17}}, "reticent.candidates"),
        ({"reticent": {"candidates": 10**9}}, "reticent.candidates"),
        ({"best_of": 3, "reticent": {"candidates": 4}}, "best_of"),
    ):
        with pytest.raises(BadRequest) as caught:
            plan(**more)
        assert caught.value.param == param
    with pytest.raises(BadRequest):
        plan(changes={"tenants.0.policy": {"max_candidates": 2}}, reticent={"candidates": 3})


def test_fewer_candidates_never_cost_more() -> None:
    for rule in ("privbon", "privitp"):
        costs = [plan(reticent={"rule": rule, "candidates": n}).rule.worst_case for n in (1, 2, 4, 8, 16)]
        assert costs == sorted(costs)


def test_a_client_cannot_choose_a_noise_scale() -> None:
    for name in ("noise_scale", "sigma", "regularization", "threshold_noise", "order", "epsilon"):
        with pytest.raises(BadRequest):
            plan(reticent={name: 1e9})


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({}, 48),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 7, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 1024}, 1024),
    ],
)
def test_the_number_of_tokens_is_asked_for_under_either_name(more: dict[str, Any], tokens: int) -> None:
    assert plan(**more).sampling.max_tokens == tokens


@pytest.mark.parametrize("more", [{"max_tokens": 1025}, {"max_tokens": 2, "max_completion_tokens": 3}])
def test_too_many_tokens_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        plan(**more)
    assert caught.value.param == "max_tokens"


def test_zero_is_a_temperature_and_not_the_default() -> None:
    found = plan(temperature=0, top_p=0.5, presence_penalty=0.5, logit_bias={"20": 1, "3": -1}, seed=0, stop="x")
    assert found.sampling.temperature == 0.0
    assert found.sampling.logit_bias == ((3, -1.0), (20, 1.0))
    assert (found.sampling.seed, found.sampling.stop) == (0, ("x",))


def test_a_seed_is_no_part_of_what_a_certificate_is_bound_to() -> None:
    assert plan(seed=1).sampling.facts() == plan(seed=2).sampling.facts()
    assert plan(temperature=0.1).sampling.facts() != plan(temperature=0.2).sampling.facts()


@pytest.mark.parametrize(
    ("more", "scope"),
    [
        ({"user": "ann"}, "user:notes/strict/ann"),
        ({"safety_identifier": "ann"}, "user:notes/strict/ann"),
        ({"user": "a/b"}, "user:notes/strict/a%2Fb"),
        ({"user": "../lenient/x"}, "user:notes/strict/..%2Flenient%2Fx"),
        ({"user": "é" * 1000}, None),
        ({"user": "\U0001f3ee" * 1024}, None),
    ],
)
def test_a_user_never_reaches_another_tenants_scope(more: dict[str, Any], scope: str | None) -> None:
    found = plan(**more).scope
    assert found.startswith("user:notes/strict/")
    assert scope in (None, found)


def prompt(body: dict[str, Any], settings: PromptSettings) -> Any:
    return render_prompt(parse_chat_request(json.dumps(body).encode(), max_messages=50), settings)


TEMPLATE = PromptSettings(evidence_template="[{evidence}] {question}", evidence_separator=" | ", no_evidence="-")


def test_evidence_is_rendered_and_removed_by_the_template() -> None:
    found = prompt(chat_body(reticent={"evidence": ["One.", "Two."]}), TEMPLATE)
    assert found.messages == ({"role": "user", "content": f"[One. | Two.] {QUESTION}"},)
    assert found.bare_messages == ({"role": "user", "content": f"[-] {QUESTION}"},)
    assert found.subject.prompt == f"[One. | Two.] {QUESTION}"
    assert (found.subject.question, found.subject.evidence) == (QUESTION, ("One.", "Two."))
    assert (found.form, len(found.template)) == ("evidence", 64)


def test_a_template_may_put_the_question_first() -> None:
    settings = PromptSettings(evidence_template="Q {question} E {evidence}.")
    found = prompt(chat_body(reticent={"evidence": ["One."]}), settings)
    assert found.messages[-1]["content"] == f"Q {QUESTION} E One.."


def test_without_evidence_the_prompt_is_the_clients() -> None:
    found = prompt(chat_body(), TEMPLATE)
    assert found.messages == ({"role": "user", "content": QUESTION},)
    assert (found.bare_messages, found.form, found.template) == (None, "plain", "")


def test_earlier_messages_stay_and_make_another_form() -> None:
    body = chat_body(reticent={"evidence": ["One."]})
    body["messages"] = [
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "short."}]},
        {"role": "user", "content": "Hello?", "name": "ann"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": QUESTION},
    ]
    found = prompt(body, TEMPLATE)
    assert found.messages[:3] == found.bare_messages[:3]
    assert found.messages[:2] == (
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello?", "name": "ann"},
    )
    assert found.form == "conversation-with-evidence"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "  "}],
        [{"role": "user", "content": None}],
        [{"role": "system", "content": "Be short."}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
    ],
)
def test_a_conversation_must_end_with_a_users_text(messages: list[Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        prompt({**chat_body(), "messages": messages}, TEMPLATE)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("evidence", [[], ["e"], ["e"] * 3])
def test_a_question_too_long_for_the_worker_is_the_clients_fault(evidence: list[str]) -> None:
    more = {"reticent": {"evidence": evidence}} if evidence else {}
    prompt(chat_body("x" * MAX_QUESTION_CHARACTERS, **more), TEMPLATE)
    with pytest.raises(BadRequest) as caught:
        prompt(chat_body("x" * (MAX_QUESTION_CHARACTERS + 1), **more), TEMPLATE)
    assert caught.value.param == "messages"
    assert str(MAX_QUESTION_CHARACTERS) in caught.value.message


@pytest.mark.parametrize("pieces", [1, 3, 64])
def test_evidence_too_long_for_the_worker_is_the_clients_fault(pieces: int) -> None:
    def evidence(length: int) -> dict[str, Any]:
        return chat_body(reticent={"evidence": ["x"] * (pieces - 1) + ["x" * (length - pieces + 1)]})

    prompt(evidence(MAX_EVIDENCE_CHARACTERS), TEMPLATE)
    with pytest.raises(BadRequest) as caught:
        prompt(evidence(MAX_EVIDENCE_CHARACTERS + 1), TEMPLATE)
    assert caught.value.param == "reticent.evidence"
    assert str(MAX_EVIDENCE_CHARACTERS) in caught.value.message


def test_too_many_sentences_for_the_worker_are_the_clients_fault() -> None:
    prompt(chat_body(reticent={"evidence": ["A.", "B. " * (MAX_SENTENCES - 1)]}), TEMPLATE)
    with pytest.raises(BadRequest) as caught:
        prompt(chat_body(reticent={"evidence": ["A.", "B. " * MAX_SENTENCES]}), TEMPLATE)
    assert caught.value.param == "reticent.evidence"
    # Without evidence the worker reads the last message's sentences in its place; with evidence it does not.
    prompt(chat_body("A. " * MAX_SENTENCES), TEMPLATE)
    prompt(chat_body("A. " * (MAX_SENTENCES + 1), reticent={"evidence": ["A."]}), TEMPLATE)
    with pytest.raises(BadRequest) as caught:
        prompt(chat_body("A. " * (MAX_SENTENCES + 1)), TEMPLATE)
    assert caught.value.param == "messages"


def test_a_template_that_makes_a_text_too_long_for_the_workers_protocol_is_refused() -> None:
    settings = PromptSettings(evidence_template="[{evidence}] {question}" + " " * MAX_CHARACTERS)
    with pytest.raises(BadRequest) as caught:
        prompt(chat_body(reticent={"evidence": ["One."]}), settings)
    assert caught.value.param == "messages"


def test_another_template_has_another_hash() -> None:
    body = chat_body(reticent={"evidence": ["One."]})
    others = [
        PromptSettings(evidence_template="({evidence}) {question}", evidence_separator=" | ", no_evidence="-"),
        PromptSettings(evidence_template="[{evidence}] {question}", evidence_separator=" , ", no_evidence="-"),
        PromptSettings(evidence_template="[{evidence}] {question}", evidence_separator=" | ", no_evidence="?"),
    ]
    hashes = {prompt(body, settings).template for settings in (TEMPLATE, *others)}
    assert len(hashes) == 4


braces = st.text(st.sampled_from("{}evidncqusto ,%s0!"), max_size=40)


@given(braces.filter(str.strip), st.lists(braces.filter(str.strip), min_size=1, max_size=3))
def test_braces_in_a_clients_text_are_never_taken_for_places(question: str, evidence: list[str]) -> None:
    found = prompt(chat_body(question, reticent={"evidence": evidence}), TEMPLATE)
    assert found.messages[-1]["content"] == "[" + " | ".join(evidence) + "] " + question
    assert found.bare_messages[-1]["content"] == "[-] " + question


def test_every_error_of_a_plan_is_one_that_reaches_a_client() -> None:
    for more in ({"model": "x"}, {"reticent": {"rule": "bon"}}, {"best_of": 99}):
        with pytest.raises(ApiError):
            plan(**more)


@pytest.mark.parametrize("evidence", [[""], ["  "], ["Ada has a cat.", "\n"]])
def test_evidence_without_text_is_refused(evidence: list[str]) -> None:
    request = ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "?"}], "reticent": {"evidence": evidence}}
    )
    with pytest.raises(BadRequest, match="must have text") as caught:
        render_prompt(request, TEMPLATE)
    assert caught.value.param == "reticent.evidence"
