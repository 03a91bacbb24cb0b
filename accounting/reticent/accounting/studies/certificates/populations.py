"""Synthetic populations: at every site, a law of the score's bin and of the loss in it.

A bin is what the certificate sees of a score: bin 0 lies below the first threshold, bin b holds the scores between
thresholds b and b + 1. Scores within a bin never matter.

The two cells in `cells.json` are fitted to published figures (the file says which, and how). They stand for no records:
they are made so that the paper's rule fires about as often as published, and everything else follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.accounting.certificates.bounds import suffix_sums

__all__ = [
    "CELLS",
    "Population",
    "binary_losses",
    "fitted_cell",
    "fractional_losses",
    "null_population",
    "tilted_cell",
    "with_drift",
]

Array = NDArray[np.float64]

CELLS: tuple[str, ...] = ("c1", "halueval")
"""Names of the fitted cells."""


@dataclass(frozen=True)
class Population:
    """Laws of score and loss by site.

    Attributes:
        name: of the population.
        cells: probability of each bin and loss value at each site, (K, m+1, L); each site's sums to 1.
        loss_values: the L values of the loss, in [0, 1].
        weights: w, the declared deployment mixture, (K,); sums to 1.
    """

    name: str
    cells: Array
    loss_values: Array
    weights: Array

    def __post_init__(self) -> None:
        sites, _, values = self.cells.shape
        if self.loss_values.shape != (values,) or self.weights.shape != (sites,):
            raise ValueError("cells (K, m+1, L), loss_values (L,) and weights (K,) do not fit together")
        sums = np.append(self.cells.sum(axis=(1, 2)), self.weights.sum())
        if self.cells.min() < 0.0 or self.weights.min() < 0.0 or np.abs(sums - 1.0).max() > 1e-9:
            raise ValueError("probabilities and weights must be at least 0 and sum to 1")

    @property
    def sites(self) -> int:
        """K."""
        return int(self.cells.shape[0])

    @property
    def size(self) -> int:
        """m, number of thresholds."""
        return int(self.cells.shape[1]) - 1

    def accepted(self, weights: ArrayLike | None = None) -> Array:
        """a_j, acceptance at each threshold under a mixture (the declared one if none is given), (..., m)."""
        return self._suffix(self.cells.sum(axis=2), weights)

    def accepted_loss(self, weights: ArrayLike | None = None) -> Array:
        """z_j, mean accepted loss, (..., m)."""
        return self._suffix(self.cells @ self.loss_values, weights)

    def contrast(self, target_risk: float, weights: ArrayLike | None = None) -> Array:
        """d_j = z_j - r*a_j, (..., m)."""
        return self.accepted_loss(weights) - target_risk * self.accepted(weights)

    def risk(self, weights: ArrayLike | None = None) -> Array:
        """z_j/a_j, (..., m); not a number where nothing is accepted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.accepted_loss(weights) / self.accepted(weights))

    def site(self, index: int) -> Population:
        """One site as a population of its own."""
        return Population(f"{self.name}/{index}", self.cells[index : index + 1], self.loss_values, np.ones(1))

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Array]:
        """Bins and losses of independent records of the declared mixture, (count,) each."""
        flat = (self.weights[:, None, None] * self.cells).sum(axis=0)
        drawn = rng.choice(flat.size, size=count, p=(flat / flat.sum()).ravel())
        bins, losses = np.unravel_index(drawn, flat.shape)
        return bins.astype(np.int64), self.loss_values[losses]

    def draw_records(self, count: int, seed: int) -> tuple[list[tuple[float, float]], tuple[float, ...]]:
        """Independent records (score, loss) of the declared mixture, and the thresholds on the same scale.

        Bin b stands for the scores from b/(m+1) to (b+1)/(m+1); each record gets the middle of its bin.
        """
        bins, losses = self.draw(count, np.random.default_rng([seed, 77]))
        scores = (bins + 0.5) / (self.size + 1)
        records = list(zip(scores.tolist(), losses.tolist(), strict=True))
        return records, tuple((np.arange(1, self.size + 1) / (self.size + 1)).tolist())

    def _suffix(self, by_bin: Array, weights: ArrayLike | None) -> Array:
        mixed = np.asarray(self.weights if weights is None else weights, dtype=np.float64) @ by_bin
        return suffix_sums(mixed)


def binary_losses(name: str, bins: ArrayLike, risks: ArrayLike, weights: ArrayLike) -> Population:
    """Losses 0 and 1. bins, risks: probability of each bin and mean loss in it, (K, m+1)."""
    p, rho = np.asarray(bins, dtype=np.float64), np.asarray(risks, dtype=np.float64)
    cells = np.stack([p * (1.0 - rho), p * rho], axis=2)
    return Population(name, cells, np.array([0.0, 1.0]), np.asarray(weights, dtype=np.float64))


