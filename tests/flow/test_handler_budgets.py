"""Budgets, policies, limits and the end of a server, through the handler with a real ledger."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.charges.privbon import PrivBoN
from reticent.plugin.errors import (
    BudgetRefused,
    Forbidden,
    Overloaded,
    SourceUnavailable,
    Unavailable,
)
from tests.fakes.build import make_world, run, until, world

HALF: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}
"""`strict` without its gate, where the gate is not what is tested."""

PRIVITP: dict[str, Any] = {"reticent": {"rule": "privitp"}}

SMALL: dict[str, Any] = {
    # A budget for exactly one answer of `lenient` and `strict`: the overhead for δ is 0.5186 nats, an answer 0.1002.
    "tenants.0.user_budget.epsilon": 0.65,
    "tenants.1.user_budget.epsilon": 0.65,
}


def test_a_spent_budget_gives_a_free_base_answer_without_reading_rewards(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, SMALL) as w:
            assert (await w.answer("lenient")).outcome == "selected"
            before, calls = w.spent(), len(w.rewards.calls)
            head = w.ledger.head()
            answer = await w.answer("lenient")
            assert (answer.outcome, answer.choices[0].selection, answer.choices[0].score) == ("base", None, None)
            assert answer.choices[0].verdict.reason == "not_selected"
            assert w.spent() == before
            assert w.ledger.head() == head
            assert len(w.rewards.calls) == calls
            assert w.events[-1] == "draw 1"
            assert w.metric("reticent_requests_total", outcome="base", rule="privbon") == 1

    run(story())


def test_a_spent_budget_is_refused_where_the_policy_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**SMALL, **HALF}) as w:
            await w.answer("strict")
            draws = len(w.source.draws)
            with pytest.raises(BudgetRefused, match="of this user is spent") as caught:
                await w.answer("strict")
            assert (caught.value.status, caught.value.code) == (403, "privacy_budget_exhausted")
            assert len(w.source.draws) == draws
            assert w.metric("reticent_requests_total", outcome="refused", rule="privbon") == 1

    run(story())


@pytest.mark.parametrize(("scope", "words"), [("user_budget", "user"), ("budget", "tenant"), ("dataset", "data set")])
def test_the_refusal_names_the_scope_that_is_spent(tmp_path: Path, scope: str, words: str) -> None:
    async def story() -> None:
        place = "dataset.epsilon" if scope == "dataset" else f"tenants.0.{scope}.epsilon"
        async with world(tmp_path, {place: 0.65}) as w:
            await w.answer()
            with pytest.raises(BudgetRefused, match=f"of this {words} is spent"):
                await w.answer()

    run(story())


def test_a_client_can_only_be_stricter_than_its_policy(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, SMALL) as w:
            # `lenient` observes and gets base answers; it may ask for less.
            assert (await w.answer("lenient", reticent={"gate": "abstain"})).outcome == "abstained"
            with pytest.raises(BudgetRefused):
                await w.answer("lenient", reticent={"on_exhausted": "refuse"})
            # `strict` may not ask for more.
            assert (await w.answer("strict", reticent={"gate": "observe"})).outcome == "abstained"
            with pytest.raises(BudgetRefused):
                await w.answer("strict", reticent={"on_exhausted": "base"})

    run(story())


def test_two_tenants_share_the_data_sets_budget_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            first = (await w.answer("strict", user="ann")).choices[0].selection
            second = (await w.answer("lenient", user="ann")).choices[0].selection
            third = (await w.answer("lenient", user="bob")).choices[0].selection
            assert first is not None
            assert second is not None
            assert third is not None
            strict, ann, bob = w.scopes("strict", "ann"), w.scopes("lenient", "ann"), w.scopes("lenient", "bob")
            assert strict["user"].spent == strict["tenant"].spent == first.charge
            assert (ann["user"].spent, bob["user"].spent) == (second.charge, third.charge)
            assert ann["tenant"].spent == second.charge + third.charge
            assert ann["dataset"].spent == first.charge + second.charge + third.charge

    run(story())


def test_a_request_without_a_user_is_booked_to_one_anonymous_user(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            await w.answer()
            await w.answer()
            assert w.scopes("strict", "anonymous")["user"].settled == 2

    run(story())


def test_the_journal_has_all_that_an_auditor_needs_to_compute_a_charge_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            await w.answer()
            reserved = [payload for kind, payload in w.journal() if kind == "reserved"][-1]
            details = reserved["details"]
            again = PrivBoN(1.0, details["sensitivity"], details["candidates"], details["noise_scale"])
            assert again.charge_rounded_up(20.0) == reserved["worst_case"]

    run(story())


def test_a_tenant_may_have_only_so_many_users(tmp_path: Path) -> None:
    async def story() -> None:
        limit = {**HALF, "tenants.0.max_users": 2}
        async with world(tmp_path, limit) as w:
            await asyncio.gather(*(w.answer(user=user) for user in ("ann", "bob", "ann", "bob")))
            with pytest.raises(Forbidden) as caught:
                await w.answer(user="eve")
            assert (caught.value.status, caught.value.param) == (403, "user")
            assert (await w.answer(user="ann")).outcome == "selected"
            assert (await w.answer("lenient", user="eve")).outcome == "selected"
        # A second start knows the users that there were.
        async with world(tmp_path, limit) as w:
            with pytest.raises(Forbidden):
                await w.answer(user="eve")
            assert (await w.answer(user="bob")).outcome == "selected"

    run(story())


def test_a_budget_changed_in_the_configuration_alone_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            granted = w.scopes_of("tenant:notes/strict").granted
        async with world(tmp_path, {**HALF, "tenants.0.budget.epsilon": 1e6}) as w:
            assert w.scopes_of("tenant:notes/strict").granted == granted

    run(story())
    assert "keeps them" in caplog.text


@pytest.mark.parametrize("rule", ["bon", "itp"])
def test_a_rule_without_privacy_leaves_a_record_and_a_warning(
    tmp_path: Path, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            answer = await w.answer("open", reticent={"rule": rule})
            assert answer.outcome == "selected"
            assert answer.choices[0].selection is not None
            assert answer.choices[0].selection.charge == 0
            assert w.scopes("open")["user"].settled == 1
            reserved = [payload for kind, payload in w.journal() if kind == "reserved"]
            assert reserved[-1]["details"] | {"rule": rule, "private": 0} == reserved[-1]["details"]

    with caplog.at_level(logging.WARNING, "reticent"):
        run(story())
    assert [r.getMessage() for r in caplog.records] == [f"tenant open got an answer without privacy (rule {rule})"]


def test_a_full_server_refuses_before_it_reserves(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**HALF, "server.max_concurrent": 2, "server.max_concurrent_per_tenant": 2}) as w:
            w.source.hold = asyncio.Event()
            tasks = [w.core.submit(w.plan(), f"held-{i}") for i in range(2)]
            with pytest.raises(Overloaded) as caught:
                w.core.submit(w.plan(), "one too many")
            assert (caught.value.status, caught.value.retry_after) == (429, 1)
            w.source.hold.set()
            await asyncio.gather(*tasks)
            assert (await w.answer()).outcome == "selected"
            assert w.events.count("reserve") == 3

    run(story())


def test_one_tenant_cannot_take_every_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**HALF, "server.max_concurrent": 4}) as w:
            w.source.hold = asyncio.Event()
            tasks = [w.core.submit(w.plan("strict"), f"held-{i}") for i in range(2)]
            with pytest.raises(Overloaded):
                w.core.submit(w.plan("strict"), "too-many")
            tasks.append(w.core.submit(w.plan("open"), "another"))
            w.source.hold.set()
            await asyncio.gather(*tasks)
            await w.core.submit(w.plan("strict"), "room")

    run(story())


@pytest.mark.parametrize("rule", ["privbon", "privitp"])
def test_fifty_concurrent_requests_never_overspend_one_budget(tmp_path: Path, rule: str) -> None:
    async def story() -> None:
        changes = {
            **HALF,
            "tenants.0.user_budget.epsilon": 2.0 if rule == "privbon" else 3.0,
            "server.max_concurrent_per_tenant": 64,
        }
        async with world(tmp_path, changes) as w:
            plan = w.plan(reticent={"rule": rule})
            results = await asyncio.gather(
                *(w.core.submit(plan, f"request-{i}") for i in range(50)), return_exceptions=True
            )
            charges = [
                r.choices[0].selection.charge
                for r in results
                if not isinstance(r, BaseException) and r.choices[0].selection
            ]
            refused = [r for r in results if isinstance(r, BudgetRefused)]
            assert len(charges) + len(refused) == 50
            assert charges
            assert refused
            scope = w.scopes()["user"]
            assert scope.spent == sum(charges) <= scope.granted
            assert scope.reserved == 0
            assert len(charges) >= scope.granted // plan.rule.worst_case

    run(story())


def test_closing_waits_for_open_requests(tmp_path: Path) -> None:
    async def story() -> None:
        w = make_world(tmp_path, HALF)
        await w.core.start()
        w.source.hold = asyncio.Event()
        task = w.core.submit(w.plan(), "request-1")
        await until(lambda: bool(w.source.draws))
        closing = asyncio.create_task(w.core.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        w.source.hold.set()
        await closing
        assert task.result().outcome == "selected"
        assert w.source.closed
        assert w.rewards.closed

    run(story())


def test_a_request_open_at_the_end_of_the_drain_is_forfeited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reticent.plugin.core._DRAIN_SECONDS", 0.05)

    async def story() -> None:
        w = make_world(tmp_path, HALF)
        await w.core.start()
        w.rewards.hold = asyncio.Event()
        task = w.core.submit(w.plan(), "request-1")
        await until(lambda: bool(w.rewards.calls))
        await w.core.close()
        assert task.cancelled()
        kinds = [kind for kind, _ in w.journal()]
        assert kinds[-1] == "forfeited"

    run(story())


def test_readiness_names_the_part_that_is_missing(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            await w.core.check()
            w.rewards.healthy = False
            with pytest.raises(Unavailable, match="worker"):
                await w.core.check()
            w.source.problem = SourceUnavailable("No upstream answers.")
            with pytest.raises(SourceUnavailable):
                await w.core.check()

    run(story())


def test_expired_leases_of_another_process_are_forfeited_at_the_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**HALF, "ledger.lease_seconds": 0.001, "server.request_seconds": 5}) as w:
            w.source.hold = asyncio.Event()
            task = w.core.submit(w.plan(), "request-1")
            await until(lambda: bool(w.source.draws))
            await asyncio.sleep(0.01)
            await w.core.accounts.sweep()
            assert w.metric("reticent_forfeits_total") == 1
            w.source.hold.set()
            with pytest.raises(Unavailable):
                await task
            assert w.scopes()["user"].forfeited == 1

    run(story())
