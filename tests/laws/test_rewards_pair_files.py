"""Where pairs come from: pools of right and wrong answers, files with unusable lines, folds, the cache of features."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reticent.rewards.encoders import FeatureMatrix, Pair
from reticent.rewards.encoders.lexical import LexicalEncoder
from reticent.rewards.errors import InvalidPairs, TrainingFailed, UnusablePair
from reticent.rewards.feature_cache import FeatureCache, encode_pairs_cached
from reticent.rewards.pair_sources import pairs_of_pool
from reticent.rewards.pairs import folds_by_prompt, load_pairs, read_pairs
from reticent.rewards.tradeoff import cross_validated
from reticent.rewards.training import PrivacyWish, encode_pairs, train_linear_head
from tests.fakes.preferences import pet_pairs, write_lines

GOOD = {"prompt": "p", "chosen": "a", "rejected": "b"}


def _lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _prompt(name: str, right: Sequence[str], wrong: Sequence[str]) -> dict[str, Any]:
    labelled = [(text, 1) for text in right] + [(text, 0) for text in wrong]
    return {"prompt": name, "responses": [{"text": text, "is_correct": label} for text, label in labelled]}


# --- pools --------------------------------------------------------------------------------------------------------


def test_every_pair_of_a_pool_prefers_a_right_answer_of_its_prompt(tmp_path: Path) -> None:
    pool = _lines(tmp_path / "p", _prompt("x", "ab", "cdc "), _prompt("y", "e", ""), _prompt("z", "fg", "gh"))
    pairs = pairs_of_pool(pool, 10, 0)
    found = {(p.subject.prompt, p.chosen, p.rejected) for p in pairs}
    # " " is empty, the second c a repetition, g stands on both sides.
    assert found == {("x", "a", "c"), ("x", "a", "d"), ("x", "b", "c"), ("x", "b", "d"), ("z", "f", "h")}
    assert len(pairs) == 5


def test_a_prompts_pairs_depend_on_that_prompt_alone(tmp_path: Path) -> None:
    rows = [_prompt(name, "abcd", "efgh") for name in ("x", "y")]
    both = pairs_of_pool(_lines(tmp_path / "p", *rows), 3, 7, "prompt")
    alone = pairs_of_pool(_lines(tmp_path / "q", rows[1]), 3, 7)
    assert Counter(p.person for p in both) == {"prompt 1": 3, "prompt 2": 3}
    assert [(p.chosen, p.rejected) for p in both[3:]] == [(p.chosen, p.rejected) for p in alone]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "one class only: none of 0 prompts"),
        ([_prompt("x", "ab", ""), _prompt("y", "c", "")], r"one class only.*\(3 right, 0 wrong\)"),
        ([_prompt("x", "a", "b"), {"prompt": "y"}], "line 2: responses is missing"),
        ([{"responses": []}], "line 1: no JSON object with a prompt"),
        ([{"prompt": "x", "responses": [{"text": 1}]}], "line 1: a response without a text"),
        ([{"prompt": "x", "responses": [{"text": "a", "is_correct": "yes"}]}], "line 1: is_correct is neither"),
    ],
)
def test_a_pool_that_gives_no_pairs_is_refused(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(InvalidPairs, match=message):
        pairs_of_pool(_lines(tmp_path / "p", *rows), 4, 0)


# --- pairs files --------------------------------------------------------------------------------------------------


def test_unusable_lines_are_refused_or_left_out_by_number(tmp_path: Path) -> None:
    rows = [{**GOOD, "source": "s"}, GOOD, {**GOOD, "chosen": ""}, {**GOOD, "rejected": "a"}, {**GOOD, "prompt": "q"}]
    path = _lines(tmp_path / "p", *rows)
    with pytest.raises(UnusablePair, match="line 2: a duplicate of line 1"):
        load_pairs(path)
    pairs, dropped = read_pairs(path, drop_unusable=True)
    assert [row.subject.prompt for row in pairs.rows] == ["p", "q"]
    assert [one.line for one in dropped] == [2, 3, 4]


def test_contradictions_and_broken_lines_are_never_left_out(tmp_path: Path) -> None:
    for rows, message in (
        ([GOOD, {**GOOD, "chosen": "b", "rejected": "a"}], "line 2: the opposite of line 1"),
        ([GOOD, {"prompt": "x"}], "line 2: chosen is missing"),
        ([GOOD, {**GOOD, "persn": "x"}], "line 2: unknown field persn"),
    ):
        with pytest.raises(InvalidPairs, match=message):
            read_pairs(_lines(tmp_path / "p", *rows), drop_unusable=True)


def test_named_persons_may_agree_and_disagree_but_not_repeat_themselves(tmp_path: Path) -> None:
    x, y = {**GOOD, "person": "x"}, {**GOOD, "person": "y"}
    opposite = {**GOOD, "person": "z", "chosen": "b", "rejected": "a"}
    assert len(load_pairs(_lines(tmp_path / "p", x, y, opposite)).rows) == 3
    with pytest.raises(InvalidPairs, match="line 3: a duplicate of line 1"):
        load_pairs(_lines(tmp_path / "p", x, y, x))
    with pytest.raises(InvalidPairs, match="line 2: a duplicate of line 1"):
        load_pairs(_lines(tmp_path / "p", x, GOOD))


def test_one_class_cannot_be_trained_on(tmp_path: Path) -> None:
    pairs = load_pairs(_lines(tmp_path / "p", *({**GOOD, "prompt": f"p{i}"} for i in range(9))))
    with pytest.raises(TrainingFailed, match="one class only: all 9 pairs prefer"):
        train_linear_head(pairs, LexicalEncoder(), 0.1, 0.5)
    same = [{"prompt": f"p{i}", "chosen": f"{i}a.", "rejected": f"{i}a!"} for i in range(9)]
    with pytest.raises(TrainingFailed, match="one class only: the encoder sees no difference"):
        train_linear_head(load_pairs(_lines(tmp_path / "p", *same)), LexicalEncoder(), 0.1, 0.5)


def test_folds_keep_prompts_together_and_do_not_depend_on_other_prompts() -> None:
    pairs = pet_pairs()
    dealt = folds_by_prompt(pairs, 4, 1)
    assert set(dealt) == {0, 1, 2, 3}
    assert len({(row.subject.prompt, fold) for row, fold in zip(pairs.rows, dealt, strict=True)}) == 60
    shorter = type(pairs)(pairs.rows[20:])
    assert folds_by_prompt(shorter, 4, 1) == dealt[20:]
    with pytest.raises(InvalidPairs, match="too few prompts"):
        folds_by_prompt(type(pairs)(pairs.rows[:2]), 4, 1)


def test_cross_validation_states_the_sensitivity_of_all_pairs() -> None:
    pairs, encoder = pet_pairs(), LexicalEncoder()
    features = encode_pairs(pairs, encoder)
    dealt = folds_by_prompt(pairs, 5, 0)
    wish = PrivacyWish(1.0)
    rows = list(cross_validated(features, dealt, [0.05, 0.5], [0.5, 2.0], privacy=wish, noise_scale=0.1))
    assert rows[0].sensitivity == train_linear_head(pairs, encoder, 0.05, 0.5).sensitivity
    for row in rows:
        assert row.heldout_accuracy > 0.9
        assert row.private_accuracy is not None
        assert row.selection_accuracy is not None
        assert 0.5 < row.private_accuracy < row.heldout_accuracy
        assert 0.5 < row.selection_accuracy < row.heldout_accuracy
    assert rows[0].private_accuracy == rows[1].private_accuracy
    # A larger μ takes less noise.
    assert (rows[2].private_accuracy or 0) > (rows[0].private_accuracy or 1)


# --- the cache ----------------------------------------------------------------------------------------------------


class _Counting(LexicalEncoder):
    calls = 0

    def encode(self, pairs: Sequence[Pair]) -> FeatureMatrix:
        self.calls += 1
        return super().encode(pairs)


def test_the_cache_gives_the_same_features_without_encoding_again(tmp_path: Path) -> None:
    pairs, encoder = pet_pairs(), _Counting()
    plain = encode_pairs(pairs, LexicalEncoder())
    first = encode_pairs_cached(pairs, encoder, FeatureCache(tmp_path / "c", encoder))
    assert encoder.calls == 60
    cache = FeatureCache(tmp_path / "c", encoder)
    second = encode_pairs_cached(pairs, encoder, cache)
    assert encoder.calls == 60
    assert np.array_equal(plain, first)
    assert np.array_equal(plain, second)
    assert cache.path.stat().st_mode & 0o777 == 0o600


def test_torn_and_damaged_records_are_encoded_anew(tmp_path: Path) -> None:
    pairs, encoder = pet_pairs(), _Counting()
    cache = FeatureCache(tmp_path, encoder)
    plain = encode_pairs_cached(pairs, encoder, cache)
    raw = bytearray(cache.path.read_bytes())
    raw[100] ^= 1
    cache.path.write_bytes(raw[:-5])
    again = FeatureCache(tmp_path, encoder)
    assert len(again) == 58
    assert np.array_equal(encode_pairs_cached(pairs, encoder, again), plain)
    assert len(FeatureCache(tmp_path, encoder)) == 60


def test_another_revision_never_reads_these_features(tmp_path: Path) -> None:
    class Other(LexicalEncoder):
        revision = "0" * 64

    encoder = LexicalEncoder()
    encode_pairs_cached(pet_pairs(), encoder, FeatureCache(tmp_path, encoder))
    assert len(FeatureCache(tmp_path, Other())) == 0


def test_the_fake_file_is_a_pairs_file(tmp_path: Path) -> None:
    assert load_pairs(write_lines(tmp_path / "p", pet_pairs(3)), 3) == pet_pairs(3)
