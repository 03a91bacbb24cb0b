"""The gate on a noisy reward: charged with every selection, accepted or not, and refused without its charge."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.charges.gaussian import renyi_charge
from reticent.plugin.core import gate_noise_for
from reticent.plugin.errors import ApiError
from reticent.plugin.gate import Gate
from reticent.plugin.selection.gated import Gated, gate_noise_of
from reticent.plugin.selection.rules import RuleBook
from reticent.plugin.settings import ConfigurationError
from reticent.rewards.errors import ScoreDependsOnRewards
from reticent.rewards.scores import Blend, NoisyReward, SelfConsistency
from tests.fakes.build import certificate, facts_for, make_settings, run, world
from tests.fakes.parts import FakeRewards

SIGMA = 0.25
NOISY: dict[str, Any] = {"gate": {"score": "noisy_reward", "score_constants": {"noise_scale": SIGMA}}}
PLAIN: dict[str, Any] = {}
ORDER = 20.0


def _wide(changes: dict[str, Any]) -> dict[str, Any]:
    return {
        **changes,
        "dataset.epsilon": 5000.0,
        "tenants.1.budget.epsilon": 4000.0,
        "tenants.1.user_budget.epsilon": 3000.0,
    }


@pytest.mark.parametrize("rule", ["privbon", "privitp"])
def test_worst_case_and_charge_grow_by_the_charge_of_the_noise(tmp_path: Path, rule: str) -> None:
    async def story() -> None:
        found = {}
        for name, changes in (("plain", PLAIN), ("noisy", NOISY)):
            folder = tmp_path / name
            folder.mkdir()
            async with world(folder, _wide(changes)) as w:
                plan = w.plan("lenient", reticent={"rule": rule})
                answer = await w.answer("lenient", reticent={"rule": rule})
                assert answer.choices[0].selection is not None
                found[name] = (
                    plan.rule.worst_case,
                    answer.choices[0].selection.charge,
                    answer.choices[0].selection.halting_time,
                )
                sensitivity = w.core.accounts._lattice.sensitivity
                assert w.scopes("lenient")["user"].spent == answer.choices[0].selection.charge
                (reserved,) = (payload for kind, payload in w.journal() if kind == "reserved")
                assert reserved["worst_case"] == plan.rule.worst_case
                assert reserved["details"].get("gate_noise") == (SIGMA if name == "noisy" else None)
        extra = found["noisy"][0] - found["plain"][0]
        wanted = renyi_charge(ORDER, sensitivity, SIGMA) * 1e9
        assert wanted <= extra <= wanted * (1 + 2e-9) + 1
        assert found["noisy"][1] >= extra
        if rule == "privbon":
            assert found["noisy"][1] - found["plain"][1] == extra

    run(story())


def test_the_noise_is_paid_for_by_answers_that_are_withheld_too(tmp_path: Path) -> None:
    async def story() -> None:
        # A reward of 0 with noise of .05 reaches the threshold of .5 with probability 1e-23.
        changes = {"gate": {**NOISY["gate"], "score_constants": {"noise_scale": 0.05}}}
        certified = certificate(facts_for(make_settings(tmp_path, changes)))
        rewards = FakeRewards(reward=lambda text: 0.0)
        async with world(tmp_path, changes, certificates=[certified], rewards=rewards) as w:
            answer = await w.answer()
            assert answer.outcome == "abstained"
            assert w.scopes()["user"].spent == w.plan().rule.worst_case

    run(story())


def test_the_score_is_the_reward_with_gaussian_noise_clipped(tmp_path: Path) -> None:
    async def story() -> list[float]:
        async with world(tmp_path, _wide(NOISY), rewards=FakeRewards(reward=lambda text: 0.5)) as w:
            answers = [await w.answer("lenient") for _ in range(120)]
        return [answer.choices[0].score or 0.0 for answer in answers]

    scores = run(story())
    assert all(0.0 <= score <= 1.0 for score in scores)
    # σ = .25 around .5, clipped two σ away: mean .5, standard deviation .24.
    assert statistics.mean(scores) == pytest.approx(0.5, abs=4 * 0.24 / 120**0.5)
    assert 0.18 < statistics.stdev(scores) < 0.30


def test_a_fallback_sample_is_given_its_reward_before_it_is_judged(tmp_path: Path) -> None:
    async def story() -> None:
        changes = {**_wide(NOISY), "selection.privitp.truncation": 0.0}
        rewards = FakeRewards(reward=lambda text: 0.0)
        async with world(tmp_path, changes, rewards=rewards) as w:
            for _ in range(40):
                before = len(rewards.calls)
                answer = await w.answer("lenient", reticent={"rule": "privitp"})
                assert answer.choices[0].selection is not None
                if answer.choices[0].selection.fallback:
                    assert rewards.calls[-1] == (answer.choices[0].chosen.text,)
                    assert len(rewards.calls) > before + 1
                    return
        pytest.fail("no fallback in 40 answers")

    run(story())


def test_a_rule_without_the_charge_gets_no_noisy_score_and_loses_its_worst_case(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, NOISY) as w:
            bare = RuleBook(w.settings.selection, w.core.accounts._lattice, ORDER).rule("privbon", 4)
            plan = replace(w.plan(), rule=bare)
            asked = len(w.rewards.calls)
            with pytest.raises(ApiError):
                await w.core.submit(plan, "request-x")
            assert len(w.rewards.calls) == asked + 1  # The selection's; none for the gate.
            assert w.scopes()["user"].spent == bare.worst_case

    run(story())


def test_a_rule_without_privacy_gets_no_noisy_score(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, NOISY) as w:
            with pytest.raises(ApiError):
                await w.answer("open", reticent={"rule": "bon"})

    run(story())


def test_the_gate_refuses_a_noisy_reward_that_is_not_charged_for() -> None:
    for charged in (None, 0.5, SIGMA * (1 + 1e-12)):
        with pytest.raises(ScoreDependsOnRewards):
            Gate(NoisyReward(SIGMA), [], charged_noise=charged)
    with pytest.raises(ScoreDependsOnRewards):
        Gate(Blend(((NoisyReward(SIGMA), 1.0), (SelfConsistency(), 1.0)), 0.0), [], charged_noise=SIGMA)
    assert Gate(NoisyReward(SIGMA), [], charged_noise=SIGMA).score == NoisyReward(SIGMA)


def test_only_a_noisy_reward_makes_rules_charge(tmp_path: Path) -> None:
    assert gate_noise_for(NoisyReward(SIGMA)) == SIGMA
    assert gate_noise_for(SelfConsistency()) is None

    async def story() -> None:
        async with world(tmp_path, PLAIN) as w:
            assert not isinstance(w.plan().rule, Gated)
            assert gate_noise_of(w.plan().rule) is None

    run(story())


def test_a_blend_that_reads_rewards_stops_the_start(tmp_path: Path) -> None:
    part = {"score": {"name": "noisy_reward", "constants": {"noise_scale": SIGMA}}, "coefficient": 1.0}
    changes = {"gate": {"score": "blend", "score_constants": {"intercept": 0.0, "parts": [part]}}}

    async def story() -> None:
        async with world(tmp_path, changes):
            pass

    with pytest.raises((ScoreDependsOnRewards, ConfigurationError)):
        run(story())
