"""An audit of a head's sensitivity by retraining: change one person's pairs, train again, look at every reward.

An audit cannot prove a bound, it can only break it; that is why the changes are chosen to hurt. With H the Hessian of F
at w, a changed gradient moves w by about H⁻¹(Σ new - Σ old)/N, so the worst person to lose is the one with the largest
‖H⁻¹ Σ g_i‖, and the worst pair to gain lies along the weakest eigenvector of H, against w.

| kind | what happens to one person's pairs |
|---|---|
| `left out` | removed, N with them; persons drawn at random |
| `left out, most influence` | removed; the persons with the largest ‖H⁻¹ Σ g_i‖ |
| `labels flipped` | chosen and rejected change places; most influence first |
| `other pairs` | replaced by pairs made of other persons' answers, at random |
| `longest along w`, `longest against w` | replaced by ±(w/‖w‖), the longest difference that there is |
| `longest, weakest direction` | replaced by the longest difference along the weakest eigenvectors of H |

Leaving out changes N as well; the gradients then differ by at most 2Gk/N all the same, so the bound covers it:
‖(1/N) Σ_N g - (1/(N-k)) Σ_{N-k} g‖ ≤ kG/N + (N-k)G(1/(N-k) - 1/N) = 2Gk/N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from .encoders.base import FeatureMatrix
from .errors import HeadInvalid, HeadNotReproduced, TrainingFailed
from .head import LinearHead
from .pairs import PreferencePairs
from .retraining import Retrainer
from .sensitivity import movement_rounded_up
from .training import losses_slope, pair_differences

__all__ = ["KINDS", "AuditReport", "KindResult", "audit_head"]

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

KINDS = (
    "left out",
    "left out, most influence",
    "labels flipped",
    "other pairs",
    "longest along w",
    "longest against w",
    "longest, weakest direction",
)
_UNIT = 1.0 - 1e-9
_BLOCK = 20_000


@dataclass(frozen=True)
class KindResult:
    """The retrainings of one kind.

    Attributes:
        kind: one of `KINDS`.
        retrainings: how many.
        reward_movement: largest |r - r'| over all retrainings and candidates.
        weight_movement: largest ‖w - w'‖.
    """

    kind: str
    retrainings: int
    reward_movement: float
    weight_movement: float


@dataclass(frozen=True)
class AuditReport:
    """What was tried, the largest movements, and the bounds. It is computed from the data and not private.

    Attributes:
        kinds: results by kind.
        candidates: rewards looked at in each retraining.
        sensitivity: Δ, the bound that is judged, divided by `divided_by`.
        movement_bound: the bound on ‖w - w'‖, likewise.
        divided_by: 1, or what the bounds were divided by for a twin that must fail.
    """

    kinds: tuple[KindResult, ...]
    candidates: int
    sensitivity: float
    movement_bound: float
    divided_by: float

    @property
    def retrainings(self) -> int:
        return sum(kind.retrainings for kind in self.kinds)

    @property
    def reward_movement(self) -> float:
        return max(kind.reward_movement for kind in self.kinds)

    @property
    def weight_movement(self) -> float:
        return max(kind.weight_movement for kind in self.kinds)

    @property
    def violated(self) -> bool:
        """Whether any reward or the weights moved further than the bound: then the head's Δ is wrong."""
        return self.reward_movement > self.sensitivity or self.weight_movement > self.movement_bound


