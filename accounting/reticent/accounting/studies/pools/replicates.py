"""The rules played by chance, M times a prompt as in the paper's experiments (M = 50): a check of the exact results.

Nothing of the exact computation is used: candidates, noises, coins and the halting time are drawn one by one, and
PrivITP adds its Gaussian to every reward as Algorithm 2 says, without Lemma C.1. Only the draws of candidates agree:
phase 1 and the best-of-n rules see n distinct answers, or n with replacement; phase 2 draws with replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import require_integer
from reticent.accounting.planning.laws import Floats
from reticent.accounting.studies.pools.files import Pool
from reticent.accounting.studies.pools.question import RULES, Cell, Question

__all__ = ["Replicated", "replicate"]

_ELEMENTS = 2_000_000

Chosen = NDArray[np.int64]


@dataclass(frozen=True)
class Replicated:
    """A cell's means over prompts and replicates, and their standard errors over the replicates alone.

    `halting_time` is None for rules without a phase 2.
    """

    accuracy: float
    accuracy_error: float
    proxy_reward: float
    proxy_error: float
    halting_time: float | None


def replicate(pool: Pool, question: Question, repeats: int, *, seed: int = 0) -> list[Replicated]:
    """Every cell of `question`, played `repeats` ≥ 2 times on every prompt; errors as in `run.evaluate`."""
    M = require_integer("repeats", repeats, 2)
    sums = np.zeros((len(question.cells), 5))
    for index, (rewards, truths) in enumerate(zip(pool.rewards, pool.truths, strict=True)):
        for place, cell in enumerate(question.cells):
            rng = np.random.default_rng([seed, 1, index, place])
            step = max(1, _ELEMENTS // max(len(rewards), cell.candidates))
            parts = [_play(cell, question, rewards, min(step, M - done), rng) for done in range(0, M, step)]
            chosen = np.concatenate([part[0] for part in parts])
            looked_at = np.concatenate([part[1] for part in parts])
            true, proxy = truths[chosen], rewards[chosen]
            sums[place] += (true.mean(), true.var(ddof=1) / M, proxy.mean(), proxy.var(ddof=1) / M, looked_at.mean())
    sums /= len(pool)
    return [
        Replicated(
            float(row[0]),
            math.sqrt(row[1] / len(pool)),
            float(row[2]),
            math.sqrt(row[3] / len(pool)),
            float(row[4]) if RULES[cell.rule].regularized else None,
        )
        for cell, row in zip(question.cells, sums, strict=True)
    ]


def _play(
    cell: Cell, question: Question, rewards: Floats, count: int, rng: np.random.Generator
) -> tuple[Chosen, Chosen]:
    """(chosen answers, candidates looked at in phase 2), `count` times."""
    n, size = cell.candidates, len(rewards)
    none = np.zeros(count, dtype=np.int64)
    if cell.rule == "base":
        return rng.integers(0, size, count), none
    drawn = rng.random((count, size)).argsort(axis=1)[:, :n] if question.distinct else rng.integers(0, size, (count, n))
    if cell.regularization is None:
        noisy = rewards[drawn]
        if cell.rule == "bon":
            # Ties are broken evenly.
            best = np.where(noisy == noisy.max(axis=1, keepdims=True), rng.random(noisy.shape), -1.0)
            return drawn[np.arange(count), best.argmax(axis=1)], none
        noise = rng.gumbel(size=noisy.shape) if cell.rule == "privbon" else rng.standard_normal(noisy.shape)
        noisy = noisy + (cell.noise_scale or 0.0) * noise
        return drawn[np.arange(count), noisy.argmax(axis=1)], none
    levels = _normalizers(rewards[drawn], cell.regularization)
    return _sample(question.mechanism(cell), cell, rewards, levels, rng)


def _normalizers(rewards: Floats, beta: float) -> Floats:
    """λ* of each row, with mean relu(r - λ) = β, by bisection to 1e-9."""
    low, high = np.full(len(rewards), -beta), rewards.max(axis=1)
    for _ in range(31):
        middle = 0.5 * (low + high)
        above = np.maximum(rewards - middle[:, None], 0.0).mean(axis=1) > beta
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    found: Floats = 0.5 * (low + high)
    return found


def _sample(
    mechanism: object, cell: Cell, rewards: Floats, levels: Floats, rng: np.random.Generator
) -> tuple[Chosen, Chosen]:
    n, count, size = cell.candidates, len(levels), len(rewards)
    noise, ceiling = 0.0, 1.0
    if isinstance(mechanism, PrivITP):
        noise, ceiling = mechanism.reward_noise, 1.0 + mechanism.reward_noise * mechanism.truncation
        released = levels + mechanism.threshold_noise * rng.standard_normal(count)
        levels = np.clip(released, -mechanism.regularization, 1.0 - mechanism.regularization)
    fresh = rng.integers(0, size, (count, n))
    noisy = rewards[fresh] + noise * rng.standard_normal((count, n))
    accept = rng.random((count, n)) * (ceiling - levels[:, None]) < noisy - levels[:, None]
    found = accept.any(axis=1)
    first = accept.argmax(axis=1)
    chosen = np.where(found, fresh[np.arange(count), first], rng.integers(0, size, count))
    return chosen, np.where(found, first + 1, n)
