"""Exact output laws of small cases, computed without the code under test, and the best adversary against a filter.

A step is what one adjacent pair makes of one step of the interaction: for every outcome log P_D, log P_D' and the
charge. `worst_stream` plays all steps of a menu against a filter by dynamic programming: it knows the loss so far and
the budget left, chooses the next step as it likes and stops when it likes, so nothing adaptive can beat it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from reticent.accounting.charges.privitp import PrivITP

__all__ = [
    "Array",
    "Plan",
    "Step",
    "adjacent_pairs",
    "best_adversary",
    "gaussian_step",
    "hockey_stick",
    "mean_acceptance",
    "moment",
    "rejection_law",
    "rejection_step",
    "softmax_law",
    "threshold_law",
    "worst_rejection_moment",
    "worst_repeated",
    "worst_stream",
]

Array = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


@dataclass(frozen=True)
class Step:
    """One step under one adjacent pair.

    Args:
        log_p, log_q: log probability of each outcome under D and under D'.
        charge: nats, one an outcome.
        worst: what must fit into the budget before the step starts, nats.
    """

    log_p: Array
    log_q: Array
    charge: Array
    worst: float

    @property
    def loss(self) -> Array:
        """log P_D/P_D' of each outcome, nats."""
        return self.log_p - self.log_q


def moment(step: Step, order: float) -> float:
    """E under D of exp((α-1)(L - c)): admissible when at most 1."""
    return math.fsum(np.exp(step.log_p + (order - 1.0) * (step.loss - step.charge)).tolist())


def hockey_stick(log_p: Array, log_q: Array, epsilon: float) -> float:
    """Σ max(0, p - e^ε q): the least δ at which this pair is (ε, δ)-indistinguishable in this direction."""
    gain = -np.expm1(np.minimum(0.0, epsilon - (log_p - log_q)))
    return math.fsum((np.exp(log_p) * gain).tolist())


def adjacent_pairs(levels: Sequence[int], sensitivity: int, n: int) -> tuple[Array, Array]:
    """All pairs of reward vectors with entries in `levels` and every entry moved by at most `sensitivity`; (pairs, n).

    Pairs that differ only in the order of candidates are kept once.
    """
    moves = [(a, b) for a in levels for b in levels if abs(a - b) <= sensitivity]
    chosen = np.array(list(itertools.combinations_with_replacement(moves, n)), dtype=np.float64)
    return chosen[:, :, 0], chosen[:, :, 1]


def softmax_law(rewards: Array, scale: float) -> Array:
    """log of softmax(rewards/scale) along the last axis."""
    z = rewards / scale
    z = z - z.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


def mean_acceptance(m: PrivITP, threshold: float, rewards: Array, sign: float = 1.0) -> Array:
    """B(q) (sign 1) or A(q) = 1 - B(q) (sign -1): the mean of Φ(±(q - θ)/σ_Z) for θ uniform on [λ, T].

    By Gauss-Legendre on panels of half a σ_Z at most; small relative error as long as nothing underflows (37 σ_Z).
    """
    top = m.reward_max + m.reward_noise * m.truncation
    panels = max(1, math.ceil((top - threshold) / (0.5 * m.reward_noise)))
    half = 0.5 * (top - threshold) / panels
    theta = (threshold + half * (2.0 * np.arange(panels) + 1.0))[:, None] + half * _NODES
    values = ndtr(sign * (rewards[:, None, None] - theta) / m.reward_noise)
    return np.asarray((values @ _WEIGHTS).sum(axis=1) * half / (top - threshold))


def _mean(m: PrivITP, threshold: float, q: float, sign: float) -> float:
    return float(mean_acceptance(m, threshold, np.array([q]), sign)[0])


def rejection_law(m: PrivITP, threshold: float, rewards: Sequence[float]) -> Array:
    """log probability of an acceptance in round 1, …, n, and of the fallback; rewards in reward units."""
    law, alive = [], 0.0
    for q in rewards:
        law.append(alive + math.log(_mean(m, threshold, q, 1.0)))
        alive += math.log(_mean(m, threshold, q, -1.0))
    return np.array([*law, alive])


def rejection_step(
    m: PrivITP, threshold: float, one: Sequence[float], other: Sequence[float], charge: Sequence[float]
) -> Step:
    """Phase 2 at a threshold with the given charges (n acceptances, one fallback)."""
    log_p, log_q = rejection_law(m, threshold, one), rejection_law(m, threshold, other)
    return Step(log_p, log_q, np.asarray(charge, dtype=np.float64), max(charge))


