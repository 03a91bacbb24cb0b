"""Published and designed numbers of the Gaussian variants (charges_noise.json names where each comes from)."""

import json
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.charges.clamped_gaussian import clamped_renyi_charge
from reticent.accounting.charges.gaussian import renyi_charge
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.published import published_threshold_epsilon

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("charges_noise.json").read_text())


def test_privbon_with_gaussian_noise_has_the_published_epsilons() -> None:
    golden = GOLDEN["privbon_gaussian_epsilon"]
    for row in golden["rows"]:
        m = PrivBoNGaussian(golden["reward_max"], golden["sensitivity"], row["candidates"], row["noise_scale"])
        assert m.published_epsilon() == pytest.approx(row["epsilon"], abs=row["tolerance"])


def test_privbon_with_gumbel_noise_has_the_published_epsilons() -> None:
    for row in GOLDEN["privbon_published_table"]["rows"]:
        m = PrivBoN(1.0, 1.0, 16, row["noise_scale"])
        assert m.published_epsilon() == pytest.approx(row["epsilon"], abs=row["tolerance"])
        assert m.tight_epsilon() < m.published_epsilon()


def test_the_published_threshold_epsilon_moves_with_delta_as_the_paper_says() -> None:
    golden = GOLDEN["published_threshold"]
    small, large = (published_threshold_epsilon(delta, 1.0, 0.128) for delta in golden["deltas"])
    assert small / large == pytest.approx(golden["ratio"], abs=golden["tolerance"])


def test_the_clamped_threshold_costs_the_designed_share() -> None:
    golden = GOLDEN["clamped_share"]
    order, scale = golden["order"], golden["threshold_noise"]
    for sensitivity in golden["sensitivities"]:
        share = clamped_renyi_charge(order, sensitivity, scale, 1.0, 2.0**-30) / renyi_charge(order, sensitivity, scale)
        assert golden["least"] <= share <= golden["most"]
