"""A differentially private head: output perturbation on a lattice, with integer noise that is drawn exactly.

| symbol | API name | meaning |
|---|---|---|
| M | `movement_rounded_up` | 2Gk/(μN) + 2τ/μ, most that one person moves the minimiser, in L2 |
| d | `dimension` | number of weights |
| g | `granule` | step of the lattice of released weights, a power of two |
| ς | `scale_units` | scale of the noise, in granules: σ of the discrete Gaussian, b of the discrete Laplace |
| α | `order` | order at which the Gaussian head's own (ε, δ) is stated |

**Mechanism.** Train w to ‖∇F(w)‖ ≤ τ/4, round w/g to integers, add an independent integer to each, release g times the
sum. g is a power of two with g√d ≤ τ/(2μ).

**Claim.** Replacing one person's pairs moves the vector of integers by at most M/g in L2. So the release has
* Gaussian: order-α Rényi divergence at most α(M/g)²/(2ς²), at every α > 1; it is (ε, δ)-DP with
  ε = α(M/g)²/(2ς²) + u(α, δ), u of `reticent.accounting.filter`;
* Laplace: pure ε-DP with ε = √d (M/g)/ς.

**Proof.** The exact minimisers are at most 2Gk/(μN) apart (`sensitivity.py`), each computed w lies within τ/(4μ) of its
own, and rounding moves each by at most g√d/2: together at most 2Gk/(μN) + τ/(2μ) + g√d ≤ M. The discrete Gaussian's
divergence under an integer shift is at most the Gaussian's (Canonne, Kamath & Steinke 2020), and divergences of
independent coordinates add. The L1 norm is at most √d times the L2 norm. ∎

Everything computed from the release and not from D again - rewards, selections, their number - is post-processing and
costs nothing. What is protected is all of one person's pairs, at most k, under replacement, N public. Not private: the
data's hash (so a private head carries none), accuracies measured on D, and the choice of μ, s, G by them.

Why output and not objective perturbation: the latter's proof needs the exact minimiser of a randomly tilted objective
and noise with a density; with a computed minimiser and floating-point noise it says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from opendp.domains import atom_domain
from opendp.measurements import make_laplace
from opendp.metrics import absolute_distance
from opendp.mod import OpenDPException, enable_features
from scipy.optimize import minimize_scalar

from reticent.accounting.charges.gaussian import renyi_charge_rounded_up
from reticent.accounting.errors import AccountingError, NoiseError
from reticent.accounting.filter import overhead_dp
from reticent.accounting.noise import discrete_gaussian
from reticent.accounting.units import float_rounded_up, to_nano_rounded_up

from .errors import HeadInvalid, TrainingFailed
from .sensitivity import HeadFacts, movement_rounded_up

__all__ = ["NoiseName", "PrivateTraining", "calibrated", "noise_deviation", "released_weights"]

NoiseName = Literal["gaussian", "laplace"]

enable_features("contrib")

_MARGIN = 1e-9
_LARGEST_SCALE = float(1 << 50)
_LARGEST_INTEGER = 1 << 53


@dataclass(frozen=True)
class PrivateTraining:
    """The privacy claim of a released head: mechanism and parameters.

    Attributes:
        noise: "gaussian" or "laplace", both discrete.
        epsilon: ε > 0, nats.
        delta: δ of the Gaussian, in (0, 1); 0 for Laplace.
        order: α > 1 of the Gaussian; None for Laplace.
        granule: g.
        scale_units: ς.

    What it is worth depends on the head's facts: `require_covers` checks it against them, and a head does that whenever
    one is made or read.

    Raises:
        HeadInvalid: a parameter out of range.
    """

    noise: NoiseName
    epsilon: float
    delta: float
    order: float | None
    granule: float
    scale_units: float

    def __post_init__(self) -> None:
        if self.noise not in ("gaussian", "laplace"):
            raise HeadInvalid(f"noise is neither gaussian nor laplace: {self.noise!r}")
        numbers: dict[str, object] = {name: getattr(self, name) for name in ("epsilon", "granule", "scale_units")}
        for name, value in numbers.items():
            if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
                raise HeadInvalid(f"{name} of a private head must be positive and finite: {value!r}")
        if math.frexp(self.granule)[0] != 0.5:
            raise HeadInvalid(f"the granule must be a power of two: {self.granule!r}")
        if self.noise == "laplace":
            if self.delta != 0 or self.order is not None:
                raise HeadInvalid("Laplace noise has neither δ nor an order")
        elif type(self.order) not in (int, float) or type(self.delta) is not float:
            raise HeadInvalid("Gaussian noise has a δ and an order, numbers both")
        elif not (math.isfinite(float(self.order or 0)) and float(self.order or 0) > 1 and 0 < self.delta < 1):
            raise HeadInvalid(f"order must be above 1 and δ inside (0, 1): {self.order!r}, {self.delta!r}")

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on one weight, about: gς, times √2 for Laplace."""
        return self.granule * self.scale_units * (math.sqrt(2) if self.noise == "laplace" else 1.0)

    def charge(self, facts: HeadFacts, order: float) -> int:
        """What training costs a ledger of order `order`, once, rounded up to an integer of 1e-9 nat.

        Gaussian: α(M/g)²/(2ς²); Laplace: ε. After it, using the head costs nothing.
        """
        if self.noise == "laplace":
            return to_nano_rounded_up(self.epsilon)
        return renyi_charge_rounded_up(order, _units_rounded_up(facts, self.granule), self.scale_units)

    def require_covers(self, facts: HeadFacts, dimension: int) -> None:
        """Check the claim with the head's own numbers.

        Raises:
            HeadInvalid: the lattice is too coarse, or the noise too small for the stated (ε, δ).
        """
        if Fraction(self.granule) ** 2 * dimension > (_lattice_share(facts)) ** 2:
            raise HeadInvalid(f"the granule {self.granule:g} is too coarse for {dimension} weights")
        M = Fraction(movement_rounded_up(facts)) / Fraction(self.granule)
        if self.noise == "laplace":
            # ε ≥ √d (M/g)/b, squared, in exact arithmetic.
            if dimension * M**2 > (Fraction(self.epsilon) * Fraction(self.scale_units)) ** 2:
                raise HeadInvalid(f"Laplace noise of scale {self.scale_units:g} does not give ε = {self.epsilon:g}")
            return
        order = float(self.order or 0)
        spent = self.charge(facts, order) * 1e-9 + overhead_dp(order, self.delta)
        if not spent <= self.epsilon:
            raise HeadInvalid(
                f"Gaussian noise of scale {self.scale_units:g} gives ε = {spent:.6g} at δ = {self.delta:g}, "
                f"not {self.epsilon:g}"
            )


