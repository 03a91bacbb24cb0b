"""How many queries a budget answers with PrivITP charged by "renyi": the table of privacy.md, section 5."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.charges.renyi_rounds import log_acceptance
from reticent.accounting.filter import overhead_dp

EPSILON, DELTA, SAMPLES = 50.0, 0.01, 20_000


def mean_charge(m: PrivITP, order: float, seed: int) -> float:
    """Mean charge of one query, rewards Beta(2,2): phase 1 simulated, phase 2 by its exact law given rewards."""
    rng = np.random.default_rng(seed)
    n = m.candidates
    down = -np.sort(-rng.beta(2.0, 2.0, (SAMPLES, n)), axis=1)
    normalizer = ((np.cumsum(down, axis=1) - n * m.regularization) / np.arange(1, n + 1)).max(axis=1)
    noisy = normalizer + m.threshold_noise * rng.normal(size=SAMPLES)
    threshold = np.clip(noisy, -m.regularization, m.reward_max - m.regularization)
    table = m.round_table(order)
    cell = np.clip(np.searchsorted(table.edges, threshold, side="right") - 1, 0, table.guess.size - 1)
    ceiling = m.reward_max + m.reward_noise * m.truncation
    reject = log_acceptance(rng.beta(2.0, 2.0, (SAMPLES, n)), threshold[:, None], ceiling, m.reward_noise)[1]
    alive = np.exp(np.cumsum(reject, axis=1))
    charge = table.rejection[cell] * alive.sum(axis=1) + table.acceptance[cell] * (1.0 - alive[:, -1])
    return m.threshold_charge(order) + float(charge.mean())


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("sensitivity", "scale", "order", "least", "designed"),
    [
        (0.05, 0.512, 1.377, 735, 748),
        (0.05, 2.56, 1.377, 15_900, 16_245),
        (1.0, 2.56, 1.40, 40, 41.1),
        (0.01, 2.56, 1.377, 399_000, 407_166),
    ],
)
def test_a_budget_answers_the_designed_number_of_queries(
    sensitivity: float, scale: float, order: float, least: float, designed: float
) -> None:
    m = PrivITP(1.0, sensitivity, 16, 0.05, scale / 2, scale / 2, 3.84)
    answered = (EPSILON - overhead_dp(order, DELTA)) / mean_charge(m, order, 11)
    assert least <= answered <= 1.03 * designed


@pytest.mark.simulation
def test_half_of_the_noise_or_villes_charge_does_not_answer_that_many() -> None:
    m = PrivITP(1.0, 0.05, 16, 0.05, 0.128, 0.128, 3.84)
    assert (EPSILON - overhead_dp(1.377, DELTA)) / mean_charge(m, 1.377, 11) < 400
    ville = PrivITP(1.0, 0.05, 16, 0.05, 0.256, 0.256, 3.84)
    dear = ville.round_costs(0.4)
    cheap = ville.round_costs(0.4, "renyi", 1.377)
    assert dear.expected(0.2) > 10 * cheap.expected(0.2)
    assert math.isfinite(cheap.worst())
