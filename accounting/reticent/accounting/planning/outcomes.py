"""What a PrivITP query does: the joint law of the clamped threshold λ and of the outcome, under a reward law.

λ* has no closed law, so it is simulated (seeded). Everything after it is computed: the Gaussian of phase 1, the clamp,
and the geometric law of the halting time. Functions of λ are taken as linear between the nodes of a grid, and the mean
of such a function of clip(λ* + N(0, σ_X²)) is exact: with (x)_+ the positive part and ψ(x) = xΦ(x) + φ(x),
    E (λ* + N(0, σ_X²) - g)_+ = σ_X ψ((λ* - g)/σ_X),
and a piecewise linear function is a sum of such kinks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import require_integer
from reticent.accounting.planning.laws import Floats, RewardLaw

__all__ = [
    "OutcomeLaw",
    "acceptance_probabilities",
    "even_thresholds",
    "normalizers",
    "occupancy",
    "outcome_law",
    "psi",
    "standard_error",
    "threshold_grid",
]

_BATCHES = 16
_LEAST_NODES, _MOST_NODES = 129, 1025
_NODES_PER_NOISE = 16.0  # grid nodes within one σ_Z
_ELEMENTS = 4_000_000  # of one temporary array
_NARROW = 1e-4


@dataclass(frozen=True, eq=False)
class OutcomeLaw:
    """Joint law of λ and outcome of one query, and the expected reward of its answer.

    Attributes:
        thresholds: (G,) the nodes of λ, from -β to R - β.
        joint: (n + 1, G) probabilities: row t - 1 an acceptance in round t, row n the fallback. Sums to 1.
        batches: (B, 2, G) expected rejections and acceptances at each node, in independent simulations of λ*.
        rewards: (B,) expected reward of the answer in each of those; the fallback's answer counts.
    """

    thresholds: Floats
    joint: Floats
    batches: Floats
    rewards: Floats

    @property
    def candidates(self) -> int:
        """n."""
        return len(self.joint) - 1

    @property
    def halting(self) -> Floats:
        """(n + 1,) probabilities of an acceptance at t = 1 … n, then of the fallback."""
        total: Floats = self.joint.sum(axis=1)
        return total

    @property
    def rejections(self) -> Floats:
        """(G,) expected rejections, by node."""
        mean: Floats = self.batches[:, 0].mean(axis=0)
        return mean

    @property
    def acceptances(self) -> Floats:
        """(G,) probabilities of an acceptance, by node."""
        mean: Floats = self.batches[:, 1].mean(axis=0)
        return mean

    def mean_cost(self, rejection: Floats, acceptance: Floats) -> tuple[float, float]:
        """Expected cost with `rejection` and `acceptance` (G,) at the nodes, and its standard error."""
        by_batch = self.batches[:, 0] @ rejection + self.batches[:, 1] @ acceptance
        return float(by_batch.mean()), standard_error(by_batch)

    def mean_reward(self) -> tuple[float, float]:
        """Expected reward of the answer and its standard error."""
        return float(self.rewards.mean()), standard_error(self.rewards)

    def cost_table(self, rejection: Floats, acceptance: Floats) -> Floats:
        """(n + 1, G) costs: (t-1)r + s for an acceptance at t, n r for the fallback."""
        n = self.candidates
        rounds = np.append(np.arange(n, dtype=np.float64), float(n))[:, None]
        accepted = np.append(np.ones(n), 0.0)[:, None]
        table: Floats = rounds * rejection + accepted * acceptance
        return table


def standard_error(batches: Floats) -> float:
    """Of the mean of independent batch means."""
    return float(batches.std(ddof=1)) / math.sqrt(len(batches)) if len(batches) > 1 else 0.0


def outcome_law(mechanism: PrivITP, law: RewardLaw, *, draws: int = 16384, seed: int = 0) -> OutcomeLaw:
    """The outcome law of `mechanism` under `law`.

    Args:
        mechanism, law: with the same R.
        draws: simulated λ*, over all prompts; at least 16 a prompt, and fewer where n is large (2·10^7 rewards at most,
            unless the pool's prompts need more).
        seed: of the draws. The same seed gives the same rewards to mechanisms with the same n.
    """
    n = mechanism.candidates
    per_batch = min(require_integer("draws", draws, _BATCHES), max(1024, 20_000_000 // n)) // law.prompts
    per_batch = max(1, per_batch // _BATCHES)
    grid = threshold_grid(mechanism)
    count = len(grid)
    batches, rewards = np.zeros((_BATCHES, 2, count)), np.zeros(_BATCHES)
    present, accept = np.empty((law.prompts, count)), np.empty((law.prompts, count))
    rng = np.random.default_rng(seed)
    for prompt in range(law.prompts):
        levels = normalizers(mechanism, law, prompt, per_batch * _BATCHES, rng)
        weights = np.stack([occupancy(part, grid, mechanism.threshold_noise) for part in np.split(levels, _BATCHES)])
        values, mass = law.nodes(prompt)
        table = acceptance_probabilities(mechanism, values, grid)
        p = np.clip(mass @ table, 0.0, 1.0)
        accepted, rejected = _truncated_geometric(p, n)
        batches[:, 0] += weights * rejected
        batches[:, 1] += weights * accepted
        mean = float(mass @ values)
        chosen = np.divide((mass * values) @ table, p, out=np.full(count, mean), where=p > 0.0)
        rewards += weights @ (accepted * chosen + (1.0 - accepted) * mean)
        present[prompt], accept[prompt] = weights.mean(axis=0), p
    return OutcomeLaw(grid, _joint(present, accept, n), batches / law.prompts, rewards / law.prompts)


def threshold_grid(mechanism: PrivITP) -> Floats:
    """Equally spaced nodes over [-β, R - β], 129 to 1025 of them, at least 16 to a σ_Z where that many suffice."""
    wanted = math.ceil(_NODES_PER_NOISE * mechanism.reward_max / mechanism.reward_noise) + 1
    return even_thresholds(mechanism, min(max(wanted, _LEAST_NODES), _MOST_NODES))


def even_thresholds(mechanism: PrivITP, count: int) -> Floats:
    """`count` equally spaced λ over [-β, R - β]."""
    # The ends exactly as the mechanism clamps them: `acceptance_law` refuses anything outside.
    low, high = -mechanism.regularization, mechanism.reward_max - mechanism.regularization
    return np.clip(np.linspace(low, high, count), low, high)


def normalizers(mechanism: PrivITP, law: RewardLaw, prompt: int, count: int, rng: np.random.Generator) -> Floats:
    """`count` simulated λ*: max over k of (S_k - nβ)/k, S_k the sum of the k largest of n rewards."""
    n = mechanism.candidates
    ranks = np.arange(1, n + 1, dtype=np.float64)
    found = np.empty(count)
    step = max(1, _ELEMENTS // n)
    for start in range(0, count, step):
        size = min(step, count - start)
        down = -np.sort(-law.draw(prompt, rng, (size, n)), axis=1)
        found[start : start + size] = ((np.cumsum(down, axis=1) - n * mechanism.regularization) / ranks).max(axis=1)
    return found


def occupancy(levels: Floats, grid: Floats, scale: float) -> Floats:
    """(G,) mean weights of the nodes: `weights @ f` is the mean of f(clip(λ* + N(0, scale²))), f linear between nodes.

    Args: `levels` simulated λ*, `grid` (G,) equally spaced and increasing; outside it f is constant.
    """
    width = float(grid[1] - grid[0])
    kinks, step = np.zeros(len(grid)), max(1, _ELEMENTS // len(grid))
    for start in range(0, len(levels), step):
        kinks += psi((levels[start : start + step, None] - grid) / scale).sum(axis=0)
    falls = np.diff(kinks) * (-scale / (len(levels) * width))  # E of the positive part falls from node to node
    weights = np.empty(len(grid))
    weights[0], weights[-1] = 1.0 - falls[0], falls[-1]
    weights[1:-1] = falls[:-1] - falls[1:]
    return np.clip(weights, 0.0, 1.0)


def psi(x: Floats) -> Floats:
    """ψ(x) = xΦ(x) + φ(x), with the absolute accuracy that estimates need (charges use `acceptance.log_mean_cdf`)."""
    value: Floats = x * ndtr(x) + np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return value


def acceptance_probabilities(mechanism: PrivITP, rewards: Floats, thresholds: Floats) -> Floats:
    """(Q, G) acceptance probabilities B(q) at each threshold, to about 1e-12 absolute: for estimates, not charges."""
    sigma_Z = mechanism.reward_noise
    ceiling = mechanism.reward_max + sigma_Z * mechanism.truncation
    low = (rewards[:, None] - ceiling) / sigma_Z
    high = (rewards[:, None] - thresholds) / sigma_Z
    width = high - low
    mean = np.where(width > _NARROW, (psi(high) - psi(low)) / width, ndtr(0.5 * (low + high)))
    return np.clip(mean, 0.0, 1.0)


def _truncated_geometric(p: Floats, n: int) -> tuple[Floats, Floats]:
    """Probability that one of n is accepted, and expected rejections: Σ over k from 1 to n of (1-p)^k."""
    with np.errstate(divide="ignore"):
        accepted = -np.expm1(n * np.log1p(-p))
    rejected = np.divide((1.0 - p) * accepted, p, out=np.full(len(p), float(n)), where=p > 1e-300)
    return accepted, rejected


def _joint(present: Floats, accept: Floats, n: int) -> Floats:
    """(n + 1, G) joint law from (prompts, G) weights of the nodes and acceptance probabilities."""
    joint = np.empty((n + 1, present.shape[1]))
    going = present / len(present)
    for row in range(n):
        joint[row] = (going * accept).sum(axis=0)
        going = going * (1.0 - accept)
    joint[n] = going.sum(axis=0)
    return joint
