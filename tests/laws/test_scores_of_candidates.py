"""Scores without a model against values computed by hand: entropy, agreement, n-grams, p-values, given numbers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reticent.rewards.encoders.base import FeatureMatrix
from reticent.rewards.errors import EncoderUnavailable, ScoreDependsOnRewards, ScoreInputMissing
from reticent.rewards.scores import (
    TOP_LOG_PROBABILITIES,
    Blend,
    ConU,
    External,
    Franq,
    Grounding,
    NoisyReward,
    SameEmbedding,
    SameWords,
    SConU,
    Score,
    ScoreInputs,
    SelfCheckNgram,
    SelfConsistency,
    SemanticEntropy,
    Sureness,
    TokenEntropy,
    auc,
    auc_error,
    build_score,
    clusters,
    fit_franq,
    fit_sconu,
    require_independent_of_rewards,
    score_facts,
)
from reticent.rewards.scores.token_entropy import lumped_entropy

QUESTION = "What pet does Ada have?"
WORDS = SameWords(0.5)
FREE: tuple[Score, ...] = (
    TokenEntropy(),
    SemanticEntropy(WORDS),
    SemanticEntropy(SameWords(0.9)),
    SelfCheckNgram(),
    SelfCheckNgram(2, "min"),
    ConU(WORDS),
    SConU(WORDS, (0.0, 0.25, 0.5)),
    External("judge", "1"),
    NoisyReward(0.5),
    Franq(Grounding()),
    Franq(Grounding(), Sureness(1.0, 2.0), Sureness(-1.0, 0.5), "faithfulness"),
)


def _inputs(answer: str, *others: str, **more: object) -> ScoreInputs:
    return ScoreInputs(QUESTION, ("Ada has a cat.",), answer, others, **more)  # type: ignore[arg-type]


def test_token_entropy_by_hand() -> None:
    # Half and half: log 2. Certain: 0. A quarter seen, three quarters lumped.
    rows = [[math.log(0.5)] * 2, [0.0], [math.log(0.25)]]
    mean = (math.log(2) + 0.0 + 0.25 * math.log(4) + 0.75 * math.log(4 / 3)) / 3
    score = TokenEntropy().compute(_inputs("x", top_log_probabilities=rows))
    assert score == pytest.approx(1 - mean / math.log(TOP_LOG_PROBABILITIES + 1))


def test_token_entropy_is_1_when_certain_and_0_when_all_outcomes_are_alike() -> None:
    uniform = [math.log(1 / (TOP_LOG_PROBABILITIES + 1))] * TOP_LOG_PROBABILITIES
    assert TokenEntropy().compute(_inputs("x", top_log_probabilities=[[0.0, -50.0]])) == pytest.approx(1.0)
    assert TokenEntropy().compute(_inputs("x", top_log_probabilities=[uniform])) == pytest.approx(0.0, abs=1e-12)
    assert TokenEntropy().compute(_inputs("x", top_log_probabilities=[])) == 0.0


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=30))
def test_the_lumped_entropy_is_below_the_entropy_of_the_whole_law(weights: list[float]) -> None:
    p = np.array(weights) / sum(weights)
    whole = float(-(p * np.log(p)).sum())
    assert lumped_entropy(np.log(p).tolist()) <= whole + 1e-9
    if len(p) <= TOP_LOG_PROBABILITIES:
        assert lumped_entropy(np.log(p).tolist()) == pytest.approx(whole, abs=1e-9)


def test_semantic_entropy_by_hand() -> None:
    # {cat, cat, cat} and {dog}: shares 3/4 and 1/4 of four candidates.
    entropy = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    score = SemanticEntropy(WORDS).compute(_inputs("A cat.", "a cat!", "A dog", "cat"))
    assert score == pytest.approx(1 - entropy / math.log(4))
    assert SemanticEntropy(WORDS).compute(_inputs("A cat.", "a cat!", "cat")) == 1.0
    assert SemanticEntropy(WORDS).compute(_inputs("A cat.", "a dog", "horse")) == pytest.approx(0.0, abs=1e-12)


def test_semantic_entropy_is_the_same_for_every_candidate_of_a_request() -> None:
    texts = ["A cat.", "a dog", "cat", "A dog.", "a dog!"]
    found = {
        round(SemanticEntropy(WORDS).compute(_inputs(text, *(texts[:i] + texts[i + 1 :]))), 12)
        for i, text in enumerate(texts)
    }
    assert len(found) == 1


def test_empty_texts_belong_to_no_group() -> None:
    assert clusters(WORDS, QUESTION, ["", "cat", "", "a cat", " "]) == [0, 1, 2, 1, 3]


class _OnACircle:
    """An embedder that puts "q N" at N degrees."""

    dimension = 2
    revision = "circle"

    def embed(self, texts: Sequence[str | tuple[str, str]]) -> FeatureMatrix:
        angles = [math.radians(float(str(text).split()[-1])) for text in texts]
        return np.array([[math.cos(a), math.sin(a)] for a in angles])


def test_groups_by_embedding_join_the_first_group_whose_first_member_is_near() -> None:
    # cos 30° = .866: 0 and 25 are near, 25 and 50 too, but 50 is not near 0, which stands for the group.
    rule = SameEmbedding(_OnACircle(), math.cos(math.radians(30)))
    assert clusters(rule, "q", ["0", "25", "50", "0", "75"]) == [0, 0, 1, 0, 1]
    assert rule.constants["model"] == "circle"


def test_conu_is_the_share_of_candidates_that_say_the_same() -> None:
    assert ConU(WORDS).compute(_inputs("A cat.", "a cat!", "A dog", "cat", "")) == 0.5
    assert ConU(WORDS).compute(_inputs("", "", "cat")) == 0.0
    assert ConU(WORDS).compute(_inputs("A cat.")) == 0.0


def test_sconu_is_a_conformal_p_value() -> None:
    score = SConU(WORDS, (0.0, 0.25, 0.5, 0.5))
    # Share 1/2: all four of the calibration are at most that. Share 0: one is.
    assert score.compute(_inputs("A cat.", "cat", "dog")) == 1.0
    assert score.compute(_inputs("A cat.", "horse", "dog")) == pytest.approx(2 / 5)
    for bad in ((), (0.5, 0.2), (0.5, 1.5)):
        with pytest.raises(ValueError):
            SConU(WORDS, bad)


def test_sconu_of_exchangeable_answers_is_small_no_more_often_than_its_value_says() -> None:
    rng = np.random.default_rng(5)
    texts = ["cat", "dog"]
    draws = [_inputs("cat", *rng.choice(texts, 4, p=[0.7, 0.3])) for _ in range(400)]
    score = fit_sconu(WORDS, draws[:200], [True] * 200)
    values = np.array([score.compute(one) for one in draws[200:]])
    for p in (0.1, 0.3, 0.6):
        assert (values <= p).mean() <= p + 3 * math.sqrt(p * (1 - p) / 200)


def test_a_fit_of_sconu_takes_right_answers_alone_and_states_at_most_200() -> None:
    rows = [_inputs("cat", "cat"), _inputs("dog", "cat")] * 300
    fitted = fit_sconu(WORDS, rows, [True, False] * 300)
    assert set(fitted.calibration) == {1.0}
    assert 100 <= len(fitted.calibration) <= 200
    with pytest.raises(ValueError):
        fit_sconu(WORDS, rows, [False] * 600)


def test_selfcheck_with_single_words_by_hand() -> None:
    # Words: a cat | a dog: counts a 2, cat 1, dog 1 of 4.
    score = SelfCheckNgram().compute(_inputs("A cat.", "a dog"))
    assert score == pytest.approx(math.sqrt(0.5 * 0.25))
    assert SelfCheckNgram(over="min").compute(_inputs("A cat.", "a dog")) == pytest.approx(0.25)


def test_selfcheck_with_pairs_of_words_by_hand() -> None:
    # "a" begins both; after it "cat" once and "dog" once.
    assert SelfCheckNgram(2).compute(_inputs("a cat", "a dog")) == pytest.approx(math.sqrt(1.0 * 0.5))
    assert SelfCheckNgram(2).compute(_inputs("a cat", "a cat")) == 1.0


@given(st.text("ab ", max_size=12), st.lists(st.text("ab ", max_size=12), max_size=3), st.integers(1, 4))
def test_selfcheck_is_the_product_of_conditional_counts(answer: str, others: list[str], order: int) -> None:
    texts = [answer, *others]
    padded = [[""] * (order - 1) + text.split() for text in texts]
    grams = [[tuple(row[i : i + order]) for i in range(len(row) - order + 1)] for row in padded]
    counts = Counter(gram for row in grams for gram in row)
    wanted = 0.0
    if grams[0] and others:
        chances = [counts[g] / sum(n for h, n in counts.items() if h[:-1] == g[:-1]) for g in grams[0]]
        wanted = math.prod(chances) ** (1 / len(chances))
    assert SelfCheckNgram(order).compute(_inputs(answer, *others)) == pytest.approx(wanted)


def test_franq_by_hand() -> None:
    class Half(SelfConsistency):
        def compute(self, inputs: ScoreInputs) -> float:
            return 0.25

    # With the evidence the answer has probability .8 a token, without it .1.
    ratios = [math.log(0.8 / 0.1)] * 3
    inputs = _inputs("A cat.", mean_log_probability=math.log(0.8), lift_log_ratios=ratios)
    found = Franq(Half()).parts(inputs)
    assert found["faithfulness"] == 0.25
    assert found["factuality"] == pytest.approx(0.25 * 0.8 + 0.75 * 0.1)
    assert Franq(Half()).compute(inputs) == found["factuality"]
    assert Franq(Half(), report="faithfulness").compute(_inputs("A cat.")) == 0.25
    fitted = Franq(Half(), Sureness(0.5, 2.0), Sureness(-1.0, 1.0))
    told, bare = (1 / (1 + math.exp(-x)) for x in (0.5 + 2 * math.log(0.8), -1 + math.log(0.1)))
    assert fitted.compute(inputs) == pytest.approx(0.25 * told + 0.75 * bare)


def test_franq_is_fitted_on_each_half_apart() -> None:
    rng = np.random.default_rng(2)
    rows, right = [], []
    for i in range(200):
        faithful = i % 2 == 0
        told, bare = -float(rng.uniform(0, 3)), -float(rng.uniform(0, 3))
        answer = "Ada has a cat." if faithful else "Zebra."
        rows.append(_inputs(answer, mean_log_probability=told, lift_log_ratios=[told - bare]))
        right.append(bool(rng.random() < 1 / (1 + math.exp(-3 * (1.5 + (told if faithful else bare))))))
    fitted = fit_franq(Grounding(), rows, right)
    assert (fitted.faithful.slope or 0) > 1 < (fitted.unfaithful.slope or 0)
    assert auc([fitted.compute(one) for one in rows], right) > auc([Franq(Grounding()).compute(o) for o in rows], right)


def test_an_external_score_is_the_verifiers_number() -> None:
    score = External("judge", "1")
    given_ = [0.3, 1.7, -2.0, math.nan]
    assert [score.compute(_inputs("x", verifier=v)) for v in given_] == [0.3, 1.0, 0.0, 0.0]
    with pytest.raises(ValueError):
        External(" ", "1")


def test_a_noisy_reward_depends_on_rewards_and_is_refused_without_a_charge() -> None:
    score = NoisyReward(0.5)
    assert score.compute(_inputs("x", noisy_reward=0.7)) == 0.7
    for refused in (score, Blend(((score, 1.0),), 0.0)):
        assert refused.depends_on_rewards
        with pytest.raises(ScoreDependsOnRewards):
            require_independent_of_rewards(refused)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError):
            NoisyReward(bad)


def test_only_the_noisy_reward_depends_on_rewards() -> None:
    assert [score.name for score in FREE if score.depends_on_rewards] == ["noisy_reward"]


@pytest.mark.parametrize("score", FREE, ids=lambda s: s.name)
def test_a_score_is_rebuilt_from_its_facts(score: Score) -> None:
    facts = json.loads(json.dumps(score_facts(score)))
    assert build_score(facts["name"], facts["constants"]) == score
    with pytest.raises(ValueError):
        build_score(score.name, {**facts["constants"], "surplus": 1})


@example("", [], [], 0.0, 0.0, [9e307, 9e307])
@example("", [], [], 0.0, 0.0, [math.inf, -math.inf])
@given(
    st.text(max_size=40),
    st.lists(st.text(max_size=20), max_size=4),
    st.lists(st.lists(st.floats(), max_size=12), max_size=3),
    st.floats(),
    st.floats(),
    st.lists(st.floats(), min_size=1, max_size=3),
)
def test_every_score_lies_between_zero_and_one(
    answer: str, others: list[str], top: list[list[float]], number: float, mean: float, ratios: list[float]
) -> None:
    inputs = _inputs(
        answer,
        *others,
        top_log_probabilities=top,
        verifier=number,
        noisy_reward=number,
        mean_log_probability=mean,
        lift_log_ratios=ratios,
    )
    for score in FREE:
        assert 0.0 <= score.compute(inputs) <= 1.0


def test_a_score_without_its_inputs_is_refused() -> None:
    for score in (TokenEntropy(), External("judge", "1"), NoisyReward(0.5), Franq(Grounding())):
        with pytest.raises(ScoreInputMissing):
            score.compute(_inputs("A cat.", "A cat."))


def test_scores_that_need_a_model_say_which() -> None:
    with pytest.raises(EncoderUnavailable, match="entailment"):
        build_score("selfcheck", {"variant": "nli", "model": "x", "text": 1})
    with pytest.raises(EncoderUnavailable, match="base model"):
        build_score("redeep")


def test_auc_counts_pairs() -> None:
    rng = np.random.default_rng(1)
    scores, right = rng.integers(0, 5, 60).astype(float), rng.random(60) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[right] for b in scores[~right]]
    assert auc(scores.tolist(), right.tolist()) == pytest.approx(float(np.mean(pairs)))
    for bad in (([1.0], [True]), ([1.0, math.nan], [True, False]), ([1.0], [True, False])):
        with pytest.raises(ValueError):
            auc(*bad)


def test_the_error_of_an_auc_is_near_its_spread_over_samples() -> None:
    def sample(seed: int) -> tuple[list[float], list[bool]]:
        draws = np.random.default_rng(seed)
        right = draws.random(100) < 0.5
        return (draws.normal(size=100) + right).tolist(), right.tolist()

    spread = float(np.std([auc(*sample(seed)) for seed in range(200)]))
    told = float(np.mean([auc_error(*sample(seed), range(100)) for seed in range(5)]))
    assert told == pytest.approx(spread, rel=0.25)
