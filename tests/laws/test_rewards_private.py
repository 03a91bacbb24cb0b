"""Privately trained heads: the claim against slow twins, the lattice, the file, and noise too small."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.charges.gaussian import delta_of
from reticent.accounting.fingerprint import sha256_hex
from reticent.rewards.encoders.lexical import LexicalEncoder
from reticent.rewards.errors import HeadInvalid, TrainingFailed
from reticent.rewards.head import LinearHead
from reticent.rewards.private_training import PrivateTraining, calibrated, released_weights
from reticent.rewards.sensitivity import HeadFacts, movement_rounded_up
from reticent.rewards.training import PrivacyWish, encode_pairs, pair_differences, train_head, train_linear_head
from tests.fakes.preferences import pet_pairs

FACTS = HeadFacts(1000, 1, 0.1, 2.0, 1e-9, 0.5, 1.0)
SHIPPED = Path(__file__).parents[2] / "deploy/embedded/head.json"

facts = st.builds(
    HeadFacts,
    pairs=st.integers(50, 10**6),
    pairs_per_person=st.integers(1, 20),
    regularization=st.floats(1e-3, 10),
    pair_norm=st.floats(0.1, 2),
    gradient_tolerance=st.floats(1e-11, 1e-8),
    scale=st.just(1.0),
    reward_max=st.just(1.0),
)


@pytest.fixture(scope="module")
def head() -> LinearHead:
    return train_linear_head(pet_pairs(), LexicalEncoder(), 0.5, 0.5, privacy=PrivacyWish(5.0))


@settings(max_examples=40, deadline=None)
@given(f=facts, dimension=st.integers(1, 2000), epsilon=st.floats(0.05, 20), delta=st.floats(1e-12, 0.01))
def test_the_gaussian_claim_agrees_with_mpmath_and_is_nearly_tight(
    f: HeadFacts, dimension: int, epsilon: float, delta: float
) -> None:
    p = calibrated(f, dimension, "gaussian", epsilon, delta)
    assert p.order is not None
    with mpmath.workdps(40):
        a, d = mpmath.mpf(p.order), mpmath.mpf(delta)
        k = mpmath.mpf(movement_rounded_up(f)) / mpmath.mpf(p.granule)
        u = (mpmath.log(1 / d) - mpmath.log(a)) / (a - 1) + mpmath.log(1 - 1 / a)
        stated = a * k**2 / (2 * mpmath.mpf(p.scale_units) ** 2) + max(mpmath.mpf(0), u)
        assert stated <= epsilon
        assert stated >= epsilon * (1 - 1e-5) - 1e-8


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 8.0])
def test_the_gaussians_exact_delta_keeps_the_claim_and_half_the_noise_does_not(epsilon: float) -> None:
    p = calibrated(FACTS, 24, "gaussian", epsilon, 1e-6)
    units = movement_rounded_up(FACTS) / p.granule
    assert delta_of(epsilon, units, p.scale_units) <= 1e-6
    assert delta_of(epsilon, units, 0.7 * p.scale_units) > 1e-6


@settings(max_examples=40, deadline=None)
@given(f=facts, dimension=st.integers(1, 2000), epsilon=st.floats(0.05, 20))
def test_the_laplace_claim_holds_in_exact_arithmetic(f: HeadFacts, dimension: int, epsilon: float) -> None:
    p = calibrated(f, dimension, "laplace", epsilon, 0.0)
    with mpmath.workdps(40):
        l1 = mpmath.sqrt(dimension) * mpmath.mpf(movement_rounded_up(f)) / mpmath.mpf(p.granule)
        assert l1 / mpmath.mpf(p.scale_units) <= epsilon
        assert l1 / mpmath.mpf(p.scale_units) >= epsilon * (1 - 1e-6)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    "change", [{"scale_units": 0.7}, {"epsilon": 0.9}, {"granule": 4.0}], ids=["noise", "epsilon", "lattice"]
)
def test_a_claim_that_the_numbers_do_not_give_is_refused(noise: Any, change: dict[str, float]) -> None:
    p = calibrated(FACTS, 24, noise, 1.0, 1e-6)
    p.require_covers(FACTS, 24)
    with pytest.raises(HeadInvalid):
        replace(p, **{k: getattr(p, k) * v for k, v in change.items()}).require_covers(FACTS, 24)


@pytest.mark.parametrize(
    "change",
    [
        {"noise": "uniform"},
        {"epsilon": 0.0},
        {"granule": 0.3},
        {"scale_units": math.inf},
        {"order": 1.0},
        {"order": None},
        {"delta": 0.0},
        {"delta": 1},
        {"noise": "laplace"},
    ],
)
def test_parameters_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(HeadInvalid):
        replace(calibrated(FACTS, 24, "gaussian", 1.0, 1e-6), **change)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (math.nan, 1e-6), (1.0, 0.0), (1.0, 1.0), (1e-14, 1e-6)])
def test_a_wish_that_cannot_be_granted_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(TrainingFailed):
        calibrated(FACTS, 24, "gaussian", epsilon, delta)


def test_integers_of_neighbours_are_no_further_apart_than_the_movement() -> None:
    pairs, encoder = pet_pairs(), LexicalEncoder()
    positive, negative = encode_pairs(pairs, encoder)
    f = HeadFacts(len(pairs.rows), 1, 0.05, 2.0, 1e-9, 0.5, 1.0)
    p = calibrated(f, positive.shape[1], "gaussian", 1.0, 1e-6)

    def integers(swapped: int | None) -> list[int]:
        rows = [positive.copy(), negative.copy()]
        if swapped is not None:
            rows[0][swapped], rows[1][swapped] = negative[swapped], positive[swapped]
        w = train_head(rows[0], rows[1], 0.05, gradient_tolerance=f.gradient_tolerance / 2).weights
        return [round(float(x) / p.granule) for x in w]

    first = integers(None)
    for i in range(0, len(pairs.rows), 7):
        squares = sum((a - b) ** 2 for a, b in zip(first, integers(i), strict=True))
        assert squares <= (Fraction(movement_rounded_up(f)) / Fraction(p.granule)) ** 2
    # Longest differences are what the bound is for; the twin: a tenth of it is passed.
    assert pair_differences(positive, negative).shape == positive.shape
    assert math.sqrt(squares) > movement_rounded_up(f) / p.granule / 100


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_released_weights_are_lattice_points_with_the_stated_deviation(noise: Any) -> None:
    p = calibrated(FACTS, 2000, noise, 1.0, 1e-6)
    out = np.array(released_weights(np.full(2000, 0.3), p))
    assert all((x / p.granule).is_integer() for x in out.tolist())
    # 2,000 draws: the deviation's own relative error is 1.6 % (Gaussian), 2.5 % (Laplace); 8 of them are allowed.
    assert np.std(out - 0.3) == pytest.approx(p.noise_deviation, rel=0.2)
    # The twin: noise 30 % smaller than stated would be noticed.
    assert np.std(out - 0.3) != pytest.approx(0.7 * p.noise_deviation, rel=0.1)


def test_every_release_draws_its_own_noise() -> None:
    p = calibrated(FACTS, 8, "gaussian", 1.0, 1e-6)
    assert released_weights(np.zeros(8), p) != released_weights(np.zeros(8), p)


def test_a_private_head_is_the_same_after_saving_and_carries_no_hash(head: LinearHead, tmp_path: Path) -> None:
    head.save(tmp_path / "h.json")
    text = (tmp_path / "h.json").read_text()
    assert LinearHead.load(tmp_path / "h.json") == head
    assert json.loads(text)["format"] == "reticent-head-2"
    assert "data_sha256" not in text
    assert pet_pairs().sha256 not in text
    assert head.public_facts()["private"]
    assert head.private is not None
    assert head.private.charge(head.certificate.facts, 8.0) > 0


def test_a_private_head_is_no_exact_minimiser(head: LinearHead) -> None:
    plain = train_linear_head(pet_pairs(), LexicalEncoder(), 0.5, 0.5)
    distance = float(np.linalg.norm(np.array(head.weights) - np.array(plain.weights)))
    assert head.private is not None
    assert 0.2 < distance / (head.private.noise_deviation * math.sqrt(head.dimension)) < 3


@pytest.mark.parametrize(
    "change", [{"epsilon": 1.0}, {"scale_units": 1.0}, {"noise": "laplace"}, {"surplus": 1}, {"order": 1e9}]
)
def test_an_altered_claim_is_refused_even_with_a_right_hash(head: LinearHead, change: dict[str, Any]) -> None:
    body: dict[str, Any] = {k: v for k, v in head.to_dict().items() if k != "content_sha256"}
    body["private"] = {**body["private"], **change}
    with pytest.raises(HeadInvalid):
        LinearHead.from_dict({**body, "content_sha256": sha256_hex(body)})


def test_a_head_has_either_a_hash_or_a_claim(head: LinearHead) -> None:
    with pytest.raises(HeadInvalid, match="one of the two"):
        replace(head, private=None)
    with pytest.raises(HeadInvalid, match="one of the two"):
        replace(head, certificate=replace(head.certificate, data_sha256="0" * 64))


def test_a_claim_for_another_width_is_refused(head: LinearHead) -> None:
    assert isinstance(head.private, PrivateTraining)
    with pytest.raises(HeadInvalid):
        replace(head, weights=head.weights * 10_000)


def test_the_shipped_head_is_of_the_first_format_and_unchanged() -> None:
    head = LinearHead.load(SHIPPED)
    assert head.private is None
    assert head.to_dict() == json.loads(SHIPPED.read_text())
    assert "private" not in head.public_facts()