def audit_head(
    head: LinearHead,
    pairs: PreferencePairs,
    features: tuple[FeatureMatrix, FeatureMatrix],
    *,
    retrainings: int = 210,
    candidates: int = 20_000,
    seed: int = 0,
    divide_bound_by: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Retrain on changed pairs and compare every movement with the bound.

    Args:
        head: the head; a private one is judged with its noise held fixed, as its Δ says.
        pairs, features: what it was trained on.
        retrainings: at least one for each kind; they are shared out evenly.
        candidates: rewards to look at: all answers of the pairs, random unit vectors up to this number, and the two
            directions in which the weights moved.
        seed: of the random choices.
        divide_bound_by: above 1 makes a twin that ought to be violated.

    Raises:
        HeadInvalid: N or k of the head are not those of the pairs, or the data's hash is another.
        HeadNotReproduced: training on these pairs does not give this head.
        TrainingFailed: a retraining did not reach τ/2.
    """
    facts = head.certificate.facts
    if retrainings < len(KINDS):
        raise TrainingFailed(f"at least {len(KINDS)} retrainings are needed, one for each kind: {retrainings}")
    _require_same_data(head, pairs)
    d = pair_differences(*features, facts.pair_norm)
    retrainer = Retrainer(d, facts.regularization, facts.gradient_tolerance)
    w = retrainer.weights
    offset = np.array(head.weights) - w
    movement = movement_rounded_up(facts)
    _require_reproduced(head, float(np.linalg.norm(offset)))
    rng = np.random.default_rng(seed)
    probes = _probes(features, candidates, rng)
    before = _rewards(head, probes, w + offset)
    results = []
    done = 0
    for position, kind in enumerate(KINDS):
        share = retrainings // len(KINDS) + (position < retrainings % len(KINDS))
        rewards = weights = 0.0
        for changed in islice(_changes(kind, pairs, features, retrainer, facts.pair_norm, rng), share):
            moved = retrainer.retrain(changed)
            step = moved - w
            weights = max(weights, float(np.linalg.norm(step)))
            rewards = max(rewards, float(np.max(np.abs(_rewards(head, probes, moved + offset) - before))))
            rewards = max(rewards, _along(head, step, w + offset, moved + offset))
            done += 1
            if progress is not None:
                progress(done, retrainings)
        results.append(KindResult(kind, share, rewards, weights))
    return AuditReport(
        tuple(results),
        len(probes) + 2,
        head.sensitivity / divide_bound_by,
        movement / divide_bound_by,
        divide_bound_by,
    )


def _require_same_data(head: LinearHead, pairs: PreferencePairs) -> None:
    facts, stated = head.certificate.facts, head.certificate.data_sha256
    if len(pairs.rows) != facts.pairs:
        raise HeadInvalid(f"the head was trained on {facts.pairs} pairs, these are {len(pairs.rows)}")
    if pairs.pairs_per_person > facts.pairs_per_person:
        raise HeadInvalid(
            f"the head was trained for at most {facts.pairs_per_person} pairs a person, here one gave "
            f"{pairs.pairs_per_person}"
        )
    if stated is not None and stated != pairs.sha256:
        raise HeadInvalid("these are not the pairs that the head was trained on: their hash is another")


def _require_reproduced(head: LinearHead, distance: float) -> None:
    """A head is what training gives, up to 2τ/μ and the noise of a private one (ten deviations of its length)."""
    facts, private = head.certificate.facts, head.private
    allowed = 2 * facts.gradient_tolerance / facts.regularization
    if private is not None:
        allowed += 10 * private.noise_deviation * math.sqrt(head.dimension)
    if distance > allowed:
        raise HeadNotReproduced(distance, allowed)


def _probes(features: tuple[FeatureMatrix, FeatureMatrix], candidates: int, rng: np.random.Generator) -> Matrix:
    answers = np.concatenate(features)[:candidates]
    more = max(0, candidates - len(answers))
    random = rng.normal(size=(more, answers.shape[1]))
    return np.concatenate([answers, random / np.linalg.norm(random, axis=1, keepdims=True) * _UNIT])


def _rewards(head: LinearHead, probes: Matrix, weights: Matrix) -> Matrix:
    scale, reward_max = head.certificate.facts.scale, head.reward_max
    parts = [probes[i : i + _BLOCK] @ weights for i in range(0, len(probes), _BLOCK)]
    return reward_max * 0.5 * (1 + np.tanh(np.concatenate(parts) / scale / 2))


def _along(head: LinearHead, step: Matrix, before: Matrix, after: Matrix) -> float:
    """Movement of the two candidates that see the step best: along it, with a part across that keeps w·φ near 0."""
    length = float(np.linalg.norm(step))
    if length == 0:
        return 0.0
    along = step / length
    probes = [along, -along]
    middle = (before + after) / 2
    across = middle - (middle @ along) * along
    if (norm := float(np.linalg.norm(across))) > 0:
        # φ = cos t · along + sin t · across/‖across‖ with middle·φ = 0: there the sigmoid is steepest.
        t = math.atan2(-float(middle @ along), norm)
        probes.append(math.cos(t) * along + math.sin(t) * across / norm)
    rows = np.stack(probes) * _UNIT
    return float(np.max(np.abs(_rewards(head, rows, after) - _rewards(head, rows, before))))


def _changes(
    kind: str,
    pairs: PreferencePairs,
    features: tuple[FeatureMatrix, FeatureMatrix],
    retrainer: Retrainer,
    pair_norm: float,
    rng: np.random.Generator,
) -> Iterator[Matrix]:
    """Endless changed differences of one kind."""
    d, w = retrainer.differences, retrainer.weights
    groups = _persons(pairs)
    if len(groups) < 2:
        raise TrainingFailed("all pairs are one person's: without them nothing is left to train on")
    ranked = _by_influence(groups, retrainer)
    norm_w = float(np.linalg.norm(w)) or 1.0
    longest = pair_norm * (1 - 1e-12)
    number = 0
    while True:
        random = groups[int(rng.integers(len(groups)))]
        worst = ranked[number % len(ranked)]
        match kind:
            case "left out":
                yield np.delete(d, random, axis=0)
            case "left out, most influence":
                yield np.delete(d, worst, axis=0)
            case "labels flipped":
                yield _replaced(d, worst, -d[worst])
            case "other pairs":
                chosen, rejected = (rng.integers(len(d), size=len(random)) for _ in range(2))
                yield _replaced(d, random, pair_differences(features[0][chosen], features[1][rejected], pair_norm))
            case "longest along w":
                yield _replaced(d, worst, np.tile(longest * w / norm_w, (len(worst), 1)))
            case "longest against w":
                yield _replaced(d, worst, np.tile(-longest * w / norm_w, (len(worst), 1)))
            case _:
                vector = retrainer.weakest(number // 2 % min(len(w), 8))
                sign = 1.0 if number % 2 else -1.0
                # The person to lose is the one whose pairs pull the other way along that direction most.
                pull = [float(np.sum(losses_slope(d[g] @ w) * (d[g] @ vector))) * sign for g in groups]
                yield _replaced(d, groups[int(np.argmin(pull))], sign * longest * vector)
        number += 1


def _persons(pairs: PreferencePairs) -> list[Indices]:
    """Row numbers of each person's pairs; a pair without a person is a person of its own."""
    groups: dict[object, list[int]] = {}
    for i, row in enumerate(pairs.rows):
        groups.setdefault(i if row.person is None else row.person, []).append(i)
    return [np.array(rows) for rows in groups.values()]


def _by_influence(groups: list[Indices], retrainer: Retrainer) -> list[Indices]:
    d, w = retrainer.differences, retrainer.weights
    gradients = losses_slope(d @ w)[:, None] * d
    sums = np.stack([gradients[rows].sum(axis=0) for rows in groups])
    return [groups[i] for i in np.argsort(-np.linalg.norm(retrainer.solve(sums), axis=1))]


def _replaced(d: Matrix, rows: Indices, by: Matrix) -> Matrix:
    changed = d.copy()
    changed[rows] = by
    return changed
