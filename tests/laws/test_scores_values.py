"""Scores against values computed by hand, their range, and what the gate refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.rewards.errors import ScoreDependsOnRewards, ScoreInputMissing, UnknownName
from reticent.rewards.scores import (
    SCORE_NAMES,
    Blend,
    EvidenceLift,
    Grounding,
    Score,
    ScoreInputs,
    SelfConsistency,
    TokenProbability,
    build_score,
    fit_blend,
    fit_grounding,
    require_independent_of_rewards,
    score_facts,
)
from reticent.rewards.scores.base import Need

QUESTION = "What pet does Ada have?"
EVIDENCE = ("Ada has a cat. Ada lives in Oakford.",)
BLEND = Blend(((SelfConsistency(), 2.0), (TokenProbability(), 1.0)), -1.0)
ALL: tuple[Score, ...] = (SelfConsistency(), TokenProbability(), EvidenceLift(), Grounding(), BLEND)


def _inputs(answer: str, *others: str, mean: float | None = None, ratios: list[float] | None = None) -> ScoreInputs:
    return ScoreInputs(QUESTION, EVIDENCE, answer, others, mean, ratios)


def test_self_consistency_by_hand() -> None:
    # Own words: {cat, black} against {cat}, {black, cat, small}, {dog}: 1/2, 2/3, 0.
    score = SelfConsistency().compute(_inputs("Ada has a black cat.", "A cat!", "A small, black cat.", "A dog."))
    assert score == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)


def test_answers_that_say_nothing_is_stated_agree_with_each_other() -> None:
    # {mark} against {given, mark} and {cat}: 1/2 and 0.
    assert SelfConsistency().compute(_inputs("It is not stated.", "This is not given.", "A cat.")) == 0.25
    assert SelfConsistency().compute(_inputs("It is not stated.", "It is not stated.")) == 1.0
    assert SelfConsistency().compute(_inputs("A cat.", "It is not stated.")) == 0.0


@pytest.mark.parametrize("answer", ["", "Ada has a pet.", "?"])
def test_an_answer_without_words_of_its_own_agrees_with_nothing(answer: str) -> None:
    assert SelfConsistency().compute(_inputs(answer, answer, "A cat.")) == 0.0


def test_self_consistency_without_other_candidates_is_zero() -> None:
    assert SelfConsistency().compute(_inputs("A cat.")) == 0.0


def test_token_probability_by_hand() -> None:
    score = TokenProbability()
    assert score.compute(_inputs("x", mean=math.log(0.25))) == pytest.approx(0.25)
    assert score.compute(_inputs("x", mean=1e-9)) == 1.0
    assert [score.compute(_inputs("x", mean=m)) for m in (-math.inf, math.nan)] == [0.0, 0.0]


def test_evidence_lift_by_hand() -> None:
    # B = 5: 2, 0 (clipped), 5 (clipped), 0 (NaN): 7 of 20.
    assert EvidenceLift().compute(_inputs("x", ratios=[2.0, -3.0, 9.0, math.nan])) == pytest.approx(7 / 20)
    assert EvidenceLift(2.0).compute(_inputs("x", ratios=[2.0, math.inf])) == 1.0
    assert EvidenceLift().compute(_inputs("x", ratios=[])) == 0.0


def test_blend_by_hand() -> None:
    inputs = _inputs("A cat.", "A cat.", "A dog.", mean=math.log(0.5))
    assert BLEND.compute(inputs) == pytest.approx(1 / (1 + math.exp(-(-1 + 2 * 0.5 + 0.5))))
    assert BLEND.needs == {"candidates", "log_probabilities"}


def test_grounding_puts_supported_answers_above_invented_and_evasive_ones() -> None:
    right, invented, other, evasive = (
        Grounding().compute(ScoreInputs("In which town does Ada live?", EVIDENCE, answer))
        for answer in ("Ada lives in Oakford.", "Ada lives in Ashford.", "A cat.", "It is not stated.")
    )
    assert right > 0.9 > 0.5 > max(invented, other, evasive)
    assert Grounding().compute(_inputs(" ")) == 0.0
    assert Grounding().compute(ScoreInputs(QUESTION, (), "A cat.")) == 0.0


def test_a_blend_is_fitted_to_the_minimum_of_its_loss() -> None:
    inputs = [_inputs("A cat.", *(["A cat."] * i + ["A dog."] * (4 - i)), mean=-0.1 * (i % 3)) for i in range(5)] * 4
    right = [(i % 5) + (i % 3) > 3 for i in range(20)]
    fitted = fit_blend([SelfConsistency(), TokenProbability()], inputs, right, ridge=0.05)

    def objective(b: float, c1: float, c2: float) -> float:
        blend = Blend(((SelfConsistency(), c1), (TokenProbability(), c2)), b)
        values = [blend.compute(i) for i in inputs]
        loss = -sum(math.log(v if r else 1 - v) for v, r in zip(values, right, strict=True)) / len(right)
        return loss + 0.025 * (c1 * c1 + c2 * c2)

    b, (c1, c2) = fitted.intercept, [c for _, c in fitted.parts]
    best = objective(b, c1, c2)
    for db, d1, d2 in ((0.05, 0, 0), (-0.05, 0, 0), (0, 0.05, 0), (0, -0.05, 0), (0, 0, 0.05), (0, 0, -0.05)):
        assert objective(b + db, c1 + d1, c2 + d2) > best


def test_a_fit_without_both_verdicts_is_refused() -> None:
    for right in ([True, True], [True], [False, False]):
        with pytest.raises(ValueError):
            fit_grounding([_inputs("a"), _inputs("b")], right)


@given(
    st.text(max_size=60),
    st.lists(st.text(max_size=30), max_size=4),
    st.floats(allow_nan=True, allow_infinity=True),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=5),
)
def test_every_score_lies_between_zero_and_one(
    answer: str, others: list[str], mean: float, ratios: list[float]
) -> None:
    inputs = _inputs(answer, *others, mean=mean, ratios=ratios)
    for score in ALL:
        assert 0.0 <= score.compute(inputs) <= 1.0


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
def test_a_score_is_rebuilt_from_its_facts(score: Score) -> None:
    facts = json.loads(json.dumps(score_facts(score)))
    assert build_score(facts["name"], facts["constants"]) == score
    assert score.name in SCORE_NAMES
    with pytest.raises(ValueError):
        build_score(score.name, {**facts["constants"], "surplus": 1})


def test_a_score_without_its_inputs_is_refused() -> None:
    for score in (TokenProbability(), EvidenceLift(), BLEND):
        with pytest.raises(ScoreInputMissing):
            score.compute(_inputs("A cat.", "A cat."))


def test_an_unknown_score_is_named() -> None:
    with pytest.raises(UnknownName, match="charm"):
        build_score("charm")


@dataclass(frozen=True)
class _Peeking:
    """A score that reads a reward, and says so."""

    name: str = "peeking"
    depends_on_rewards: bool = True
    needs: frozenset[Need] = frozenset()

    @property
    def constants(self) -> Mapping[str, object]:
        return {}

    def compute(self, inputs: ScoreInputs) -> float:
        return 0.5


def test_the_gate_is_refused_a_score_that_depends_on_rewards() -> None:
    for score in (_Peeking(), Blend(((_Peeking(), 1.0),), 0.0)):
        with pytest.raises(ScoreDependsOnRewards):
            require_independent_of_rewards(score)
    assert [require_independent_of_rewards(score) for score in ALL] == list(ALL)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_clip_is_refused(bad: float) -> None:
    with pytest.raises(ValueError):
        EvidenceLift(bad)