def worst_rejection_moment(
    m: PrivITP, threshold: float, order: float, charge: Sequence[float], levels: Sequence[float], sensitivity: float
) -> float:
    """The largest `moment` of phase 2 over all adjacent pairs of rewards in `levels`, another pair in every round.

    Backwards: in each round the worst pair is the one that maximises
        (accepted here) p^α p'^{1-α} e^{-(α-1)c_t} + (rejected) (1-p)^α (1-p')^{1-α} × (worst of the rounds after).
    """
    a = order - 1.0
    accept = np.log([_mean(m, threshold, q, 1.0) for q in levels])
    reject = np.log([_mean(m, threshold, q, -1.0) for q in levels])
    near = np.abs(np.subtract.outer(levels, levels)) <= sensitivity * (1.0 + 1e-12)

    def tilted(log_b: Array) -> Array:
        return np.where(near, order * log_b[:, None] - a * log_b[None, :], -np.inf)

    log_after = -a * charge[-1]
    for c in reversed(charge[:-1]):
        terms = np.logaddexp(tilted(accept) - a * c, tilted(reject) + log_after)
        log_after = float(terms.max())
    return math.exp(min(log_after, 700.0))


def threshold_law(m: PrivITP, centre: float, other: float, nodes: int = 400) -> tuple[Array, Array, Array]:
    """The clamped threshold: points, log weights under D (λ* = `centre`), log weights under D' (`other`).

    N(λ*, σ_X²) by Gauss-Legendre between the ends of the clamp, and an atom at each end.
    """
    low, high, sigma = -m.regularization, m.reward_max - m.regularization, m.threshold_noise
    x, w = np.polynomial.legendre.leggauss(nodes)
    inner = low + (high - low) * 0.5 * (1.0 + x)
    log_w = np.log(0.5 * (high - low) * w)

    def weights(mean: float) -> Array:
        density = log_w - 0.5 * ((inner - mean) / sigma) ** 2 - math.log(sigma * math.sqrt(2.0 * math.pi))
        ends = np.array([ndtr((low - mean) / sigma), ndtr((mean - high) / sigma)])
        return np.concatenate([[np.log(ends[0])], density, [np.log(ends[1])]])

    return np.concatenate([[low], inner, [high]]), weights(centre), weights(other)


def gaussian_step(shift: float, scale: float, charge: float, end: Literal["upper", "lower"] = "upper") -> Step:
    """Gaussian noise with a shifted mean: the loss is N(μ²/2, μ²), here in cells, each at its upper or lower end."""
    mu = shift / scale
    z = np.linspace(-8.0, 8.0, 1601)
    mass = np.where(z[1:] <= 0.0, np.diff(ndtr(z)), -np.diff(ndtr(-z)))
    # What lies beyond ±8 (1e-15) is put at 12, or left out.
    at = z[1:] if end == "upper" else z[:-1]
    if end == "upper":
        mass, at = np.append(mass, 2.0 * ndtr(-8.0)), np.append(at, 12.0)
    loss = 0.5 * mu * mu + mu * at
    log_p = np.log(mass)
    return Step(log_p, log_p - loss, np.full(mass.size, charge), charge)


Kind = Literal["tail", "hockey-stick"]


def _stop(loss: Array, epsilon: float, kind: Kind) -> Array:
    """What the adversary has reached when it stops with this loss."""
    if kind == "tail":
        return (loss > epsilon).astype(np.float64)
    return np.asarray(-np.expm1(np.minimum(0.0, epsilon - loss)))


def worst_repeated(steps: Sequence[Step], epsilon: float, count: int, kind: Kind) -> float:
    """`worst_stream` without a grid, for `count` steps that all fit: exact, every reachable loss is enumerated.

    All steps must have the same number of outcomes; (steps × outcomes)^count numbers are held.
    """
    loss = np.stack([step.loss for step in steps])
    p = np.exp(np.stack([step.log_p for step in steps]))

    def value(s: Array, left: int) -> Array:
        stopped = _stop(s, epsilon, kind)
        if left == 0:
            return stopped
        after = value((s[:, None, None] + loss).ravel(), left - 1).reshape(s.size, *loss.shape)
        return np.asarray(np.maximum(stopped, (p * after).sum(axis=2).max(axis=1)))

    return float(value(np.zeros(1), count)[0])


_Part = tuple[int, NDArray[np.int64], Array, Array | None]


