"""The pair of data sets that makes one PrivITP query lose most while (λ̃, t) looks as the rewards' law makes it look.

D and D'. Phase 1: λ* of D as under the reward law, λ* of D' moved by Δ, up or down. Phase 2: each round D's reward is
one of two numbers, drawn afresh with B(q) on average as under the law, and that of D' is moved by Δ in one direction
and clipped to [0, R]. Whoever computes the loss knows which reward was drawn; whoever sees (λ̃, t) does not, and cannot
tell D from the law. The rewards may depend on λ, as the charges of `reticent.accounting.charges` allow for.

Which two. The δ of many queries is decided by E e^{sL}, s the tilt at which the sum's mean is ε. The pair of largest
moment is sought: per λ over mixtures (a point of a concave envelope), then between λ* up and down. Every choice is a
valid pair; a better one could only lower the limit.

Only L = log dD/dD' under D is looked at. Under D' (λ̃, t) has another law, and an accountant may stop earlier there, so
log dD'/dD says nothing about how many queries are answered under the rewards' law.

Source: privacy.md, section 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import require_integer, require_positive
from reticent.accounting.planning.laws import RewardLaw
from reticent.accounting.planning.outcomes import acceptance_probabilities, normalizers
from reticent.accounting.planning.privacy_loss import PrivacyLoss, rounded_weights

__all__ = ["Atoms", "QueryLoss", "Round", "worst_query", "worst_round"]

Floats = NDArray[np.float64]
Spectrum = NDArray[np.complex128]
Atoms = tuple[Floats, Floats]
"""Losses (m,) in nats and their probabilities (m,)."""

_FINE_MOST = 1 << 17  # points of one query's loss
_FACTOR = 4
_Z_NODES, _Z_MOST = 513, 10.0
_REWARDS = 65
_ASCENT_STEPS = 4
_NODES_PER_NOISE, _LEAST_NODES, _MOST_NODES = 8.0, 65, 257
_GROUPS = 8
_COARSE = 128.0
_LOG_MOST = 500.0
_DRAWS, _LEAST_DRAWS = 65536, 64


@dataclass(frozen=True, eq=False)
class Round:
    """One round of phase 2 given λ: losses of a rejection and of an acceptance; probabilities sum to 1 together."""

    rejection: Atoms
    acceptance: Atoms


@dataclass(frozen=True, eq=False)
class QueryLoss:
    """Loss of one query, by groups of prompts (K) and nodes of λ (G).

    Attributes:
        candidates: n.
        threshold: (Z,) losses of phase 1.
        present: (K, Z, G) probability of group, loss of phase 1, and λ.
        rounds: K lists of G rounds.
        tilt: s ≥ 0, see `PrivacyLoss`.
    """

    candidates: int
    threshold: Floats
    present: Floats
    rounds: list[list[Round]]
    tilt: float

    @property
    def scale(self) -> float:
        """Rough size of one query's loss, nats."""
        weights = self.present.sum(axis=(0, 2))
        first = float(np.sqrt(weights @ self.threshold**2))
        return max(first, *(float(np.abs(one.acceptance[0]).max()) for group in self.rounds for one in group))

    @property
    def least_step(self) -> float:
        """The finest `step` of `loss`, nats."""
        low, high = self._extent()
        return (high - low) / (_FINE_MOST - 2 * self.candidates - 8)

    def loss(self, step: float) -> PrivacyLoss:
        """Its law on a grid of `step`, computed on a finer one: 1 rounding of `step` and n + 2 of the finer.

        The finer step is a quarter, or a half or the whole where that would take more than 2^17 points.
        """
        factor = _FACTOR
        while factor > 1 and self._points(require_positive("step", step) / factor)[1] > _FINE_MOST:
            factor //= 2
        fine, tilt = step / factor, self.tilt
        start, size = self._points(fine)
        length = fft.next_fast_len(size, real=True)
        spectrum = np.zeros(length // 2 + 1, dtype=np.complex128)
        for present, rounds in zip(self.present, self.rounds, strict=True):
            for weights, one in zip(present.T, rounds, strict=True):
                rejected, accepted = (_transform(a, fine, tilt, length) for a in (one.rejection, one.acceptance))
                powers, rest = _geometric(rejected, self.candidates)
                spectrum += _transform((self.threshold, weights), fine, tilt, length) * (accepted * powers + rest)
        masses = np.maximum(np.roll(fft.irfft(spectrum, length), -(start % length)), 0.0)
        return PrivacyLoss.from_tilted(fine, start, masses, tilt, (self.candidates + 2) * fine * fine).coarsened(factor)

    def _points(self, step: float) -> tuple[int, int]:
        """Least index that the loss may have on a grid of `step`, and number of indices."""
        low, high = self._extent()
        roundings = self.candidates + 2
        start = math.floor(low / step) - roundings
        return start, math.ceil(high / step) + roundings - start + 1

    def _extent(self) -> tuple[float, float]:
        """Least and largest loss, nats, or a little beyond."""
        every = [one for group in self.rounds for one in group]
        low, high = float(self.threshold.min()), float(self.threshold.max())
        for times, kind in (
            (self.candidates, [one.rejection[0] for one in every]),
            (1, [o.acceptance[0] for o in every]),
        ):
            losses = np.concatenate(kind)
            low, high = low + times * min(0.0, float(losses.min())), high + times * max(0.0, float(losses.max()))
        return low, high


def worst_query(mechanism: PrivITP, rewards: RewardLaw, tilt: float, seed: int = 0) -> QueryLoss:
    """The worst pair found.

    Args:
        mechanism, rewards: with the same R. A pool's prompts are sorted by mean reward and taken in at most eight
            groups, each with one mean acceptance probability.
        tilt: s > 0; a smaller one is used where e^{sL} could leave the range of floats.
        seed: of the simulated λ*.
    """
    grid, groups = _thresholds(mechanism), _groups(rewards)
    shift = mechanism.sensitivity / mechanism.threshold_noise
    z = np.linspace(-_Z_MOST, _Z_MOST, _Z_NODES)
    rng = np.random.default_rng(seed)
    present, means = [], []
    for group in groups:
        draws = max(_LEAST_DRAWS, _DRAWS // rewards.prompts)
        levels = np.concatenate([normalizers(mechanism, rewards, prompt, draws, rng) for prompt in group])
        present.append(_occupancy(levels, mechanism.threshold_noise * z, grid) * (len(group) / rewards.prompts))
        laws = [rewards.nodes(prompt) for prompt in group]
        accept = [mass @ acceptance_probabilities(mechanism, q, grid) for q, mass in laws]
        means.append(np.mean(np.stack(accept), axis=0))
    density = np.exp(-0.5 * z * z)
    joint = np.stack(present) * (density / density.sum())[:, None]
    tables = [_table(mechanism, float(threshold)) for threshold in grid]
    n, half = mechanism.candidates, 0.5 * shift * shift
    largest = _Z_MOST * shift + half + (n + 1) * max(float(np.abs(losses).max()) for _, losses in tables)
    s = min(require_positive("tilt", tilt), _LOG_MOST / largest)
    rounds = [[worst_round(*table, s, float(p), n) for table, p in zip(tables, mean, strict=True)] for mean in means]
    found = [QueryLoss(n, sign * shift * z + half, joint, rounds, s) for sign in (1.0, -1.0)]
    moments = [query.loss(max(query.scale / _COARSE, query.least_step)).log_moment for query in found]
    return found[int(np.argmax(moments))]


def worst_round(own: Floats, losses: Floats, s: float, mean: float, n: int) -> Round:
    """The mixture of two rewards, with B(q) = `mean` on average, of the largest E e^{sL} of phase 2 found.

    That moment is v(1 + u + … + u^(n-1)) + u^n, with u and v the rejections' and acceptances' parts of one round's
    moment. Both are linear in the mixture, so for a fixed gradient the best mixture is a point of a concave envelope
    over B(q); the gradient is then taken there, and so on. The moment is convex and has more than one local maximum:
    moves down only, up only, and either way are tried.

    Args:
        own: (2, Q) B(q) and 1 - B(q) for increasing rewards q.
        losses: (2, 2, Q) log of the ratio of those to what they are for the reward moved: by direction, then as `own`.
        s: the exponent, above 0.
        mean: acceptance probability between the least and the largest B(q).
        n: candidates.
    """
    gains = own * np.expm1(s * losses)
    p, powers = own[0], np.arange(require_integer("n", n, 1), dtype=np.float64)
    best, found = -math.inf, Round((np.zeros(1), np.ones(1)), (np.zeros(1), np.zeros(1)))
    for directions in ([0], [1], [0, 1]):
        gradient = np.ones(2)
        for _ in range(_ASCENT_STEPS):
            value = np.einsum("a,daq->dq", gradient, gains[directions])
            direction = np.array(directions)[value.argmax(axis=0)]
            pair, weight = _mixture(p, value.max(axis=0), mean)
            chosen, mass = losses[direction[pair], :, pair].T, weight * own[:, pair]
            v, u = (mass + weight * gains[direction[pair], :, pair].T).sum(axis=1)
            rounds = float((u**powers).sum())
            moment = float(v * rounds + u**n)
            if moment > best:
                best, found = moment, Round((chosen[1], mass[1]), (chosen[0], mass[0]))
            by_rejection = v * float((powers[1:] * u ** powers[:-1]).sum()) + n * u ** (n - 1)
            gradient = np.array([rounds, by_rejection]) / max(rounds, by_rejection)
    return found


def _mixture(x: Floats, y: Floats, mean: float) -> tuple[NDArray[np.int64], Floats]:
    """Indices and weights of two points whose chord is the concave envelope of (x, y) at `mean`; x not decreasing."""
    hull: list[int] = []
    for i in range(len(x)):
        if hull and x[i] <= x[hull[-1]]:
            continue
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) > (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    if len(hull) == 1:
        return np.array([hull[0], hull[0]]), np.array([1.0, 0.0])
    right = min(max(int(np.searchsorted(x[hull], mean)), 1), len(hull) - 1)
    left, upper = hull[right - 1], hull[right]
    share = min(max(float((mean - x[left]) / (x[upper] - x[left])), 0.0), 1.0)
    return np.array([left, upper]), np.array([1.0 - share, share])


def _table(mechanism: PrivITP, threshold: float) -> tuple[Floats, Floats]:
    """`own` and `losses` of `worst_round` at one λ."""
    law, R = mechanism.acceptance_law(threshold), mechanism.reward_max
    rewards = np.linspace(0.0, R, _REWARDS)

    def logs(values: Floats) -> Floats:
        return np.array([[law.log_accept(float(q)), law.log_reject(float(q))] for q in values]).T

    own = logs(rewards)
    moved = [logs(np.clip(rewards + sign * mechanism.sensitivity, 0.0, R)) for sign in (-1.0, 1.0)]
    return np.exp(own), own - np.stack(moved)


def _thresholds(mechanism: PrivITP) -> Floats:
    low, high = -mechanism.regularization, mechanism.reward_max - mechanism.regularization
    wanted = math.ceil(_NODES_PER_NOISE * mechanism.reward_max / mechanism.reward_noise)
    return np.clip(np.linspace(low, high, min(max(wanted, _LEAST_NODES), _MOST_NODES)), low, high)


def _groups(rewards: RewardLaw) -> list[list[int]]:
    """The prompts, sorted by mean reward, in at most eight groups."""
    means = [float(values @ mass) for values, mass in (rewards.nodes(prompt) for prompt in range(rewards.prompts))]
    return [[int(i) for i in group] for group in np.array_split(np.argsort(means), _GROUPS) if len(group)]


def _occupancy(levels: Floats, noise: Floats, grid: Floats) -> Floats:
    """(Z, G) weights of the nodes of clip(λ* + noise), linear between nodes, averaged over λ* in 512 bins."""
    bins = np.linspace(float(levels.min()), float(levels.max()) + 1e-12, 513)
    counts, _ = np.histogram(levels, bins)
    sums, _ = np.histogram(levels, bins, weights=levels)
    centres, mass = sums[counts > 0] / counts[counts > 0], counts[counts > 0] / len(levels)
    width = float(grid[1] - grid[0])
    place = np.clip((noise[:, None] + centres - grid[0]) / width, 0.0, len(grid) - 1.0)
    below = np.minimum(place.astype(np.int64), len(grid) - 2)
    rows = np.arange(len(noise))[:, None] * len(grid)
    size, share = len(noise) * len(grid), place - below
    weights: Floats = np.bincount((rows + below).ravel(), (mass * (1.0 - share)).ravel(), size).astype(np.float64)
    weights += np.bincount((rows + below + 1).ravel(), (mass * share).ravel(), size)
    return weights.reshape(len(noise), len(grid))


def _transform(atoms: Atoms, step: float, tilt: float, length: int) -> Spectrum:
    """Spectrum of the rounded, tilted masses, modulo `length` points."""
    losses, probabilities = atoms
    below, share = rounded_weights(losses, step)
    masses = np.bincount(below % length, probabilities * (1.0 - share) * np.exp(tilt * step * below), length)
    masses += np.bincount((below + 1) % length, probabilities * share * np.exp(tilt * step * (below + 1)), length)
    spectrum: Spectrum = fft.rfft(masses)
    return spectrum


def _geometric(x: Spectrum, n: int) -> tuple[Spectrum, Spectrum]:
    """1 + x + … + x^(n-1), and x^n, by doubling: no division by a small 1 - x."""
    if n == 1:
        return np.ones_like(x), x
    half, power = _geometric(x, n // 2)
    total, power = half * (1.0 + power), power * power
    return (total + power, power * x) if n % 2 else (total, power)
