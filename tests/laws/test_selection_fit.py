"""What rules do with candidates that have not the form that was asked for: as if they had never been drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from reticent.accounting.lattice import RewardLattice
from reticent.plugin.ports import Candidate
from reticent.plugin.selection.base import Rule, Selection
from reticent.plugin.settings import RuleName
from tests.contracts.test_rules import LATTICE, NAMES, book
from tests.fakes.build import run
from tests.fakes.session import FakeSession, counts_of, rejected

TRIALS = 3000


class Choosy(FakeSession):
    """A session of which only some candidates are fit."""

    def __init__(self, lattice: RewardLattice, reward: Callable[[int], float], fit: Callable[[int], bool]) -> None:
        super().__init__(lattice, reward)
        self._fit = fit
        self.scored_texts: list[str] = []

    async def draw(self, count: int) -> list[Candidate]:
        return [Candidate(c.text, c.finish_reason, 1, 1, fit=self._fit(int(c.text))) for c in await super().draw(count)]

    async def rewards(self, candidates: Sequence[Candidate]) -> list[int]:
        assert candidates, "an empty batch needs no worker"
        self.scored_texts += [c.text for c in candidates]
        return await super().rewards(candidates)


def sessions(
    rule: Rule, reward: Callable[[int], float], fit: Callable[[int], bool], trials: int
) -> list[tuple[Selection, Choosy]]:
    async def many() -> list[tuple[Selection, Choosy]]:
        found = []
        for _ in range(trials):
            session = Choosy(LATTICE, reward, fit)
            found.append((await rule.select(session), session))
        return found

    return run(many())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_only_fit_candidates_are_scored_and_chosen_and_the_charge_stays_within(name: RuleName, every: int) -> None:
    rule = book().rule(name, 6)

    def fit(index: int) -> bool:
        return index % every == 0

    for selection, session in sessions(rule, lambda i: (i % 5) / 5, fit, 30):
        assert selection.chosen.fit
        assert all(fit(int(text)) for text in session.scored_texts)
        assert all(peer.fit for peer in selection.peers)
        assert 0 <= selection.charge <= rule.worst_case
        assert sum(session.drawn) <= rule.most_drawn
        if every > 1 and selection.halting_time is not None and not selection.fallback:
            assert selection.halting_time <= 6 // every + 1


@pytest.mark.parametrize("name", NAMES)
def test_where_none_is_fit_nothing_is_scored_charged_or_released(name: RuleName) -> None:
    rule = book().rule(name, 4)
    for selection, session in sessions(rule, lambda i: 0.5, lambda i: False, 5):
        assert not selection.chosen.fit
        assert (selection.charge, selection.peers, session.scored) == (0, (), [])


def test_where_phase_two_has_none_the_fallback_looks_further() -> None:
    rule = book().rule("privitp", 4)
    for selection, session in sessions(rule, lambda i: 0.5, lambda i: i < 4 or i == 10, 20):
        assert selection.fallback
        assert selection.chosen.text == "10"
        assert session.drawn[-2:] == [1, 4]


def test_the_law_is_that_of_the_fit_candidates_alone() -> None:
    """privbon over six, of which four are fit, chooses like privbon over those four."""
    rewards = [0.9, 0.1, 0.5, 1.0, 0.3, 0.6]
    fit = {0, 2, 4, 5}
    six = book()
    chosen = [
        s.chosen.text for s, _ in sessions(six.rule("privbon", 6), lambda i: rewards[i], lambda i: i in fit, TRIALS)
    ]
    weights = [math.exp(rewards[i] / 0.2) for i in sorted(fit)]
    law = [w / sum(weights) for w in weights]
    outcomes = [str(i) for i in sorted(fit)]
    assert not rejected(counts_of(chosen, outcomes), law)
    wrong = [1 / 4] * 4
    assert rejected(counts_of(chosen, outcomes), wrong)
