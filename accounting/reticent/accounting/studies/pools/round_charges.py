"""What PrivITP's rounds cost under "renyi", quickly: for estimates of charges, never for charging.

The server charges a certified pair (r, s) for each of some thousand cells of λ, and its table takes about a second.
Here the pair is searched at a few λ, with the same guess of the acceptance probability, on the adjacent pairs' curve
itself and without a certificate, and interpolated. In the tests' cells it differs from the certified pair by less than
3 % at every λ and by less than 1 % on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.charges.renyi_rounds import acceptance_for, curve, least_rejection, log_acceptance
from reticent.accounting.planning.laws import Floats

__all__ = ["RoundCharges", "certified_charges", "quick_charges"]

_LEVELS, _REWARDS, _GUESSED = 41, 96, 32
_ITERATIONS = 34
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True, eq=False)
class RoundCharges:
    """Attributes:
    rejection, acceptance: r and s at the nodes of λ that were asked for, nats.
    fixed: phase 1's charge, nats.
    worst: the most that one query may cost, phase 1 included, nats.
    """

    rejection: Floats
    acceptance: Floats
    fixed: float
    worst: float


def quick_charges(mechanism: PrivITP, levels: Floats, order: float) -> RoundCharges:
    """The charges of `mechanism` at `order`, estimated."""
    beta, sigma = mechanism.regularization, mechanism.reward_noise
    ceiling = mechanism.reward_max + sigma * mechanism.truncation
    # Even in log(1 + t/σ_Z), t = T - λ: closer together where λ is close to the ceiling.
    low, high = np.log1p(np.array([ceiling - mechanism.reward_max + beta, ceiling + beta]) / sigma)
    even = np.linspace(low, high, _LEVELS)
    places = np.clip(ceiling - sigma * np.expm1(even), -beta, mechanism.reward_max - beta)
    rejection, acceptance = _pairs(mechanism, places, ceiling, order)
    at = np.log1p((ceiling - levels) / sigma)
    n, fixed = mechanism.candidates, mechanism.threshold_charge(order)
    worst = float(((n - 1) * rejection + np.maximum(rejection, acceptance)).max())
    return RoundCharges(np.interp(at, even, rejection), np.interp(at, even, acceptance), fixed, fixed + worst)


def _pairs(mechanism: PrivITP, levels: Floats, ceiling: float, order: float) -> tuple[Floats, Floats]:
    """(r, s) at each level: the least (1-p̄)/p̄ · r + s, or "ville"'s (κ, acc) where that is less."""
    R, Delta, sigma = mechanism.reward_max, mechanism.sensitivity, mechanism.reward_noise

    def law(q: float) -> tuple[Floats, Floats]:
        return log_acceptance(np.asarray(q), levels, ceiling, sigma)

    spread = R * (np.arange(_GUESSED) + 0.5) / _GUESSED
    guess = np.exp(log_acceptance(spread[None, :], levels[:, None], ceiling, sigma)[0]).mean(axis=1)
    odds = (1.0 - guess) / np.maximum(guess, 1e-9)
    kappa = np.maximum(law(max(0.0, R - Delta))[1] - law(R)[1], 0.0)
    acc = np.maximum(law(min(R, Delta))[0] - law(0.0)[0], 0.0)
    rewards = np.linspace(0.0, max(R - Delta, 0.0), _REWARDS)
    with np.errstate(all="ignore"):
        points = curve(rewards, levels, sensitivity=Delta, ceiling=ceiling, noise=sigma)
        least = least_rejection(points, order)
        most = np.maximum(kappa - least, 0.0) + 1e-300
        left, right = np.log(most * 1e-9 + 1e-300), np.log(most)
        for _ in range(_ITERATIONS):
            one, two = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
            costs = []
            for x in (one, two):
                r = least + np.exp(x)
                costs.append(odds * r + acceptance_for(points, r, order))
            keep_left = costs[0] < costs[1]
            left, right = np.where(keep_left, left, one), np.where(keep_left, two, right)
        rejection = least + np.exp(0.5 * (left + right))
        acceptance = acceptance_for(points, rejection, order)
        ville = ~(np.isfinite(acceptance) & (odds * rejection + acceptance <= odds * kappa + acc))
    return np.where(ville, kappa, rejection), np.where(ville, acc, acceptance)


def certified_charges(mechanism: PrivITP, levels: Floats, order: float) -> RoundCharges:
    """What the server charges, from its certified table."""

    costs = [mechanism.round_costs(float(level), "renyi", order) for level in levels]
    fixed = mechanism.threshold_charge(order)
    worst = fixed + mechanism.worst_sampling_charge_supremum("renyi", order)
    return RoundCharges(
        np.array([cost.rejection for cost in costs]), np.array([cost.acceptance for cost in costs]), fixed, worst
    )
