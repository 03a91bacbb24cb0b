"""Whole runs on pools: facts of the real one, the rules played by chance, checkpoints, the choice, and bad files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.planning.laws import Floats
from reticent.accounting.planning.queries import Budget
from reticent.accounting.studies.pools import run as runs
from reticent.accounting.studies.pools.choose import NothingFitsError, choose, halves
from reticent.accounting.studies.pools.files import Pool, PoolFileError, read_pool
from reticent.accounting.studies.pools.question import Question
from reticent.accounting.studies.pools.replicates import replicate
from reticent.accounting.studies.pools.results import rows
from reticent.accounting.studies.pools.run import CheckpointError, evaluate

HUMANEVAL = Path(__file__).parents[3] / "shared/data/bon/humaneval_codegen16b_n100.jsonl.gz"
ALL = ("base", "bon", "privbon", "privbon_gaussian", "itp", "privitp")


def clip(raw: Floats) -> Floats:
    return np.clip(raw, 0.0, 1.0)


def made_pool(prompts: int = 6, size: int = 20, seed: int = 0) -> Pool:
    """Rewards that tell the truth up to an error, and mislead at the top."""
    rng = np.random.default_rng(seed)
    truths = tuple((rng.random(size) < 0.3).astype(float) for _ in range(prompts))
    rewards = tuple(np.round(clip(0.3 * t + 0.5 * rng.random(size)), 2) for t in truths)
    return Pool("made", rewards, truths)


@pytest.mark.skipif(not HUMANEVAL.exists(), reason="the HumanEval pool of shared/data is not here")
def test_best_of_n_on_humaneval_rises_and_falls_as_published_with_the_data() -> None:
    pool = read_pool(HUMANEVAL, clip)
    found = {row.candidates: row for row in rows(evaluate(pool, Question((1, 4, 100), ("bon",))))}
    assert len(pool) == 164
    # .23, .305 and .219 in the data's own list, from finitely many draws.
    assert found[1].accuracy == pytest.approx(0.2240, abs=1e-4)
    assert found[4].accuracy == pytest.approx(0.3025, abs=1e-4)
    assert found[100].accuracy == pytest.approx(0.2186, abs=1e-4)
    assert found[100].proxy_reward > found[4].proxy_reward > found[1].proxy_reward
    bootstrap = rows(evaluate(pool, Question((100,), ("bon",), distinct=False)))[0]
    assert bootstrap.accuracy == pytest.approx(0.2345, abs=1e-4)


@pytest.mark.parametrize("distinct", [True, False])
def test_exact_results_agree_with_the_rules_played_by_chance(distinct: bool) -> None:
    pool = made_pool()
    question = Question((1, 5, 16), ALL, (0.15, 0.6), (0.1,), distinct=distinct)
    exact, played = rows(evaluate(pool, question)), replicate(pool, question, 3000, seed=5)
    for row, check in zip(exact, played, strict=True):
        assert abs(row.accuracy - check.accuracy) < 4.5 * check.accuracy_error + 5 * row.sampling_error, row
        assert abs(row.proxy_reward - check.proxy_reward) < 4.5 * check.proxy_error + 1e-3, row
        if row.halting_time is not None:
            assert check.halting_time == pytest.approx(row.halting_time, rel=0.05)


def test_rules_played_with_too_little_noise_do_not_agree() -> None:
    pool = made_pool()
    exact = rows(evaluate(pool, Question((16,), ("privbon", "privitp"), (0.3,), (0.1,))))
    wrong = replicate(pool, Question((16,), ("privbon", "privitp"), (0.21,), (0.1,)), 3000, seed=5)
    for row, check in zip(exact, wrong, strict=True):
        assert abs(row.proxy_reward - check.proxy_reward) > 5.0 * check.proxy_error, row.rule


def test_columns_of_a_row_are_those_of_its_rule() -> None:
    question = Question((1, 4), ALL, (0.3,), (0.1,), sensitivity=0.05, budget=Budget(50.0, 0.01))
    by_rule = {row.rule: row for row in rows(evaluate(made_pool(), question))}
    base = by_rule["base"]
    assert (base.lift, base.lift_error) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert (base.charge, base.queries) == (0.0, None)
    for rule in ("bon", "itp"):
        assert (by_rule[rule].charge, by_rule[rule].worst_charge, by_rule[rule].queries) == (None, None, None)
    for rule in ("itp", "privitp"):
        assert 1.0 <= (by_rule[rule].halting_time or 0.0) <= 4.0
        assert 0.0 <= (by_rule[rule].fallback_rate or 0.0) <= 1.0
    for rule in ("privbon", "privbon_gaussian", "privitp"):
        row = by_rule[rule]
        assert 0.0 < (row.charge or 0.0) <= (row.worst_charge or 0.0) * (1 + 1e-12)
        assert (row.queries or 0.0) > 1.0
    assert by_rule["privbon"].hacking_gap == by_rule["privbon"].proxy_reward - by_rule["privbon"].accuracy


def test_without_a_right_answer_there_is_no_lift() -> None:
    pool = made_pool()
    wrong = Pool("wrong", pool.rewards, tuple(np.zeros_like(t) for t in pool.truths))
    (row,) = rows(evaluate(wrong, Question((4,), ("bon",))))
    assert (row.accuracy, row.lift, row.lift_error) == (0.0, None, None)


def test_many_answers_are_sampled_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, question = made_pool(4, 40), Question((1, 8), ("privbon",), (0.2,), draws=2000)
    exact = rows(evaluate(pool, question))
    monkeypatch.setattr(runs, "MOST_ANSWERS_EXACT", 30)
    sampled = rows(evaluate(pool, question))
    for one, other in zip(exact, sampled, strict=True):
        assert other.accuracy == pytest.approx(one.accuracy, abs=0.01)


def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, question, path = made_pool(), Question((2, 8), ALL, (0.3,), (0.1,)), tmp_path / "run.npz"
    whole = rows(evaluate(pool, question))
    monkeypatch.setattr(runs, "_SAVE_EVERY", -1.0)

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(pool, question, progress=stop, checkpoint=path)
    seen: list[int] = []
    again = evaluate(pool, question, progress=lambda done, total: seen.append(done), checkpoint=path)
    assert seen == [4, 5, 6]
    assert rows(again) == whole
    with pytest.raises(CheckpointError, match="another pool or other options"):
        evaluate(pool, Question((2,), ("bon",)), checkpoint=path)
    path.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="cannot be read"):
        evaluate(pool, question, checkpoint=path)


def test_a_choice_fits_the_budget_and_is_judged_on_the_other_half() -> None:
    pool = made_pool(20)
    question = Question((1, 4, 16), ("bon", "privbon", "privitp"), (0.1, 0.5), (0.1,), sensitivity=0.05)
    found = evaluate(pool, question)
    chosen = choose(found, 500.0, seed=3)
    development, report = halves(20, 3)
    assert not set(development) & set(report)
    assert len(development) + len(report) == 20
    ours, theirs = rows(found, development), rows(found, report)
    fitting = [k for k, row in enumerate(ours) if row.charge and (row.queries or 0.0) >= 500.0]
    assert chosen.fitting == len(fitting) < chosen.considered == 10
    assert chosen.development.accuracy == max(ours[k].accuracy for k in fitting)
    assert chosen.report in theirs
    assert chosen.regret == pytest.approx(max(theirs[k].accuracy for k in fitting) - chosen.report.accuracy)
    assert chosen.regret >= 0.0
    assert chosen.flattery == chosen.development.accuracy - chosen.report.accuracy
    with pytest.raises(NothingFitsError, match="the most is"):
        choose(evaluate(pool, Question((4,), ("privbon",), (0.1,))), 1e9)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rules": ("best",)}, "rule must be one of"),
        ({"candidates": (0,)}, "candidates must be"),
        ({"candidates": ()}, "at least one"),
        ({"noise_scales": (0.0001,)}, "noise_scale must be"),
        ({"noise_scales": ()}, "noise_scale must be given"),
        ({"regularizations": ()}, "regularization must be given"),
        ({"regularizations": (-1.0,)}, "regularization must be"),
        ({"sensitivity": 2.0}, "sensitivity must be"),
        ({"threshold_share": 1.0}, "threshold_share must be"),
    ],
)
def test_a_question_out_of_range_is_refused(change: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {
        "candidates": (4,),
        "rules": ("privitp",),
        "noise_scales": (0.2,),
        "regularizations": (0.1,),
    }
    with pytest.raises(InvalidQuantityError, match=why):
        Question(**{**given, **change})


def test_more_distinct_candidates_than_answers_are_refused_and_drawn_with_replacement() -> None:
    with pytest.raises(InvalidQuantityError, match="at most 20"):
        evaluate(made_pool(), Question((21,), ("bon",)))
    assert rows(evaluate(made_pool(), Question((21,), ("bon",), distinct=False)))[0].accuracy > 0.0


def test_a_pool_file_is_read_with_gold_before_is_correct(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl.gz"
    responses = [
        {"proxy_reward": 0.5, "gold": 0.75, "is_correct": 0},
        {"proxy_reward": 7, "is_correct": 1},
        {"proxy_reward": None, "is_correct": 1},
        {"proxy_reward": float("nan"), "is_correct": True},
    ]
    lines = [{"responses": responses}, {"responses": [{"is_correct": 1}]}]
    path.write_bytes(gzip.compress("\n\n".join(map(json.dumps, lines)).encode()))
    pool = read_pool(path, clip)
    assert [rewards.tolist() for rewards in pool.rewards] == [[0.5, 1.0, 0.0]]
    assert [truths.tolist() for truths in pool.truths] == [[0.75, 1.0, 1.0]]
    assert (pool.unscored, pool.not_finite, pool.bounded, pool.fewest) == (2, 1, 0.5, 3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no response has a number"),
        ('{"responses": []}', "no response has a number"),
        ("{", "line 1 is not JSON"),
        ("[1]", 'no list "responses"'),
        ('{"responses": [1]}', 'no list "responses"'),
        ('{"responses": [{"proxy_reward": "high", "is_correct": 1}]}', "must be a number or null"),
        ('{"responses": [{"proxy_reward": 1, "is_correct": 2}]}', "'is_correct' as 0 or 1"),
        ('{"responses": [{"proxy_reward": 1}]}', "needs 'gold'"),
        ('{"responses": [{"proxy_reward": 1, "gold": 1.5}]}', "'gold' must be a number in"),
        ('{"responses": [{"proxy_reward": 1, "gold": NaN}]}', "'gold' must be a number in"),
    ],
)
def test_a_file_that_is_no_pool_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PoolFileError, match=why):
        read_pool(path, clip)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolFileError, match="No such file"):
        read_pool(tmp_path / "none.jsonl", clip)
    path = tmp_path / "half.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"responses": []}' * 50)[:-9])
    with pytest.raises(PoolFileError, match="gzipped"):
        read_pool(path, clip)
