"""One-shot federated conformal prediction: a quantile of the sites' quantiles.

Humbert, Le Bars, Bellet and Arlot 2023 (FedCP-QQ). Every site sends the ℓ-th smallest of its n nonconformity scores,
once; the server takes the k-th smallest of the K values. For independent, continuous scores of one law the next score
is at most that value with probability E[U_(k)], the mean of the k-th smallest of K independent Beta(ℓ, n - ℓ + 1)
variables. It makes prediction sets: its coverage is a mean over calibrations, of another event than a selective risk,
and is never shown as one. Here the nonconformity of an answer is 1 - S, of answers without loss: the set
{S ≥ threshold} contains an answer without loss with the declared probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, betaln

from reticent.accounting.studies.certificates.populations import Population

__all__ = ["OneShot", "QuantileOfQuantiles", "expected_coverage", "one_shot", "quantile_of_quantiles"]

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)


@dataclass(frozen=True)
class QuantileOfQuantiles:
    """Which local order statistic (ℓ, from 1) and which of the K values (k, from 1), with the coverage they give."""

    local: int
    central: int
    coverage: float


@dataclass(frozen=True)
class OneShot:
    """Native result: means over trials, and the fraction of trials whose own coverage is below what was declared.

    Attributes:
        chosen: the order statistics.
        coverage: of answers without loss, under the declared mixture.
        size: fraction of all answers in the set (the acceptance).
        trials_below: fraction of trials with a coverage below 1 - miscoverage: the guarantee is of the mean only.
    """

    chosen: QuantileOfQuantiles
    coverage: float
    size: float
    trials_below: float


def expected_coverage(sites: int, records: int, local: int, central: int) -> float:
    """E[U_(k)] = ∫ F⁻¹(p) f(p) dp: F of Beta(ℓ, n - ℓ + 1), f the density of Beta(k, K - k + 1)."""
    p = 0.5 * (_NODES + 1.0)
    log_density = (central - 1) * np.log(p) + (sites - central) * np.log1p(-p) - betaln(central, sites - central + 1)
    return float(0.5 * _WEIGHTS @ (np.exp(log_density) * betaincinv(local, records - local + 1, p)))


def quantile_of_quantiles(sites: int, records: int, miscoverage: float) -> QuantileOfQuantiles:
    """The pair with the smallest expected coverage that is at least 1 - miscoverage.

    Raises:
        ValueError: none has it; more records are needed.
    """
    found = []
    for central in range(1, sites + 1):
        low, high = 0, records + 1  # the smallest ℓ that is enough lies in (low, high]
        while high - low > 1:
            middle = (low + high) // 2
            if expected_coverage(sites, records, middle, central) >= 1.0 - miscoverage:
                high = middle
            else:
                low = middle
        if high <= records:
            found.append(QuantileOfQuantiles(high, central, expected_coverage(sites, records, high, central)))
    if not found:
        raise ValueError(f"{sites} sites with {records} records each cannot reach a coverage of {1.0 - miscoverage:g}")
    return min(found, key=lambda pair: pair.coverage)


def one_shot(population: Population, records: int, miscoverage: float, trials: int, seed: int) -> OneShot:
    """Simulate it with `records` answers without loss at every site."""
    rng = np.random.default_rng(seed)
    chosen = quantile_of_quantiles(population.sites, records, miscoverage)
    size = population.size + 1
    clean = population.cells @ (1.0 - population.loss_values)
    every = population.cells.sum(axis=2)
    local = np.empty((trials, population.sites))
    for site in range(population.sites):
        law = clean[site] / clean[site].sum()
        bins = rng.choice(size, size=(trials, records), p=law)
        nonconformity = 1.0 - (bins + rng.random((trials, records))) / size
        local[:, site] = np.partition(nonconformity, chosen.local - 1, axis=1)[:, chosen.local - 1]
    threshold = 1.0 - np.sort(local, axis=1)[:, chosen.central - 1]
    mixed_clean, mixed = population.weights @ clean, population.weights @ every
    coverage = _mass_above(mixed_clean / mixed_clean.sum(), threshold)
    return OneShot(
        chosen,
        float(coverage.mean()),
        float(_mass_above(mixed, threshold).mean()),
        float((coverage < 1.0 - miscoverage).mean()),
    )


def _mass_above(law: Array, threshold: Array) -> Array:
    """P(S ≥ threshold); scores are uniform within a bin."""
    edges = np.linspace(0.0, 1.0, len(law) + 1)
    below = np.concatenate([[0.0], np.cumsum(law)])
    return np.asarray(1.0 - np.interp(threshold, edges, below))