def _moves(step: Step, h: float, hb: float, rows: NDArray[np.int64], up: bool) -> tuple[list[_Part], int]:
    """A step on the grid: per charge (in cells) the moves of the loss and their mass, and the least budget to start.

    Where there are many moves, also the matrix that makes them all.
    """
    round_loss, round_charge = (np.ceil, np.floor) if up else (np.floor, np.ceil)
    by_loss = round_loss(step.loss / h).astype(np.int64)
    by_charge = round_charge(step.charge / hb - 1e-12).astype(np.int64)
    parts: list[_Part] = []
    for db in np.unique(by_charge):
        mine = by_charge == db
        shifts, inverse = np.unique(by_loss[mine], return_inverse=True)
        mass = np.bincount(inverse.ravel(), weights=np.exp(step.log_p[mine]))
        matrix = None
        if shifts.size > 30:
            matrix = np.zeros((rows.size, rows.size))
            for ds, p in zip(shifts, mass, strict=True):
                matrix[rows, np.clip(rows + ds, 0, rows.size - 1)] += p
        parts.append((int(db), shifts, mass, matrix))
    return parts, int(round_charge(step.worst / hb - 1e-12))


@dataclass(frozen=True)
class Plan:
    """What the best adversary reaches from the start, and its choices on the grid.

    Args:
        reached: the value at loss 0 with the whole budget.
        choice: index of the step to take at (loss, budget left), -1 to stop.
        lowest, loss_cell, budget_cell: the grid: row i is a loss of lowest + i loss_cell, column j a budget of
            j budget_cell.
    """

    reached: float
    choice: NDArray[np.int64]
    lowest: float
    loss_cell: float
    budget_cell: float

    def at(self, loss: Array, left: Array) -> NDArray[np.int64]:
        """Choices at these losses and budgets left."""
        rows = np.rint((loss - self.lowest) / self.loss_cell).astype(int)
        columns = np.floor(left / self.budget_cell + 1e-9).astype(int)
        return self.choice[np.clip(rows, 0, self.choice.shape[0] - 1), np.clip(columns, 0, self.choice.shape[1] - 1)]


def best_adversary(
    steps: Sequence[Step],
    budget: float,
    epsilon: float,
    rounds: int,
    kind: Kind = "tail",
    *,
    bound: Literal["upper", "lower"] = "upper",
    cells: tuple[int, int] = (500, 120),
    lowest: float | None = None,
) -> Plan:
    """The most that an adaptive adversary reaches in at most `rounds` steps through a filter.

    "tail": P_D(the loss exceeds ε at some time). "hockey-stick": the least δ with P_D ≤ e^ε P_D' + δ of the whole
    transcript. A step may start only if its worst case fits into what is left of `budget`; then its charge is taken.
    Losses and budgets live on a grid; with bound="upper" every rounding helps the adversary, with "lower" every one
    harms it, so the true value lies between the two.
    """
    up = bound == "upper"
    low = -epsilon if lowest is None else lowest
    h, hb = (2.0 * epsilon - low) / cells[0], budget / cells[1]
    s = low + h * np.arange(cells[0] + 1)
    stop = _stop(s, epsilon - 1e-9 * h if up else epsilon + 1e-9 * h, kind)
    if up:
        stop[-1] = 1.0
    else:
        stop[0] = 0.0
    rows, columns = np.arange(cells[0] + 1), np.arange(cells[1] + 1)
    menu = [_moves(step, h, hb, rows, up) for step in steps]
    value = np.repeat(stop[:, None], cells[1] + 1, axis=1)
    choice = np.full(value.shape, -1)
    for _ in range(rounds):
        best = np.repeat(stop[:, None], cells[1] + 1, axis=1)
        choice = np.full(best.shape, -1)
        for k, (parts, least) in enumerate(menu):
            if least > cells[1]:
                continue
            left = columns[least:]
            reached = np.zeros((rows.size, left.size))
            for db, shifts, mass, matrix in parts:
                after = value[:, np.maximum(left - db, 0)]
                if matrix is not None:
                    reached += matrix @ after
                else:
                    for ds, p in zip(shifts, mass, strict=True):
                        reached += p * after[np.clip(rows + ds, 0, cells[0])]
            better = reached > best[:, least:]
            best[:, least:][better] = reached[better]
            choice[:, least:][better] = k
        if not up:
            best[0] = 0.0
        value = best
    start = -low / h
    row = math.ceil(start - 1e-9) if up else math.floor(start + 1e-9)
    return Plan(float(value[row, cells[1]]), choice, low, h, hb)


def worst_stream(
    steps: Sequence[Step],
    budget: float,
    epsilon: float,
    rounds: int,
    kind: Kind = "tail",
    *,
    bound: Literal["upper", "lower"] = "upper",
    cells: tuple[int, int] = (500, 120),
) -> float:
    """What `best_adversary` reaches."""
    return best_adversary(steps, budget, epsilon, rounds, kind, bound=bound, cells=cells).reached