def fractional_losses(name: str, bins: ArrayLike, risks: ArrayLike, weights: ArrayLike) -> Population:
    """Losses 0, ½ and 1 with the same means: a loss is ½ with probability min(ρ, 1 - ρ)."""
    p, rho = np.asarray(bins, dtype=np.float64), np.asarray(risks, dtype=np.float64)
    half = np.minimum(rho, 1.0 - rho)
    cells = np.stack([p * (1.0 - rho - 0.5 * half), p * half, p * (rho - 0.5 * half)], axis=2)
    return Population(name, cells, np.array([0.0, 0.5, 1.0]), np.asarray(weights, dtype=np.float64))


def null_population(
    target_risk: float, *, spread: float = 0.0, sites: int = 2, m: int = 20, fractional: bool = False
) -> Population:
    """The risk is exactly r* at every threshold under equal weights.

    Half of the sites have risk r* - spread in every bin, half r* + spread (an odd last one r*). All bins are equally
    likely, so the acceptance at threshold j is (m + 1 - j)/(m + 1).
    """
    shifts = np.zeros(sites)
    shifts[: 2 * (sites // 2)] = np.tile([-spread, spread], sites // 2)
    bins = np.full((sites, m + 1), 1.0 / (m + 1))
    risks = np.repeat((target_risk + shifts)[:, None], m + 1, axis=1)
    make = fractional_losses if fractional else binary_losses
    return make(f"null {target_risk:g}", bins, risks, np.full(sites, 1.0 / sites))


def with_drift(population: Population, drift: float) -> Population:
    """Deployment laws at total variation distance `drift` or less from the calibration laws, all sites alike.

    Every loss becomes its greatest value with probability `drift`; scores stay. The risk only rises.
    """
    if not 0.0 <= drift <= 1.0:
        raise ValueError(f"drift must lie in [0, 1], got {drift!r}")
    cells = (1.0 - drift) * population.cells
    cells[:, :, int(population.loss_values.argmax())] += drift * population.cells.sum(axis=2)
    return Population(f"{population.name} drifted", cells, population.loss_values, population.weights)


def fitted_cell(name: str) -> Population:
    """A cell fitted to published figures: "c1" (RAGTruth QA, r* = .3) or "halueval" (HaluEval QA, r* = .2).

    Every bin has probability 1/(m+1) under the declared mixture, as quantile thresholds give it, and the mean loss in
    it is `mean_loss[b]`; the sites as in `tilted_cell`.

    Raises:
        ValueError: no such cell.
    """
    cells = _cells_document()["cells"]
    if name not in cells:
        raise ValueError(f"the cell must be one of {', '.join(sorted(cells))}, got {name!r}")
    parameters = cells[name]
    return tilted_cell(name, parameters["mean_loss"], parameters["score_tilts"], parameters["loss_shifts"])


def tilted_cell(
    name: str, mean_loss: ArrayLike, score_tilts: Sequence[float], loss_shifts: Sequence[float]
) -> Population:
    """Equal sites that differ in scores and losses, and bins that are equally likely in their mixture.

    Site k has bin probabilities (1 + τ_k x_b)/(m+1), x_b = 2b/m - 1, and mean losses ρ_b + s_k min(ρ_b, 1 - ρ_b), with
    the mean loss ρ_b of each bin, score tilts τ and loss shifts s. Σ s_k = Σ τ_k = Σ s_k τ_k = 0, so that the declared,
    equal mixture is exactly as said.

    Raises:
        ValueError: tilts and shifts for which it is not.
    """
    mean_loss = np.asarray(mean_loss, dtype=np.float64)
    tilts, shifts = _centred(score_tilts, "score_tilts"), _centred(loss_shifts, "loss_shifts")
    if abs(float(tilts @ shifts)) > 1e-12:
        raise ValueError(f"{name}: score tilts and loss shifts must be orthogonal")
    position = np.linspace(-1.0, 1.0, len(mean_loss))
    bins = (1.0 + tilts[:, None] * position) / len(mean_loss)
    risks = mean_loss + shifts[:, None] * np.minimum(mean_loss, 1.0 - mean_loss)
    return binary_losses(name, bins, risks, np.full(len(tilts), 1.0 / len(tilts)))


def _centred(values: Sequence[float], name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if abs(float(array.sum())) > 1e-12:
        raise ValueError(f"{name} must sum to 0")
    return array


@cache
def _cells_document() -> Mapping[str, Any]:
    text = files("reticent.accounting.studies.certificates").joinpath("cells.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document
