"""Deployment mixtures and partitions of tables 7, 10 and 12."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.studies.certificates.populations import Population

__all__ = ["dirichlet_sites", "iid_sites", "moved_weights"]

Array = NDArray[np.float64]


def moved_weights(population: Population, share: float) -> Population:
    """`share` of the declared weight moved to the site of most weight, taken from the others in proportion.

    The total variation distance to the old weights is `share`, cut to what the others have.
    """
    w = population.weights
    k = int(w.argmax())
    moved = min(share, float(1.0 - w[k]))
    others = np.where(np.arange(len(w)) == k, 0.0, w)
    if moved <= 0.0 or others.sum() == 0.0:
        return population
    weights = w - moved * others / others.sum()
    weights[k] += moved
    return replace(population, weights=weights / weights.sum())


def iid_sites(population: Population, sites: int) -> Population:
    """Every site has the law of the whole mixture."""
    mixed = np.tensordot(population.weights, population.cells, axes=1)
    return replace(population, cells=np.repeat(mixed[None], sites, axis=0), weights=np.full(sites, 1.0 / sites))


def dirichlet_sites(population: Population, sites: int, concentration: float, seed: int) -> Population:
    """Records of each loss value dealt to the sites with Dirichlet shares; sites then weigh the same.

    So the mixture is no longer that of the records (in the paper's row neither: its acceptance and risk differ from
    the others').
    """
    rng = np.random.default_rng([seed, 7])
    mixed = np.tensordot(population.weights, population.cells, axes=1)
    shares = rng.dirichlet(np.full(sites, concentration), size=mixed.shape[1]).T
    cells = mixed[None] * shares[:, None, :]
    sizes = cells.sum(axis=(1, 2), keepdims=True)
    # A site that was dealt nothing has no law; it gets the mixture.
    cells = np.where(sizes > 1e-12, cells / np.maximum(sizes, 1e-12), mixed[None] / mixed.sum())
    return replace(population, cells=cells, weights=np.full(sites, 1.0 / sites))
