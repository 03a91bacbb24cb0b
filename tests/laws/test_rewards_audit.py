"""The audit by retraining: it keeps quiet about a right bound, breaks a wrong one, and refuses what it cannot judge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reticent.rewards.encoders.lexical import LexicalEncoder
from reticent.rewards.errors import HeadInvalid, HeadNotReproduced, TrainingFailed
from reticent.rewards.head import LinearHead
from reticent.rewards.head_audit import KINDS, AuditReport, audit_head
from reticent.rewards.pairs import PreferencePairs
from reticent.rewards.retraining import Retrainer
from reticent.rewards.sensitivity import movement_rounded_up
from reticent.rewards.training import PrivacyWish, encode_pairs, minimise_loss, pair_differences, train_linear_head
from tests.fakes.preferences import pet_pairs

ENCODER = LexicalEncoder()


def _audit(pairs: PreferencePairs, head: LinearHead, **options: float) -> AuditReport:
    features = encode_pairs(pairs, ENCODER)
    return audit_head(head, pairs, features, candidates=2000, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("per_person", [0, 3])
def test_no_change_moves_a_reward_beyond_the_bound(per_person: int) -> None:
    pairs = pet_pairs(per_person)
    head = train_linear_head(pairs, ENCODER, 0.05, 2.0)
    report = _audit(pairs, head)
    assert not report.violated
    assert (report.retrainings, len(report.kinds), report.candidates) == (210, len(KINDS), 2002)
    assert 0 < report.reward_movement <= report.sensitivity == head.sensitivity
    assert 0 < report.weight_movement <= report.movement_bound == movement_rounded_up(head.certificate.facts)


@pytest.mark.parametrize("per_person", [0, 3])
def test_a_bound_ten_times_too_small_is_caught(per_person: int) -> None:
    pairs = pet_pairs(per_person)
    report = _audit(pairs, train_linear_head(pairs, ENCODER, 0.05, 2.0), divide_bound_by=10)
    assert report.violated
    assert report.reward_movement > report.sensitivity


def test_chosen_changes_move_more_than_random_ones() -> None:
    pairs = pet_pairs()
    moved = {k.kind: k.reward_movement for k in _audit(pairs, train_linear_head(pairs, ENCODER, 0.05, 2.0)).kinds}
    assert moved["left out, most influence"] >= moved["left out"]
    assert max(moved["longest against w"], moved["longest, weakest direction"]) > moved["other pairs"]


def test_a_private_head_is_judged_with_its_noise_held() -> None:
    pairs = pet_pairs()
    head = train_linear_head(pairs, ENCODER, 0.5, 2.0, privacy=PrivacyWish(5.0))
    assert not _audit(pairs, head, retrainings=35).violated
    assert _audit(pairs, head, retrainings=35, divide_bound_by=10).violated


@pytest.mark.parametrize("mu", [0.001, 0.05])
def test_a_retraining_is_what_training_from_nothing_gives(mu: float) -> None:
    positive, negative = encode_pairs(pet_pairs(), ENCODER)
    d = pair_differences(positive, negative)
    retrainer = Retrainer(d, mu, 1e-9)
    for changed in (np.delete(d, [3, 4], axis=0), np.concatenate([d[:-1], -d[-1:]])):
        slow = minimise_loss(changed, mu, 1e-12 if mu > 0.01 else 1e-11).weights
        assert np.linalg.norm(retrainer.retrain(changed) - slow) <= 1e-9 / mu


def test_other_pairs_or_another_head_are_refused() -> None:
    pairs = pet_pairs()
    head = train_linear_head(pairs, ENCODER, 0.05, 2.0)
    with pytest.raises(HeadInvalid, match="trained on 60 pairs, these are 59"):
        _audit(replace(pairs, rows=pairs.rows[1:]), head)
    with pytest.raises(HeadInvalid, match="hash is another"):
        _audit(replace(pairs, rows=pairs.rows[::-1]), head)
    with pytest.raises(HeadInvalid, match="at most 1 pairs a person"):
        _audit(pet_pairs(3), head)
    moved = replace(head, weights=tuple(1.01 * w for w in head.weights))
    with pytest.raises(HeadNotReproduced):
        _audit(pairs, moved)


def test_one_person_alone_and_too_few_retrainings_are_refused() -> None:
    pairs = pet_pairs(60)
    head = train_linear_head(pairs, ENCODER, 0.05, 2.0)
    with pytest.raises(TrainingFailed, match="one person's"):
        _audit(pairs, head)
    with pytest.raises(TrainingFailed, match="at least 7"):
        _audit(pairs, head, retrainings=3)
