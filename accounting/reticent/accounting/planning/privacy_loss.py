"""Privacy-loss distributions on a grid, and the exact (ε, δ) of many independent copies.

A distribution is that of L = log dP/dQ under P. It lives on offset + step·ℤ and is stored tilted: the masses are
proportional to P(L = x) e^{s x}, so that what decides δ lies in the middle of the numbers and not in their tail.

Rounding. A loss between two grid points is moved to one of them at random so that both P and Q keep their mass. Two
things follow, and they make every answer of `trade_off` a bracket:
* the rounded pair dominates the true one (merging the two halves again gives the true one back), so δ is not below;
* one rounding moves L by a number of range h and mean between 0 and h² e^h/8. By Hoeffding's lemma k roundings lower
  the sum by more than τ = sqrt(C log(1/η)/2), or raise it by more than τ + e^h C/8, with probability η at most, C the
  sum of the squared steps; so the true δ(ε) is at least δ of the rounded pair at ε + τ + e^h C/8, less η.
Sources: privacy.md, section 5; the rounding is that of "connect the dots" (Doroshenko et al., 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from reticent.accounting.errors import (
    InvalidQuantityError,
    require_finite,
    require_integer,
    require_non_negative,
    require_positive,
)
from reticent.accounting.filter import Guarantee

__all__ = ["DeltaBracket", "PrivacyLoss", "rounded_weights"]

Floats = NDArray[np.float64]

_WINDOW = 9.0  # half of the window of a sum, in its standard deviations
_ETA_SHARE = 1e-3  # η as a share of the δ asked about
_LOST = 1e-30
_POINTS_MOST = 1 << 26


@dataclass(frozen=True)
class DeltaBracket:
    """`low` ≤ δ ≤ `high` for the losses as given; floating error of the transform included."""

    low: float
    high: float


def rounded_weights(losses: Floats, step: float) -> tuple[NDArray[np.int64], Floats]:
    """For each loss the index of the grid point of step·ℤ below, and the probability of moving to the one above.

    w = (1 - e^{-u})/(1 - e^{-h}), u the distance from below: E e^{-L} does not change, so Q keeps its mass.
    """
    below = np.floor(losses / step)
    share = np.clip(np.expm1(-(losses - below * step)) / math.expm1(-step), 0.0, 1.0)
    return below.astype(np.int64), share


@dataclass(frozen=True, eq=False)
class PrivacyLoss:
    """Law of one privacy loss L.

    Attributes:
        step: h > 0, nats.
        offset: real number, nats: losses are offset + h·(start + i).
        start: integer of the first mass.
        masses: (m,) P(L = x) e^{s x} / M, summing to 1, M = E e^{s L} of the rounded losses.
        tilt: s ≥ 0.
        log_moment: log M.
        squared_steps: C, the sum of h² over all roundings that one copy has seen; 0 if the losses are exact.
    """

    step: float
    offset: float
    start: int
    masses: Floats
    tilt: float
    log_moment: float
    squared_steps: float

    @staticmethod
    def from_tilted(
        step: float, start: int, masses: Floats, tilt: float, squared_steps: float, offset: float = 0.0
    ) -> PrivacyLoss:
        """From masses P(L = x) e^{s x}, not normalised. Errors: `InvalidQuantityError`."""
        require_positive("step", step)
        total = float(masses.sum())
        if not (math.isfinite(total) and total > 0.0 and float(masses.min()) >= 0.0):
            raise InvalidQuantityError("masses", total, "at least 0, with a positive finite sum")
        return PrivacyLoss(step, offset, start, masses / total, tilt, math.log(total), squared_steps)

    @staticmethod
    def from_atoms(losses: Floats, probabilities: Floats, step: float, tilt: float = 0.0) -> PrivacyLoss:
        """Losses with their probabilities under P, rounded to step·ℤ.

        Args:
            losses: (m,) finite, nats.
            probabilities: (m,) at least 0; those of a law sum to 1.
            step: h > 0; the losses' range is at most 2^26 steps.
            tilt: s ≥ 0. Any is right; near the order α - 1 of the (ε, δ) asked about is accurate.
        """
        require_non_negative("tilt", tilt)
        if not (len(losses) and np.all(np.isfinite(losses))):
            raise InvalidQuantityError("losses", "a loss that is not finite, or none", "finite, at least one")
        below, share = rounded_weights(losses, require_positive("step", step))
        start, size = int(below.min()), int(below.max() - below.min()) + 2
        if size > _POINTS_MOST:
            raise InvalidQuantityError("step", step, f"large enough for at most {_POINTS_MOST} grid points")
        grid = step * (start + np.arange(size))
        masses = np.bincount(below - start, probabilities * (1.0 - share), size)
        masses += np.bincount(below - start + 1, probabilities * share, size)
        return PrivacyLoss.from_tilted(step, start, masses * np.exp(tilt * grid), tilt, step * step)

    @staticmethod
    def two_atoms(high: float, spread: float, probability: float, tilt: float = 0.0) -> PrivacyLoss:
        """L = `high` with `probability`, else `high` - `spread` (> 0). Exact: the grid is made to fit."""
        p = float(probability)
        if not 0.0 < p < 1.0:
            raise InvalidQuantityError("probability", probability, "between 0 and 1, both excluded")
        offset = require_finite("high", high) - require_positive("spread", spread)
        masses = np.array([(1.0 - p) * math.exp(tilt * offset), p * math.exp(tilt * high)])
        return PrivacyLoss.from_tilted(spread, 0, masses, tilt, 0.0, offset)

    @property
    def losses(self) -> Floats:
        """(m,) the grid points, nats."""
        index = np.arange(self.start, self.start + len(self.masses), dtype=np.float64)
        return self.offset + self.step * index

    def mean(self, tilt: float | None = None) -> float:
        """E of L under the law tilted by `tilt` (its own if None; 0 gives E under P), nats."""
        weights, losses = self._tilted_to(self.tilt if tilt is None else tilt), self.losses
        return float(weights @ losses)

    def variance(self, tilt: float | None = None) -> float:
        """Variance of L under the law tilted by `tilt`, nats²."""
        weights, losses = self._tilted_to(self.tilt if tilt is None else tilt), self.losses
        centred = losses - float(weights @ losses)
        return float(weights @ (centred * centred))

    def _tilted_to(self, tilt: float) -> Floats:
        if tilt == self.tilt:
            return self.masses
        with np.errstate(divide="ignore"):
            logs = np.log(self.masses) + (tilt - self.tilt) * self.losses
        weights: Floats = np.exp(logs - logs.max())
        total = float(weights.sum())
        return np.asarray(weights / total, dtype=np.float64)

    def coarsened(self, factor: int) -> PrivacyLoss:
        """The same law, rounded once more, on a grid of `factor` times the step. The offset must be 0."""
        require_integer("factor", factor, 1)
        if self.offset != 0.0:
            raise InvalidQuantityError("offset", self.offset, "0 where the grid is made coarser")
        step = factor * self.step
        index = self.start + np.arange(len(self.masses))
        below = index // factor
        up = (index - below * factor) * self.step
        share = np.expm1(-up) / math.expm1(-step)
        start, size = int(below[0]), int(below[-1] - below[0]) + 2
        masses: Floats = np.zeros(size)
        masses += np.bincount(below - start, self.masses * (1.0 - share) * np.exp(-self.tilt * up), size)
        masses += np.bincount(below - start + 1, self.masses * share * np.exp(self.tilt * (step - up)), size)
        made = PrivacyLoss.from_tilted(step, start, masses, self.tilt, self.squared_steps + step * step)
        return replace(made, log_moment=made.log_moment + self.log_moment)

    def composed(self, other: PrivacyLoss) -> PrivacyLoss:
        """Law of the sum of two independent losses with equal step and tilt."""
        if (self.step, self.tilt) != (other.step, other.tilt):
            raise InvalidQuantityError("other", (other.step, other.tilt), f"of {(self.step, self.tilt)}: step, tilt")
        size = len(self.masses) + len(other.masses) - 1
        length = fft.next_fast_len(size, real=True)
        product = fft.rfft(self.masses, length) * fft.rfft(other.masses, length)
        masses = np.maximum(fft.irfft(product, length)[:size], 0.0)
        made = PrivacyLoss.from_tilted(
            self.step,
            self.start + other.start,
            masses,
            self.tilt,
            self.squared_steps + other.squared_steps,
            self.offset + other.offset,
        )
        return replace(made, log_moment=self.log_moment + other.log_moment)

    def trade_off(self, epsilon: float, copies: int, guarantee: Guarantee = "dp", *, at: float = 1e-2) -> DeltaBracket:
        """δ of `copies` independent losses at ε: E (1 - e^{ε - ΣL})_+ for "dp", P(ΣL > ε) for "probabilistic".

        Args:
            epsilon: ε ≥ 0, nats.
            copies: k ≥ 1.
            guarantee: which δ.
            at: the δ that the caller compares with; the bracket spends a thousandth of it on η.

        The sum is computed modulo a window of 18 standard deviations around its tilted mean. What falls outside is
        bounded by Chernoff's inequality and widens the bracket, and so does an allowance for floating error.
        """
        require_non_negative("epsilon", epsilon)
        grid, masses, outside = self._sum(require_integer("copies", copies, 1))
        logarithm = copies * self.log_moment - self.tilt * epsilon  # of the Chernoff bound e^{-sε} M^k
        chernoff = math.exp(min(logarithm, 700.0))
        noise = chernoff * (outside + 8e-15 * (copies + 1000.0))
        roundings = copies * self.squared_steps
        eta = _ETA_SHARE * require_positive("at", at) if roundings else 0.0
        fall = math.sqrt(0.5 * roundings * math.log(1.0 / eta)) if roundings else 0.0
        rise = fall + math.exp(self.step) * roundings / 8.0

        def beyond(threshold: float) -> float:
            x = grid[grid > threshold]
            tail = masses[grid > threshold] * np.exp(-self.tilt * (x - epsilon))
            if guarantee == "dp":
                tail = tail * -np.expm1(threshold - x)
            return chernoff * float(tail.sum())

        low = max(0.0, beyond(epsilon + rise) - eta - noise)
        if guarantee == "dp":
            return DeltaBracket(low, min(1.0, beyond(epsilon) + noise))
        if guarantee == "probabilistic":
            return DeltaBracket(low, min(1.0, beyond(epsilon - fall) + eta + noise))
        raise InvalidQuantityError("guarantee", guarantee, '"dp" or "probabilistic"')

    def _sum(self, copies: int) -> tuple[Floats, Floats, float]:
        """Grid, tilted masses of the sum in its window, and a bound of the tilted mass outside the window."""
        mean, deviation = copies * self.mean(), math.sqrt(copies * max(self.variance(), 0.0))
        half = _WINDOW * deviation + 8.0 * self.step
        most = (len(self.masses) - 1) * copies + 1  # beyond that there is nothing
        size = max(min(2 * math.ceil(half / self.step) + 1, most), len(self.masses))
        length = fft.next_fast_len(size, real=True)
        if length > _POINTS_MOST:
            raise InvalidQuantityError("step", self.step, f"large enough for at most {_POINTS_MOST} grid points")
        masses = fft.irfft(fft.rfft(self.masses, length) ** copies, length)
        origin = copies * self.start
        whole = length >= most
        first = origin if whole else round((mean - copies * self.offset) / self.step) - length // 2
        masses = np.maximum(np.roll(masses, -((first - origin) % length)), 0.0)
        grid = copies * self.offset + self.step * (first + np.arange(length))
        outside = 0.0 if whole else self._outside(copies, float(grid[0]), float(grid[-1]), deviation)
        return grid, masses, outside

    def _outside(self, copies: int, low: float, high: float, deviation: float) -> float:
        """Chernoff bound of the tilted probability that the sum leaves [low, high]."""
        mean, bound = copies * self.mean(), 0.0
        with np.errstate(divide="ignore"):
            logs, losses = np.log(self.masses), self.losses
        for edge in (low, high):
            theta = (edge - mean) / (deviation * deviation)
            exponents = logs + theta * losses
            top = float(exponents.max())
            moment = top + math.log(float(np.exp(exponents - top).sum()))
            bound += math.exp(min(copies * moment - theta * edge, 0.0))
        return bound + _LOST
