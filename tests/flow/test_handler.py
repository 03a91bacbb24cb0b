"""One request through the handler, with a real ledger: what happens when each part fails at each moment.

Whatever happens, the ledger is audited at the end (`tests.fakes.build.world`).
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.ledger_errors import AlreadyForfeited, LedgerUnavailable
from reticent.plugin.errors import (
    ApiError,
    PromptRefused,
    SourceUnavailable,
    Unavailable,
)
from reticent.plugin.session import Session
from reticent.rewards import WorkerFailed, WorkerRefused, WorkerUnavailable
from tests.fakes.build import World, certificate, facts_for, make_settings, make_world, run, until, world
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
            assert answer.choices[0].selection is not None
            charge = answer.choices[0].selection.charge
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
            selection = answer.choices[0].selection
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
        async def score(self, subject: Any, candidates: Any, *, patient: bool) -> list[float]:
            return wrong

    async def story() -> None:
        async with world(tmp_path, HALF, rewards=Wrong()) as w:
            worst = w.plan().rule.worst_case
            with pytest.raises(ApiError) as failed:
                await w.answer()
            assert (failed.value.status, failed.value.retry) == (500, False)
            assert w.scopes()["user"].spent == worst

    run(story())


@pytest.mark.parametrize(("reward", "least"), [(float("nan"), 0), (float("inf"), 0), (-3.0, 0), (9.0, 2**30)])
def test_a_reward_that_is_no_number_is_bounded_by_rule(tmp_path: Path, reward: float, least: int) -> None:
    seen: list[list[int]] = []

    async def story() -> None:
        async with world(tmp_path, HALF, rewards=FakeRewards(reward=lambda text: reward)) as w:
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
    "error",
    [LedgerUnavailable("disk full", "nothing_written"), AlreadyForfeited("request-1", 5)],
    ids=["unavailable", "forfeited"],
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
            w.ledger.after["settle"] = LedgerUnavailable("no answer from the disk", "unknown")
            w.ledger.again["settle"] = LedgerUnavailable("disk full", "nothing_written")
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


async def cancel_during(w: World, where: str) -> None:
    """Submit a request and cancel it while its call `where` of the ledger is under way in its thread."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(operation: str) -> None:
        if operation == where:
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


def test_a_request_cancelled_while_it_reserves_holds_nothing_afterwards(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            await cancel_during(w, "reserve")
            assert w.events == ["reserve", "release"]
            assert w.ledger.open_reservations() == ()
            assert w.scopes()["user"].spent == 0

    run(story())


def test_a_request_cancelled_while_it_settles_is_booked_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            await cancel_during(w, "settle")
            await until(lambda: w.scopes()["user"].reserved == 0)
            scope = w.scopes()["user"]
            assert scope.spent == w.plan().rule.worst_case
            assert scope.settled + scope.forfeited == 1

    run(story())


def test_an_abstention_is_settled_like_an_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            answer = await w.answer()
            assert (answer.outcome, answer.choices[0].verdict.reason) == ("abstained", "no_certificate")
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
            assert (answer.outcome, answer.choices[0].score) == ("selected", 1.0)
            assert answer.choices[0].verdict.certificate is certified
            # Other parameters than the certified ones: no certificate for them.
            other = await w.answer(reticent={"candidates": 2})
            assert (other.outcome, other.choices[0].verdict.reason) == ("abstained", "fingerprint_mismatch")
            assert "selection.candidates" in (other.choices[0].verdict.detail or "")

    run(story())


def test_an_answer_below_the_threshold_is_withheld(tmp_path: Path) -> None:
    async def story() -> None:
        certified = certificate(facts_for(make_settings(tmp_path)))
        source = FakeSource(text=lambda i: f"word{chr(97 + i)} other{chr(97 + i)}")
        async with world(tmp_path, certificates=[certified], source=source) as w:
            answer = await w.answer()
            assert (answer.outcome, answer.choices[0].verdict.reason, answer.choices[0].score) == (
                "abstained",
                "score_below_threshold",
                0.0,
            )

    run(story())


@pytest.mark.parametrize(
    ("constants", "bare", "told", "score"),
    [
        ((1.0,), (-1.5, -1.25), None, 1.0),
        ((1.0,), (-1.0, -0.5), None, 0.375),
        ((1.0,), (-1.0,), (-0.5,), 0.5),
        ((1.0,), (-1.0,), (-0.5, -0.25), None),
        ((1.0,), (), None, None),
    ],
    ids=["far", "near", "another length", "another length twice", "nothing"],
)
def test_evidence_lift_compares_with_the_pass_without_evidence(
    tmp_path: Path,
    constants: tuple[float],
    bare: tuple[float, ...],
    told: tuple[float, ...] | None,
    score: float | None,
) -> None:
    async def story() -> None:
        changes = {
            **HALF,
            "gate": {"score": "evidence_lift", "score_constants": {"clip": constants[0], "end_token": "left out"}},
        }
        async with world(tmp_path, changes) as w:
            w.source.bare, w.source.told = bare, told or ()
            answer = await w.answer(reticent={"evidence": ["A copper lantern."]})
            assert answer.choices[0].score == score
            # The pass with the evidence comes from sampling; it is run apart only where its tokens are not the same.
            passes = ["bare pass"] + ["forced pass"] * (told is not None)
            assert w.events == ["reserve", "draw 4", "rewards 4", *passes, "settle"]

    run(story())


def test_a_score_whose_inputs_are_missing_reaches_no_threshold(tmp_path: Path) -> None:
    async def story() -> None:
        changes = {"gate": {"score": "evidence_lift"}}
        certified = certificate(facts_for(make_settings(tmp_path, changes)))
        async with world(tmp_path, changes, certificates=[certified]) as w:
            answer = await w.answer()
            assert (answer.choices[0].score, answer.choices[0].verdict.reason) == (None, "score_below_threshold")

    run(story())
