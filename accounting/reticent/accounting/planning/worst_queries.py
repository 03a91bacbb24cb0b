"""The pair of data sets that makes one PrivITP query lose most while (λ, t) looks as the rewards' law makes it look.

D and D'. Phase 1: λ* of D as under the reward law, λ* of D' moved by Δ (`planning.worst_thresholds`). Phase 2: each
round D's reward is one of two numbers, drawn afresh with B(q) on average as under the law, and that of D' is moved by Δ
in one direction and clipped to [0, R]. Whoever computes the loss knows λ* and which reward was drawn; whoever sees
(λ, t), or (λ̃, t), does not, and cannot tell D from the law. Phase 2's rewards may depend on λ and have nothing to do
with phase 1's, as the charges of `reticent.accounting.charges` allow for.

Which of the pairs. The δ of many queries is decided by E e^{sL}, s the tilt at which the sum's mean is ε. The pair of
largest moment is sought: per λ over mixtures (a point of a concave envelope), then between λ* up and down. Every choice
is a valid pair (unclamped: as far as λ* has room to move); a better one could only lower the limit.

Only L = log dD/dD' under D is looked at. Under D' (λ, t) has another law, and an accountant may stop earlier there, so
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
from reticent.accounting.planning.laws import Floats, RewardLaw
from reticent.accounting.planning.outcomes import acceptance_probabilities, even_thresholds, normalizers
from reticent.accounting.planning.privacy_loss import PrivacyLoss, rounded_weights
from reticent.accounting.planning.worst_thresholds import FARTHEST, Atoms, binned, clamped_losses, unclamped_losses

__all__ = ["Atoms", "QueryLoss", "Round", "worst_query", "worst_round"]

Spectrum = NDArray[np.complex128]

_FINE_MOST = 1 << 17  # points of one query's loss
_FACTOR = 4
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

    def moment(self, s: float, n: int) -> float:
        """E e^{sL} of phase 2 with n such rounds."""
        u, v = (float(mass @ np.exp(s * losses)) for losses, mass in (self.rejection, self.acceptance))
        return v * float((u ** np.arange(n, dtype=np.float64)).sum()) + float(u**n)


@dataclass(frozen=True, eq=False)
class QueryLoss:
    """Loss of one query, by groups of prompts (K) and nodes of λ (G).

    Attributes:
        candidates: n.
        thresholds: K lists of G atoms: losses of phase 1 with the probability of group, loss and λ.
        rounds: K lists of G rounds.
        tilt: s ≥ 0, see `PrivacyLoss`.
    """

    candidates: int
    thresholds: list[list[Atoms]]
    rounds: list[list[Round]]
    tilt: float

    @property
    def scale(self) -> float:
        """Rough size of one query's loss, nats."""
        first = math.sqrt(math.fsum(float(mass @ losses**2) for group in self.thresholds for losses, mass in group))
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
        for thresholds, rounds in zip(self.thresholds, self.rounds, strict=True):
            for first, one in zip(thresholds, rounds, strict=True):
                rejected, accepted = (_transform(a, fine, tilt, length) for a in (one.rejection, one.acceptance))
                powers, rest = _geometric(rejected, self.candidates)
                spectrum += _transform(first, fine, tilt, length) * (accepted * powers + rest)
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
        first = [losses for group in self.thresholds for losses, _ in group if len(losses)]
        low, high = min(float(x.min()) for x in first), max(float(x.max()) for x in first)
        for times, kind in (
            (self.candidates, [one.rejection[0] for one in every]),
            (1, [o.acceptance[0] for o in every]),
        ):
            losses = np.concatenate(kind)
            low, high = low + times * min(0.0, float(losses.min())), high + times * max(0.0, float(losses.max()))
        return low, high


def worst_query(
    mechanism: PrivITP, rewards: RewardLaw, tilt: float, seed: int = 0, *, clamped: bool = True
) -> QueryLoss:
    """The worst pair found.

    Args:
        mechanism, rewards: with the same R. A pool's prompts are sorted by mean reward and taken in at most eight
            groups, each with one mean acceptance probability.
        tilt: s > 0; a smaller one is used where e^{sL} could leave the range of floats.
        seed: of the simulated λ*.
        clamped: whether λ is seen clamped only, or λ̃.
    """
    grid, groups = _thresholds(mechanism), _groups(rewards)
    rng = np.random.default_rng(seed)
    present, means = [], []
    for group in groups:
        draws = max(_LEAST_DRAWS, _DRAWS // rewards.prompts)
        levels = [normalizers(mechanism, rewards, prompt, draws, rng) for prompt in group]
        centres, mass = binned(np.concatenate(levels))
        present.append((centres, mass * (len(group) / rewards.prompts)))
        laws = [rewards.nodes(prompt) for prompt in group]
        accept = [mass @ acceptance_probabilities(mechanism, q, grid) for q, mass in laws]
        means.append(np.mean(np.stack(accept), axis=0))
    tables = [_table(mechanism, float(threshold)) for threshold in grid]
    n, s = mechanism.candidates, _safe(mechanism, require_positive("tilt", tilt), tables)
    rounds = [[worst_round(*table, s, float(p), n) for table, p in zip(tables, mean, strict=True)] for mean in means]
    if clamped:
        worth = [np.array([one.moment(s, n) for one in group]) for group in rounds]
        released = [clamped_losses(mechanism, a, grid, w, s) for a, w in zip(present, worth, strict=True)]
        return QueryLoss(n, released, rounds, s)
    moves = [[unclamped_losses(mechanism, a, grid, sign) for a in present] for sign in (-1.0, 1.0)]
    found = [QueryLoss(n, move, rounds, s) for move in moves]
    moments = [query.loss(max(query.scale / _COARSE, query.least_step)).log_moment for query in found]
    return found[int(np.argmax(moments))]


def _safe(mechanism: PrivITP, tilt: float, tables: list[tuple[Floats, Floats]]) -> float:
    """`tilt`, or a smaller one at which no e^{sL} leaves the range of floats."""
    shift = mechanism.sensitivity / mechanism.threshold_noise
    phase_two = (mechanism.candidates + 1) * max(float(np.abs(losses).max()) for _, losses in tables)
    return min(tilt, _LOG_MOST / ((FARTHEST + 1.0) * shift + 0.5 * shift * shift + phase_two))


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
    wanted = math.ceil(_NODES_PER_NOISE * mechanism.reward_max / mechanism.reward_noise)
    return even_thresholds(mechanism, min(max(wanted, _LEAST_NODES), _MOST_NODES))


def _groups(rewards: RewardLaw) -> list[list[int]]:
    """The prompts, sorted by mean reward, in at most eight groups."""
    means = [float(values @ mass) for values, mass in (rewards.nodes(prompt) for prompt in range(rewards.prompts))]
    return [[int(i) for i in group] for group in np.array_split(np.argsort(means), _GROUPS) if len(group)]


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
