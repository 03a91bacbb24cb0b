"""Head files, preference files, and the table of trade-offs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reticent.accounting.fingerprint import sha256_hex
from reticent.rewards.backends.head import HeadBackend
from reticent.rewards.encoders import Subject, build_encoder
from reticent.rewards.encoders.lexical import LexicalEncoder
from reticent.rewards.errors import (
    EncoderMismatch,
    HeadAltered,
    HeadInvalid,
    InvalidPairs,
    SensitivityMismatch,
    UnknownName,
    WidthMismatch,
)
from reticent.rewards.head import LinearHead
from reticent.rewards.pairs import PreferencePair, PreferencePairs, load_pairs, split_by_prompt
from reticent.rewards.tradeoff import tradeoff
from reticent.rewards.training import encode_pairs, train_linear_head

PETS = ("cat", "dog", "goat", "pony", "parrot", "rabbit")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ivy", "Jon")


def _pairs() -> PreferencePairs:
    rows = []
    for i, name in enumerate(NAMES):
        for j, pet in enumerate(PETS):
            passage = f"{name} has a {pet}. {name} lives in Oakford."
            question = f"What pet does {name} have?"
            subject = Subject(f"Passage: {passage}\n\nQuestion: {question}", question, (passage,))
            wrong = (f"{name} has a {PETS[j - 1]}.", "It is not stated.", f"{name} lives in Oakford.")[(i + j) % 3]
            rows.append(PreferencePair(subject, f"{name} has a {pet}.", wrong))
    return PreferencePairs(tuple(rows))


@pytest.fixture(scope="module")
def head() -> LinearHead:
    return train_linear_head(_pairs(), LexicalEncoder(), 0.05, 0.5)


def _write(path: Path, value: dict[str, Any], *, rehash: bool) -> Path:
    if rehash:
        body = {k: v for k, v in value.items() if k != "content_sha256"}
        value = {**body, "content_sha256": sha256_hex(body)}
    path.write_text(json.dumps(value))
    return path


def test_a_saved_head_is_the_same_head(head: LinearHead, tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    head.save(path)
    assert LinearHead.load(path) == head
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["head.json"]


def test_a_head_prefers_what_it_was_taught(head: LinearHead) -> None:
    subject = Subject("", "What pet does Zoe have?", ("Zoe has a turtle. Zoe lives in Ashford.",))
    right, wrong, empty = HeadBackend(head, LexicalEncoder()).score(subject, ["A turtle.", "Zoe has a cat.", " "])
    assert head.reward_max >= right > wrong >= empty == 0.0


def test_an_altered_weight_is_refused(head: LinearHead, tmp_path: Path) -> None:
    value: dict[str, Any] = head.to_dict()
    value["weights"][0] += 1e-12
    with pytest.raises(HeadAltered):
        LinearHead.load(_write(tmp_path / "h", value, rehash=False))


@pytest.mark.parametrize(
    ("field", "changed"), [("sensitivity", 1e-4), ("pairs", 10**6), ("regularization", 1.0), ("scale", 10.0)]
)
def test_a_sensitivity_that_its_numbers_do_not_give_is_refused_even_with_a_right_hash(
    head: LinearHead, tmp_path: Path, field: str, changed: float
) -> None:
    value: dict[str, Any] = head.to_dict()
    value["certificate"][field] = changed
    with pytest.raises(SensitivityMismatch):
        LinearHead.load(_write(tmp_path / "h", value, rehash=True))


@pytest.mark.parametrize(
    "change",
    [
        {"weights": []},
        {"weights": "abc"},
        {"weights": [True]},
        {"weights": [1e300]},
        {"format": "other"},
        {"encoder": 3},
        {"surplus": 1},
        {"certificate": {}},
        {"certificate": None},
    ],
)
def test_a_malformed_head_is_refused(head: LinearHead, tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(HeadInvalid):
        LinearHead.load(_write(tmp_path / "h", {**head.to_dict(), **change}, rehash=True))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": NaN}', '{"format": 1, "format": 2}', "\ufeff{}"])
def test_what_is_no_head_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "h").write_text(text, encoding="utf-8")
    with pytest.raises(HeadInvalid):
        LinearHead.load(tmp_path / "h")


def test_features_of_the_wrong_width_or_length_are_refused(head: LinearHead) -> None:
    with pytest.raises(WidthMismatch):
        head.reward(np.zeros((2, head.dimension + 1)))
    with pytest.raises(ValueError, match="longer than 1"):
        head.reward(np.ones((1, head.dimension)))
    with pytest.raises(ValueError, match="not finite"):
        head.reward(np.full((1, head.dimension), np.nan))


def test_another_encoder_is_refused(head: LinearHead) -> None:
    with pytest.raises(EncoderMismatch):
        HeadBackend(replace(head, encoder_revision="0" * 64), LexicalEncoder())


def test_public_facts_hold_nothing_of_the_data(head: LinearHead) -> None:
    text = json.dumps(head.public_facts())
    assert head.certificate.data_sha256 not in text
    assert not any(repr(weight) in text for weight in head.weights)
    assert head.public_facts()["sensitivity"] == head.sensitivity


def test_unknown_encoders_are_named() -> None:
    for name in ("bert", "minilm/other", "causal/x", ""):
        with pytest.raises(UnknownName):
            build_encoder(name)


# --- pairs --------------------------------------------------------------------------------------------------------

GOOD = {"prompt": "p", "chosen": "a", "rejected": "b"}


def _lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_plain_and_gzipped_files_give_the_same_pairs(tmp_path: Path) -> None:
    row = {**GOOD, "question": "q", "evidence": ["e", "f"], "person": "x"}
    plain = _lines(tmp_path / "p.jsonl", row, {**row, "prompt": "p2"})
    (tmp_path / "p.gz").write_bytes(gzip.compress(plain.read_bytes()))
    pairs = load_pairs(plain)
    assert pairs == load_pairs(tmp_path / "p.gz")
    assert pairs.sha256 == load_pairs(tmp_path / "p.gz").sha256
    assert pairs.pairs_per_person == 2
    assert pairs.rows[0] == PreferencePair(Subject("p", "q", ("e", "f")), "a", "b", "x")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no pairs"),
        ([{"prompt": "p", "chosen": "a"}], "line 1: rejected is missing"),
        ([GOOD, {**GOOD, "chosen": " "}], "line 2: chosen is empty"),
        ([{**GOOD, "rejected": "a"}], "line 1: chosen and rejected are the same"),
        ([GOOD, GOOD], "line 2: a duplicate of line 1"),
        ([GOOD, {**GOOD, "chosen": "b", "rejected": "a"}], "line 2: the opposite of line 1"),
        ([{**GOOD, "colour": 1}], "line 1: unknown field colour"),
        ([{**GOOD, "evidence": "e"}], "line 1: evidence is no list"),
        ([{**GOOD, "person": 3}], "line 1: person is missing or no string"),
        ([[1]], "line 1: not a JSON object"),
    ],
)
def test_a_bad_pairs_file_is_refused_with_its_line(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(InvalidPairs, match=message):
        load_pairs(_lines(tmp_path / "p", *rows))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for raw in (b"\xff\xfe\x00", b"\x1f\x8b\x08broken", b"{"):
        (tmp_path / "p").write_bytes(raw)
        with pytest.raises(InvalidPairs):
            load_pairs(tmp_path / "p")


def test_more_pairs_of_a_person_than_declared_are_refused(tmp_path: Path) -> None:
    rows = [{**GOOD, "prompt": str(i), "person": "x"} for i in range(3)]
    with pytest.raises(InvalidPairs, match="3 pairs, declared are at most 2"):
        load_pairs(_lines(tmp_path / "p", *rows), pairs_per_person=2)


def test_no_prompt_stands_on_both_sides_of_a_split() -> None:
    training, held = split_by_prompt(_pairs(), 0.25, seed=1)
    sides = [{row.subject.prompt for row in side.rows} for side in (training, held)]
    assert not sides[0] & sides[1]
    assert len(training.rows) + len(held.rows) == len(_pairs().rows)
    assert split_by_prompt(_pairs(), 0.25, seed=1) == (training, held)
    assert split_by_prompt(_pairs(), 0.25, seed=2) != (training, held)


def test_tradeoff_says_what_mu_and_s_do() -> None:
    encoder = LexicalEncoder()
    training, held = (encode_pairs(side, encoder) for side in split_by_prompt(_pairs(), 0.3, seed=1))
    rows = list(tradeoff(training, held, [0.01, 0.1], [0.5, 5.0]))
    assert [(row.regularization, row.scale) for row in rows] == [(0.01, 0.5), (0.01, 5.0), (0.1, 0.5), (0.1, 5.0)]
    assert all(row.heldout_accuracy > 0.8 for row in rows)
    assert rows[0].separation == pytest.approx(rows[1].separation)
    assert rows[0].sensitivity > rows[1].sensitivity > rows[3].sensitivity
    # Unsaturated, the gap in units of Δ is the separation.
    assert rows[3].reward_gap == pytest.approx(rows[3].separation, rel=0.01)