def calibrated(facts: HeadFacts, dimension: int, noise: NoiseName, epsilon: float, delta: float) -> PrivateTraining:
    """The least noise of this kind, up to a relative 1e-6, that gives (ε, δ) for a head with these facts.

    Args:
        facts: N, k, μ, G, τ; all declared or public.
        dimension: d.
        delta: δ in (0, 1); not read for Laplace.

    Raises:
        TrainingFailed: ε or δ out of range, or noise larger than the lattice holds.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise TrainingFailed(f"ε must be positive and finite: {epsilon}")
    granule = _granule(facts, dimension)
    units = _units_rounded_up(facts, granule)
    if noise == "laplace":
        scale = float_rounded_up(Fraction(units) * (math.isqrt(dimension * 10**24) + 1) / 10**12 / Fraction(epsilon))
        made = PrivateTraining("laplace", epsilon, 0.0, None, granule, scale)
    else:
        if not 0 < delta < 1:
            raise TrainingFailed(f"δ must lie in (0, 1): {delta}")
        order, rho = _best_order(epsilon, delta)
        scale = units / math.sqrt(2 * rho) * (1 + _MARGIN)
        made = PrivateTraining("gaussian", epsilon, float(delta), order, granule, scale)
    if made.scale_units > _LARGEST_SCALE:
        raise TrainingFailed(f"ε = {epsilon:g} needs noise of {made.scale_units:.3g} granules, more than can be drawn")
    made.require_covers(facts, dimension)
    return made


def noise_deviation(facts: HeadFacts, dimension: int, noise: NoiseName, epsilon: float, delta: float) -> float:
    """Standard deviation of the noise on one weight that `calibrated` would choose, in units of weights."""
    return calibrated(facts, dimension, noise, epsilon, delta).noise_deviation


def released_weights(weights: NDArray[np.float64], private: PrivateTraining) -> tuple[float, ...]:
    """g·(round(w/g) + noise), one fresh draw: the release itself. Call it once for each head that is paid for.

    What the caller must guarantee
    ------------------------------
    w was trained to ‖∇F(w)‖ ≤ τ/4, and `private` covers the head's facts (`PrivateTraining.require_covers`).

    Raises:
        TrainingFailed: a sum of 2^53 granules or more, which a float does not hold exactly.
    """
    released = []
    for weight in weights:
        # Division by a power of two is exact, and so is rounding to an integer.
        total = round(float(weight) / private.granule) + _noise(private)
        if abs(total) >= _LARGEST_INTEGER:
            raise TrainingFailed("a released weight has more granules than a float holds exactly")
        released.append(total * private.granule)
    return tuple(released)


def _noise(private: PrivateTraining) -> int:
    if private.noise == "gaussian":
        return discrete_gaussian(private.scale_units)
    try:
        return int(_laplace(private.scale_units)(0))
    except OpenDPException:
        raise NoiseError(f"the discrete Laplace failed at scale {private.scale_units:g}") from None


@lru_cache(maxsize=8)
def _laplace(scale: float) -> Any:
    return make_laplace(atom_domain(T="i64"), absolute_distance(T="i64"), scale=scale)


def _lattice_share(facts: HeadFacts) -> Fraction:
    """τ/(2μ): what rounding to the lattice may move two weight vectors apart."""
    return Fraction(facts.gradient_tolerance) / (2 * Fraction(facts.regularization))


def _granule(facts: HeadFacts, dimension: int) -> float:
    """The largest power of two g with g√d ≤ τ/(2μ)."""
    share = _lattice_share(facts)
    g = math.ldexp(1.0, math.ceil(math.log2(float(share))))
    while Fraction(g) ** 2 * dimension > share**2:
        g /= 2
    if g < 2.0**-1000:
        raise TrainingFailed(f"gradient_tolerance {facts.gradient_tolerance} leaves no lattice")
    return g


def _units_rounded_up(facts: HeadFacts, granule: float) -> float:
    return float_rounded_up(Fraction(movement_rounded_up(facts)) / Fraction(granule))


def _best_order(epsilon: float, delta: float) -> tuple[float, float]:
    """(α, ρ): the order that leaves the largest ρ with αρ + u(α, δ) ≤ ε, by a search; any order found is sound."""

    def rho(log_excess: float) -> float:
        alpha = 1 + math.exp(log_excess)
        # 2e-9 nat: a charge is rounded up to 1e-9, and compared with a sum that is rounded too.
        return (epsilon * (1 - _MARGIN) - overhead_dp(alpha, delta) - 2e-9) / alpha

    try:
        grid = np.linspace(-6.0, 14.0, 401)
        start = float(grid[int(np.argmax([rho(float(x)) for x in grid]))])
        found = minimize_scalar(lambda x: -rho(float(x)), bounds=(start - 0.1, start + 0.1), method="bounded")
        best = max(start, float(found.x), key=rho)
    except AccountingError as error:
        raise TrainingFailed(str(error)) from None
    if rho(best) <= 0:
        raise TrainingFailed(f"ε = {epsilon:g} is too small for δ = {delta:g}: no order leaves anything to spend")
    return 1 + math.exp(best), rho(best) * (1 - _MARGIN)
