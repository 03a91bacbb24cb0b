"""One request through the handler, with a real ledger: what happens when each part fails at each moment.

Whatever happens, the ledger is audited at the end (`tests.fakes.build.world`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.ledger_errors import AlreadyForfeited, LedgerUnavailable
from reticent.plugin.errors import (
    ApiError,
    BudgetRefused,
    Forbidden,
    Overloaded,
    PromptRefused,
    SourceUnavailable,
    Unavailable,
)
from reticent.rewards import WorkerFailed, WorkerRefused, WorkerUnavailable
from tests.fakes.build import certificate, facts_for, make_settings, make_world, run, until, world
from tests.fakes.parts import FakeRewards, FakeSource

HALF: dict[str, Any] = {"tenants.0.policy": {"gate": "observe"}}
"""`strict` without its gate, where the gate is not what is tested."""

PRIVITP: dict[str, Any] = {"reticent": {"rule": "privitp"}}


def test_a_request_reserves_draws_scores_and_settles_in_this_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            answer = await w.answer()
            assert w.events == ["reserve", "draw 4", "rewards 4", "settle"]
            assert answer.outcome == "selected"
            assert answer.selection is not None
            charge = answer.selection.charge
            assert charge == answer.plan.rule.worst_case > 0
            for kind in ("user", "tenant", "dataset"):
                scope = w.scopes()[kind]
                assert (scope.spent, scope.reserved, scope.settled) == (charge, 0, 1)
            assert [s.kind for s in answer.statements] == ["user", "tenant", "dataset"]
            assert w.metric("reticent_requests_total", outcome="selected", rule="privbon") == 1

    run(story())


def test_the_charge_of_privitp_is_the_realised_one_and_below_its_reservation(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF, rewards=FakeRewards(reward=lambda text: 1.0)) as w:
            answer = await w.answer(**PRIVITP)
            selection = answer.selection
            assert selection is not None
            assert selection.halting_time is not None
            assert 0 < selection.charge <= answer.plan.rule.worst_case
            assert w.scopes()["user"].spent == selection.charge
            settled = [payload for kind, payload in w.journal() if kind == "settled"]
            assert settled[-1]["details"]["halting_time"] == selection.halting_time

    run(story())


@pytest.mark.parametrize("error", [SourceUnavailable("gone"), PromptRefused("too long", "messages")])
def test_a_source_that_fails_before_rewards_releases_the_reservation(tmp_path: Path, error: ApiError) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF, source=FakeSource(fail={2: error})) as w:
            await w.answer()
            before = w.spent()
            with pytest.raises(type(error)):
                await w.answer()
            assert w.spent() == before
            assert w.events[-3:] == ["reserve", "draw 4", "release"]
            assert w.scopes()["dataset"].released == 1
            assert w.metric("reticent_requests_total", outcome="error", rule="privbon") == 1
            assert w.metric("reticent_forfeits_total") == 0

    run(story())


@pytest.mark.parametrize("error", [WorkerUnavailable("no connection"), WorkerRefused(503)])
def test_a_worker_that_computed_nothing_gives_503_and_a_release(tmp_path: Path, error: Exception) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF, rewards=FakeRewards(fail={1: error})) as w:
            before = w.spent()
            with pytest.raises(Unavailable) as caught:
                await w.answer()
            assert (caught.value.status, str(caught.value)) == (503, "The reward worker is not available.")
            assert {scope: w.spent()[scope] for scope in before} == before
            assert w.scopes()["user"].released == 1
            assert w.metric("reticent_worker_errors_total") == 1

    run(story())


def test_a_worker_that_may_have_computed_costs_the_worst_case(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF, rewards=FakeRewards(fail={1: WorkerFailed("killed")})) as w:
            worst = w.plan().rule.worst_case
            with pytest.raises(Unavailable):
                await w.answer()
            for scope in w.scopes().values():
                assert (scope.spent, scope.reserved, scope.forfeited) == (worst, 0, 1)
            assert w.metric("reticent_forfeits_total") == 1

    run(story())


@pytest.mark.parametrize("error", [WorkerUnavailable("gone"), WorkerFailed("gone")])
def test_a_worker_that_fails_in_the_second_chunk_costs_the_worst_case(tmp_path: Path, error: Exception) -> None:
    """Nothing was computed in the second call, but the first one has told the threshold."""

    async def story() -> None:
        # One candidate in a chunk with reward 0 under a strict law is rejected nearly always; the second call fails.
        law = {
            **HALF,
            "selection.privitp": {
                "regularization": 0.1,
                "threshold_noise": 0.001,
                "reward_noise": 0.002,
                "truncation": 2.0,
                "chunk": 1,
            },
            "dataset.epsilon": 4e6,
            "tenants.0.budget.epsilon": 4e6,
            "tenants.0.user_budget.epsilon": 4e6,
        }
        rewards = FakeRewards(reward=lambda text: 0.0 if len(text) > 18 else 1.0, fail={2: error})
        async with world(tmp_path, law, rewards=rewards) as w:
            plan = w.plan(**PRIVITP)
            with pytest.raises(Unavailable):
                await w.answer(**PRIVITP)
            assert [e for e in w.events if e.startswith("rewards")] == ["rewards 5", "rewards 2"]
            assert w.scopes()["user"].spent == plan.rule.worst_case

    run(story())


def test_every_chunk_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    """So that a seed gives other candidates in every chunk; and each tenant has a prefix cache of its own."""

    async def story() -> None:
        async with world(tmp_path, {**HALF, "selection.privitp.chunk": 1}) as w:
            for _ in range(30):
                w.source.draws.clear()
                await w.answer(seed=5, user=str(len(w.rewards.calls)), **PRIVITP)
                begun = 0
                for count, salt, offset in w.source.draws:
                    assert (salt, offset) == ("strict", begun)
                    begun += count
                if len(w.source.draws) > 2:
                    return
            raise AssertionError("no request needed three draws")

    run(story())


@pytest.mark.parametrize("wrong", [[0.5], [0.5] * 5, ["high"] * 4])
def test_rewards_of_the_wrong_number_or_kind_cost_the_worst_case(tmp_path: Path, wrong: list[Any]) -> None:
    class Wrong(FakeRewards):
        async def score(self, subject: Any, candidates: Any) -> list[float]:
            return wrong

    async def story() -> None:
        async with world(tmp_path, HALF, rewards=Wrong()) as w:
            worst = w.plan().rule.worst_case
            with pytest.raises((ValueError, TypeError)):
                await w.answer()
            assert w.scopes()["user"].spent == worst

    run(story())


@pytest.mark.parametrize(("reward", "least"), [(float("nan"), 0), (float("inf"), 0), (-3.0, 0), (9.0, 2**30)])
def test_a_reward_that_is_no_number_is_bounded_by_rule(tmp_path: Path, reward: float, least: int) -> None:
    seen: list[list[int]] = []

    async def story() -> None:
        async with world(tmp_path, HALF, rewards=FakeRewards(reward=lambda text: reward)) as w:
            from reticent.plugin.handler import Session

            plan = w.plan()
            lattice = w.core.rules._lattice
            session = Session(plan, w.source, w.rewards, lattice, w.core.metrics)
            seen.append(await session.rewards(await session.draw(2)))

    run(story())
    assert seen == [[least, least]]


def test_an_empty_candidate_has_reward_zero_whatever_the_worker_says(tmp_path: Path) -> None:
    async def story() -> None:
        source = FakeSource(text=lambda i: "" if i == 0 else "lantern")
        async with world(tmp_path, HALF, source=source) as w:
            from reticent.plugin.handler import Session

            session = Session(w.plan(), w.source, w.rewards, w.core.rules._lattice, w.core.metrics)
            assert await session.rewards(await session.draw(2)) == [0, 2**29]

    run(story())


def test_a_ledger_that_is_down_gives_503_and_no_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            w.ledger.broken["reserve"] = LedgerUnavailable("disk full")
            with pytest.raises(Unavailable) as caught:
                await w.answer()
            assert caught.value.status == 503
            assert w.events == []
            w.ledger.broken.clear()
            assert (await w.answer()).outcome == "selected"

    run(story())


def test_a_closed_ledger_gives_503(tmp_path: Path) -> None:
    async def story() -> None:
        w = make_world(tmp_path, HALF)
        await w.core.start()
        await w.core.accounts.close()
        with pytest.raises(Unavailable):
            await w.answer()
        assert w.source.draws == []

    run(story())


@pytest.mark.parametrize(
    "error", [LedgerUnavailable("disk full"), AlreadyForfeited("request-1", 5)], ids=["unavailable", "forfeited"]
)
def test_a_failed_settlement_lets_no_answer_leave(tmp_path: Path, error: Exception) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            w.ledger.broken["settle"] = error
            with pytest.raises(Unavailable):
                await w.answer()
            assert w.events == ["reserve", "draw 4", "rewards 4", "forfeit"]
            assert w.scopes()["user"].spent == w.plan().rule.worst_case

    run(story())


def test_a_settlement_of_unknown_outcome_lets_no_answer_leave_and_is_booked_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            w.ledger.after["settle"] = LedgerUnavailable("no answer from the disk")
            with pytest.raises(Unavailable):
                await w.answer()
            assert w.events[-2:] == ["settle", "forfeit"]
            scope = w.scopes()["user"]
            assert (scope.spent, scope.settled, scope.forfeited) == (w.plan().rule.worst_case, 1, 0)
            assert w.metric("reticent_forfeits_total") == 0
            assert "was settled at" in caplog.text
            assert "left to its lease" not in caplog.text

    run(story())


def test_a_ledger_that_stays_down_leaves_the_reservation_to_its_lease(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF, rewards=FakeRewards(fail={1: WorkerFailed("x")})) as w:
            w.ledger.broken["forfeit"] = LedgerUnavailable("disk full")
            with pytest.raises(Unavailable):
                await w.answer()
            (held,) = w.ledger.open_reservations()
            assert held.worst_case == w.scopes()["user"].reserved
            w.ledger.broken.clear()
            w.ledger.forfeit_expired(held.expires_us)
            assert w.scopes()["user"].spent == held.worst_case

    run(story())


@pytest.mark.parametrize(("where", "spends"), [("source", False), ("rewards", True)])
def test_a_cancelled_request_is_released_before_and_forfeited_after_scoring(
    tmp_path: Path, where: str, spends: bool
) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            part: FakeSource | FakeRewards = w.source if where == "source" else w.rewards
            part.hold = asyncio.Event()
            task = w.core.submit(w.plan(), "request-x")
            await until(lambda: bool(w.source.draws if where == "source" else w.rewards.calls))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            scope = w.scopes()["user"]
            assert (scope.spent, scope.reserved) == (w.plan().rule.worst_case if spends else 0, 0)

    run(story())


@pytest.mark.parametrize(("where", "spends"), [("source", False), ("rewards", True)])
def test_a_request_that_takes_too_long_gives_503(tmp_path: Path, where: str, spends: bool) -> None:
    async def story() -> None:
        async with world(tmp_path, {**HALF, "server.request_seconds": 0.2}) as w:
            part: FakeSource | FakeRewards = w.source if where == "source" else w.rewards
            part.hold = asyncio.Event()
            with pytest.raises(Unavailable, match="too long"):
                await w.answer()
            scope = w.scopes()["user"]
            assert (scope.spent, scope.reserved) == (w.plan().rule.worst_case if spends else 0, 0)
            assert w.metric("reticent_requests_total", outcome="error", rule="privbon") == 1

    run(story())


def test_a_request_cancelled_while_it_reserves_holds_nothing_afterwards(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            entered, go_on = threading.Event(), threading.Event()

            def slow(operation: str) -> None:
                if operation == "reserve":
                    entered.set()
                    go_on.wait(10.0)

            w.ledger.slow = slow
            task = w.core.submit(w.plan(), "request-x")
            await until(entered.is_set)
            task.cancel()
            await asyncio.sleep(0.01)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert w.events == ["reserve", "release"]
            assert w.ledger.open_reservations() == ()
            assert w.scopes()["user"].spent == 0

    run(story())


def test_a_request_cancelled_while_it_settles_is_booked_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            entered, go_on = threading.Event(), threading.Event()

            def slow(operation: str) -> None:
                if operation == "settle":
                    entered.set()
                    go_on.wait(10.0)

            w.ledger.slow = slow
            task = w.core.submit(w.plan(), "request-x")
            await until(entered.is_set)
            task.cancel()
            await asyncio.sleep(0.01)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: w.scopes()["user"].reserved == 0)
            scope = w.scopes()["user"]
            assert scope.spent == w.plan().rule.worst_case
            assert scope.settled + scope.forfeited == 1

    run(story())


def test_an_abstention_is_settled_like_an_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            answer = await w.answer()
            assert (answer.outcome, answer.verdict.reason) == ("abstained", "no_certificate")
            assert w.events[-1] == "settle"
            assert w.scopes()["user"].spent == w.plan().rule.worst_case
            settled = [payload for kind, payload in w.journal() if kind == "settled"]
            assert settled[-1]["details"]["outcome"] == "abstained"

    run(story())


def test_a_certified_answer_passes_the_gate(tmp_path: Path) -> None:
    async def story() -> None:
        certified = certificate(facts_for(make_settings(tmp_path)))
        async with world(tmp_path, certificates=[certified]) as w:
            answer = await w.answer()
            assert (answer.outcome, answer.score) == ("selected", 1.0)
            assert answer.verdict.certificate is certified
            # Other parameters than the certified ones: no certificate for them.
            other = await w.answer(reticent={"candidates": 2})
            assert (other.outcome, other.verdict.reason) == ("abstained", "fingerprint_mismatch")
            assert "selection.candidates" in (other.verdict.detail or "")

    run(story())


def test_an_answer_below_the_threshold_is_withheld(tmp_path: Path) -> None:
    async def story() -> None:
        certified = certificate(facts_for(make_settings(tmp_path)))
        source = FakeSource(text=lambda i: f"word{chr(97 + i)} other{chr(97 + i)}")
        async with world(tmp_path, certificates=[certified], source=source) as w:
            answer = await w.answer()
            assert (answer.outcome, answer.verdict.reason, answer.score) == ("abstained", "score_below_threshold", 0.0)

    run(story())


@pytest.mark.parametrize(
    ("constants", "bare", "score"),
    [((1.0,), (-1.5, -1.25), 1.0), ((1.0,), (-1.0, -0.5), 0.375), ((1.0,), (-1.0,), None), ((1.0,), (), None)],
    ids=["far", "near", "another length", "nothing"],
)
def test_evidence_lift_compares_with_the_pass_without_evidence(
    tmp_path: Path, constants: tuple[float], bare: tuple[float, ...], score: float | None
) -> None:
    async def story() -> None:
        changes = {**HALF, "gate": {"score": "evidence_lift", "score_constants": {"clip": constants[0]}}}
        async with world(tmp_path, changes) as w:
            w.source.bare = bare
            answer = await w.answer(reticent={"evidence": ["A copper lantern."]})
            assert answer.score == score
            assert w.events == ["reserve", "draw 4", "rewards 4", "bare pass", "settle"]

    run(story())


def test_a_score_whose_inputs_are_missing_reaches_no_threshold(tmp_path: Path) -> None:
    async def story() -> None:
        changes = {"gate": {"score": "evidence_lift"}}
        certified = certificate(facts_for(make_settings(tmp_path, changes)))
        async with world(tmp_path, changes, certificates=[certified]) as w:
            answer = await w.answer()
            assert (answer.score, answer.verdict.reason) == (None, "score_below_threshold")

    run(story())


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
            assert (answer.outcome, answer.selection, answer.score) == ("base", None, None)
            assert answer.verdict.reason == "not_selected"
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
            first = (await w.answer("strict", user="ann")).selection
            second = (await w.answer("lenient", user="ann")).selection
            third = (await w.answer("lenient", user="bob")).selection
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
            assert answer.selection is not None
            assert answer.selection.charge == 0
            assert w.scopes("open")["user"].settled == 1
            reserved = [payload for kind, payload in w.journal() if kind == "reserved"]
            assert reserved[-1]["details"] | {"rule": rule, "private": 0} == reserved[-1]["details"]

    with caplog.at_level(logging.WARNING, "reticent"):
        run(story())
    assert [r.getMessage() for r in caplog.records] == [f"tenant open got an answer without privacy (rule {rule})"]


def test_a_full_server_refuses_before_it_reserves(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, {**HALF, "server.max_concurrent": 2}) as w:
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


@pytest.mark.parametrize("rule", ["privbon", "privitp"])
def test_fifty_concurrent_requests_never_overspend_one_budget(tmp_path: Path, rule: str) -> None:
    async def story() -> None:
        changes = {**HALF, "tenants.0.user_budget.epsilon": 2.0 if rule == "privbon" else 9.0}
        async with world(tmp_path, changes) as w:
            plan = w.plan(reticent={"rule": rule})
            results = await asyncio.gather(
                *(w.core.submit(plan, f"request-{i}") for i in range(50)), return_exceptions=True
            )
            charges = [r.selection.charge for r in results if not isinstance(r, BaseException) and r.selection]
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
