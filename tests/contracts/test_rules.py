"""What every selection rule promises, whichever it is, and what the book of rules promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.fingerprint import canonical_json
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.base import Rule
from reticent.plugin.selection.rules import NONPRIVATE, RuleBook
from reticent.plugin.settings import RuleName
from tests.fakes.build import make_settings
from tests.fakes.session import selections

LATTICE = RewardLattice(1.0, 0.05)
NAMES: tuple[RuleName, ...] = get_args(RuleName)


def book(changes: dict[str, Any] | None = None, order: float = 20.0) -> RuleBook:
    return RuleBook(make_settings(Path("nowhere"), changes).selection, LATTICE, order)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 5, 16])
class TestEveryRule:
    """Inherited by none: rules are built by the book, so the book's names are the implementations."""

    @pytest.fixture
    def rule(self, name: RuleName, n: int) -> Rule:
        return book().rule(name, n)

    def test_it_is_called_by_its_name_and_says_whether_it_is_private(self, rule: Rule, name: str) -> None:
        assert rule.name == name == rule.facts()["rule"]
        assert rule.private is (name not in NONPRIVATE)

    def test_its_worst_case_is_an_integer_and_positive_exactly_when_it_is_private(self, rule: Rule) -> None:
        assert type(rule.worst_case) is int
        assert (rule.worst_case > 0) is (
            rule.private and not (rule.name == "privbon" and rule.facts()["candidates"] == 1)
        )

    def test_its_facts_are_json_and_name_the_number_of_candidates(self, rule: Rule, n: int) -> None:
        assert canonical_json(rule.facts())
        assert rule.facts()["candidates"] == n

    @pytest.mark.parametrize("rewards", ["rising", "equal", "zero"])
    def test_it_never_charges_above_its_worst_case_and_releases_a_candidate_it_drew(
        self, rule: Rule, n: int, rewards: str
    ) -> None:
        def reward(i: int) -> float:
            return {"rising": min(1.0, i / 20), "equal": 0.5, "zero": 0.0}[rewards]

        for selection, session in selections(rule, LATTICE, reward, 20):
            drawn = {str(i) for i in range(sum(session.drawn))}
            assert type(selection.charge) is int
            assert 0 <= selection.charge <= rule.worst_case
            assert selection.chosen.text in drawn
            assert {p.text for p in selection.peers} <= drawn - {selection.chosen.text}
            assert session.order[:2] == ["draw", "rewards"]
            assert sum(session.drawn) <= 2 * n + 1
            assert sum(session.scored) <= sum(session.drawn)
            if selection.fallback:
                assert selection.halting_time == n


def test_a_rule_is_made_once() -> None:
    rules = book()
    assert rules.rule("privitp", 4) is rules.rule("privitp", 4)
    assert rules.rule("privitp", 4) is not rules.rule("privitp", 5)


def test_a_larger_order_charges_more() -> None:
    for name in ("privbon", "privitp"):
        assert book(order=30.0).rule(name, 4).worst_case > book(order=10.0).rule(name, 4).worst_case


@pytest.mark.parametrize(
    "changes",
    [
        {"selection.privitp.reward_noise": 1e-6},
        {"selection.privitp.truncation": 1e6},
        {"selection.noise_scale": 1e-320},
    ],
)
def test_parameters_that_a_mechanism_refuses_stop_the_start(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidQuantityError):
        book(changes).check()
    book().check()
