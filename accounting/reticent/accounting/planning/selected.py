"""Expected reward of the answer that PrivBoN, or no rule at all, gives under a reward law (simulated, seeded)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reticent.accounting.errors import require_integer, require_positive
from reticent.accounting.planning.laws import Floats, RewardLaw
from reticent.accounting.planning.outcomes import standard_error

__all__ = ["base_reward", "best_of_n_reward", "privbon_rewards"]

_BATCHES = 16
_MOST_REWARDS = 20_000_000
_ELEMENTS = 2_000_000


def base_reward(law: RewardLaw) -> float:
    """Expected reward of one base sample: what a fallback gives."""
    return float(np.mean([float(values @ weights) for values, weights in map(law.nodes, range(law.prompts))]))


def privbon_rewards(
    law: RewardLaw,
    candidates: int,
    scales: Sequence[float],
    *,
    gaussian: bool = False,
    draws: int = 16384,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """Expected reward of PrivBoN's answer, and its standard error, for each noise scale σ > 0.

    Every scale sees the same simulated rewards. With Gumbel noise the mean over the choice is exact given n rewards,
    Σ r_i e^{r_i/σ} / Σ e^{r_i/σ}; with `gaussian` noise the choice is simulated too.
    """
    sigmas = np.array([require_positive("noise_scale", scale) for scale in scales])
    noise = np.random.default_rng([seed, 1])

    def means(rewards: Floats) -> Floats:
        if not gaussian:
            return _softmax_means(rewards, 1.0 / sigmas)
        drawn = noise.standard_normal(rewards.shape)
        rows = np.arange(len(rewards))
        return np.stack([rewards[rows, (rewards + sigma * drawn).argmax(axis=1)] for sigma in sigmas])

    return _simulated(law, candidates, means, len(sigmas), draws, seed)


def best_of_n_reward(law: RewardLaw, candidates: int, *, draws: int = 16384, seed: int = 0) -> tuple[float, float]:
    """Expected largest of n rewards: the answer without privacy."""
    (found,) = _simulated(law, candidates, lambda rewards: rewards.max(axis=1, keepdims=True).T, 1, draws, seed)
    return found


def _softmax_means(rewards: Floats, inverse_scales: Floats) -> Floats:
    """(S, K) means of each row of (K, n) rewards under the softmax of each scale."""
    above = rewards - rewards.max(axis=1, keepdims=True)
    means = np.empty((len(inverse_scales), len(rewards)))
    for row, inverse in enumerate(inverse_scales):
        weights = np.exp(above * inverse)
        means[row] = (weights * rewards).sum(axis=1) / weights.sum(axis=1)
    return means


def _simulated(
    law: RewardLaw, candidates: int, means: Callable[[Floats], Floats], count: int, draws: int, seed: int
) -> list[tuple[float, float]]:
    n = require_integer("candidates", candidates, 1)
    per_prompt = min(require_integer("draws", draws, _BATCHES), max(1024, _MOST_REWARDS // n)) // law.prompts
    per_batch = max(1, per_prompt // _BATCHES)
    totals = np.zeros((_BATCHES, count))
    rng = np.random.default_rng(seed)
    step = max(1, _ELEMENTS // n)
    for prompt in range(law.prompts):
        for batch in range(_BATCHES):
            for start in range(0, per_batch, step):
                size = min(step, per_batch - start)
                totals[batch] += means(law.draw(prompt, rng, (size, n))).sum(axis=1)
    totals /= per_batch * law.prompts
    return [(float(column.mean()), standard_error(column)) for column in totals.T]
