"""PrivBoN on a pool: the argmax of reward + noise among n candidates, by one-dimensional integrals.

With F_j(s) and f_j(s) the distribution function and density of answer j's noisy reward, answer i is chosen with
probability ∫ f_i(s) · E Π F_j(s) ds, the product over the other candidates. The mean over the candidates is
* with replacement: n/N · ∫ f_i F̄^{n-1}, F̄ the mean of all F_j;
* for n distinct answers: ∫ f_i e_{n-1}(F without F_i)/C(N, n), e_k the elementary symmetric polynomial. It is the
  derivative of e_n towards f_i, which a recursion over the answers gives for all n at once; it adds positive numbers.
The integral is a trapezoidal sum, whose error falls exponentially with the step for such integrands: below 1e-6.

Source: "Privacy Without Regret", Algorithm 1 (Gumbel) and Appendix E (Gaussian); the formulas are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb, gammaln, ndtr

from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.planning.laws import Floats
from reticent.accounting.studies.pools.groups import COLUMNS, Groups

__all__ = ["MOST_ANSWERS_EXACT", "bootstrap_best", "distinct_best", "require_noise", "sampled_best"]

MOST_ANSWERS_EXACT = 512
"""More distinct answers than that are sampled: e_k would overflow, and the recursion take long."""

_LEAST_NOISE = 1e-3
_GUMBEL_STEP, _GAUSSIAN_STEP = 0.6, 0.4
_TAIL = 8.5


def require_noise(noise_scale: float, reward_max: float) -> float:
    """`noise_scale` if it is at least R/1000, below which the integrals have too many nodes."""
    if not noise_scale >= _LEAST_NOISE * reward_max:
        raise InvalidQuantityError("noise_scale", noise_scale, f"at least {_LEAST_NOISE * reward_max:g}; 0 is bon")
    return noise_scale


def _noise(values: Floats, noise_scale: float, most: int, gaussian: bool) -> tuple[Floats, Floats]:
    """(F, f·ds): (S, K) distribution functions at the nodes, and densities times the quadrature's weights."""
    low, high = values[0] / noise_scale, values[-1] / noise_scale
    if gaussian:
        step = _GAUSSIAN_STEP
        nodes = np.arange(low - _TAIL, high + _TAIL + step, step)
        x = nodes[:, None] - values / noise_scale
        return ndtr(x), np.exp(-0.5 * x * x) * (step / math.sqrt(2.0 * math.pi))
    step = _GUMBEL_STEP
    nodes = np.arange(low - 3.8, high + math.log(most) + _TAIL + step, step)
    x = nodes[:, None] - values / noise_scale
    fall = np.exp(-x)
    law = np.exp(-fall)
    weighted = law * fall * step
    # The upper tail is exponential: the nodes beyond the last one sum to a geometric series.
    weighted[-1] /= -math.expm1(-step)
    return law, weighted


def bootstrap_best(groups: Groups, candidates: Sequence[int], noise_scale: float, *, gaussian: bool = False) -> Floats:
    """(n's, 4) expected columns of the answer chosen among n draws with replacement, for each n of `candidates`."""
    law, density = _noise(groups.values, noise_scale, max(candidates), gaussian)
    mean_law = law @ groups.mass
    weighted = density @ (groups.mass[:, None] * groups.means)
    found: Floats = np.stack([n * (mean_law ** (n - 1) @ weighted) for n in candidates])
    return found


def distinct_best(groups: Groups, candidates: Sequence[int], noise_scale: float, *, gaussian: bool = False) -> Floats:
    """The same among n distinct answers; every n at most N ≤ `MOST_ANSWERS_EXACT`."""
    size, most = groups.size, max(candidates)
    if most > size or size > MOST_ANSWERS_EXACT:
        raise InvalidQuantityError("candidates", most, f"at most the answers of a prompt ({size}), of at most 512")
    law, density = _noise(groups.values, noise_scale, most, gaussian)
    nodes = len(law)
    # Row k: e_k of the answers so far, then its derivative towards f times each column.
    rows = np.zeros((most + 1, 1 + COLUMNS, nodes))
    spare, towards = np.empty_like(rows), np.empty((most + 1, COLUMNS, nodes))
    # The order is free, and the first group's part is known: C(c, k) F^k, and its derivative.
    first, *rest = np.argsort(-groups.counts, kind="stable").tolist()
    done = int(groups.counts[first])
    top = min(done, most)
    size_of_set = np.arange(top + 1)[:, None]
    ways, powers = comb(done, size_of_set), law[:, first] ** size_of_set
    rows[: top + 1, 0] = ways * powers
    slope = groups.means[first][:, None] * density[:, first]
    rows[1 : top + 1, 1:] = (size_of_set[1:] * ways[1:] * powers[:-1])[:, None] * slope
    for k in rest:
        count = int(groups.counts[k])
        accept, slope = np.ascontiguousarray(law[:, k]), groups.means[k][:, None] * density[:, k]
        for _ in range(count):
            top = min(done + 1, most)
            np.multiply(rows[:top, :1], slope, out=towards[:top])
            np.multiply(rows[:top], accept, out=spare[:top])
            rows[1 : top + 1] += spare[:top]
            rows[1 : top + 1, 1:] += towards[:top]
            done += 1
    found = np.empty((len(candidates), COLUMNS))
    for place, n in enumerate(candidates):
        log_sets = gammaln(size + 1.0) - gammaln(n + 1.0) - gammaln(size - n + 1.0)
        found[place] = rows[n, 1:].sum(axis=-1) * math.exp(-log_sets)
    return found


def sampled_best(
    groups: Groups, members: NDArray[np.int32], noise_scale: float, rng: np.random.Generator, *, gaussian: bool = False
) -> Floats:
    """(batches, 4) the same over given sets of candidates, `members` (batches, m, n): exact given the set with Gumbel
    noise (softmax of reward/σ); Gaussian noise is drawn."""
    rewards = groups.values[members] / noise_scale
    if gaussian:
        chosen = (rewards + rng.standard_normal(rewards.shape)).argmax(axis=-1)
        picked = np.take_along_axis(members, chosen[..., None], axis=-1)[..., 0]
        drawn: Floats = groups.means[picked].mean(axis=1)
        return drawn
    weights = np.exp(rewards - rewards.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    means = [(weights * groups.means[:, column][members]).sum(axis=-1).mean(axis=1) for column in range(COLUMNS)]
    return np.stack(means, axis=-1)
