"""The composition limit: more queries than this no accountant of its kind can allow, however clever its composition.

Claim. Let an accountant decide from the released clamped thresholds λ and halting times t alone (PrivBoN: from nothing)
when to stop, and let it be (ε, δ)-sound for all adjacent D, D'. If it is sure to answer k queries where the rewards
follow the given law, then k is at most `Limit.queries_high`. Proof: `planning.worst_queries` has a pair D, D' under
which D gives (λ, t) the same law as those rewards do. So the accountant answers k queries there too. Their losses are
independent, and beyond `queries_high` their δ(ε) is above δ. (If it answers k with probability 1 - γ only: with δ + γ
for δ.)

The claim bounds accountants from above. `queries_low` and `queries_high` bracket the limit of *this pair*, and
`queries_low` guarantees nothing: no charge follows from it, and another pair may allow fewer. A sound accounting that
stays far below may have lost what it could have had, or the pair found may be far from the worst.

Clamped and unclamped
---------------------
* Clamped, the default, is the limit for PrivITP as it is built and charged (`charges.clamped_gaussian`): λ̃ leaves
  phase 1 clamped only, and λ* of D' stays in [-β, R-β] too. With Δ near R that matters: from where the law has λ* there
  is less than Δ to either end, while the charge is for the worst λ*, which the law may never show.
* Unclamped is the limit of accountants that charge for λ̃ in full, wherever λ* is moved. It is no bound for one that
  uses the clamp: "renyi" with the clamped charge passes it at Δ = 1, σ = 2.56.

What the claim leaves out
-------------------------
* An accountant that uses more may go beyond: that phase 2's rewards do not depend on λ and resemble phase 1's.
  Of PrivBoN only the bounded range 2Δ/σ is used; with Δ near R, or n = 2, real rewards do less.
* The bracket covers rounding of losses and floating error. λ*, the noise of phase 1 and λ are taken at nodes, λ* is
  simulated (seeded), and of a pool the prompts are taken in groups: an error of about 1e-4, more for a pool.

Source: privacy.md, section 5; the column "limit" there is the unclamped one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from scipy.special import ndtri

from reticent.accounting.charges.bounded_range import require_delta, worst_offset
from reticent.accounting.charges.gaussian import calibrated_scale
from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import InvalidQuantityError, require_positive
from reticent.accounting.filter import Guarantee
from reticent.accounting.planning.laws import RewardLaw
from reticent.accounting.planning.privacy_loss import PrivacyLoss
from reticent.accounting.planning.worst_queries import worst_query

__all__ = ["Limit", "composition_limit", "largest_count", "softmax_loss"]

_MOST_QUERIES = 10**9
_BRACKET = 2e-4  # what rounding may cost of ε, where the grid allows it
_GRID_MOST = 1 << 22  # points of a sum's window
_COARSE = 512.0
_LEAST = 1e-300
_LEAST_TILT = 1e-3
_LOG_SLOPE = 15.0  # of log δ by log k near δ = 0.01
_SECANT_STEPS = 12


@dataclass(frozen=True)
class Limit:
    """Largest k with δ_k(ε) ≤ δ: `queries_low` by an upper bound of δ_k, `queries_high` by a lower bound.

    `queries_high` is 10^9 where no useful lower bound was found.
    """

    queries_low: int
    queries_high: int


def composition_limit(
    mechanism: PrivITP | PrivBoN,
    rewards: RewardLaw | None,
    epsilon: float,
    delta: float,
    guarantee: Guarantee = "dp",
    *,
    seed: int = 0,
    clamped: bool = True,
) -> Limit:
    """How many queries no accountant can exceed; see the module for what that means.

    Args:
        mechanism: one query.
        rewards: law of the rewards, the same R; not used for PrivBoN.
        epsilon, delta: the budget, ε > 0 nats, 0 < δ < 1.
        guarantee: "dp" is (ε, δ)-DP; "probabilistic" is P(loss > ε) ≤ δ at the last query. (PrivBoN's losses lie on a
            grid, so that this P rises with k in steps and falls a little between: the bracket spans some of them.)
        seed: of the simulated λ*.
        clamped: whether the accountant sees (λ, t), which is what PrivITP releases, or (λ̃, t). Not used for PrivBoN.

    Returns: the bracket; at most 10^9 queries are looked at. PrivITP takes seconds.
    Errors: `InvalidQuantityError`; for PrivBoN with one candidate too, which loses nothing and has no limit.
    """
    total = _gaussian_total(epsilon, delta, guarantee)
    # The tilt under which the Gaussian's mean loss is ε: where the answer is decided, if losses are many and small.
    tilt = max(0.5 * (epsilon / total - 1.0), _LEAST_TILT)
    if isinstance(mechanism, PrivBoN):
        loss = softmax_loss(mechanism, tilt)
    elif rewards is None:
        raise InvalidQuantityError("rewards", None, "a reward law for PrivITP")
    else:
        query = worst_query(mechanism, rewards, tilt, seed, clamped=clamped)
        coarse = query.loss(max(query.scale / _COARSE, query.least_step))
        if coarse.mean() > epsilon:
            # One query is dearer than the budget: its own δ is no small tail, and a tilt would only lose digits.
            query = replace(query, tilt=0.0)
            coarse = query.loss(coarse.step)
        copies = max(1.0, epsilon / max(coarse.mean(), _LEAST))
        window = 20.0 * math.sqrt(copies * coarse.variance())
        step = _BRACKET * epsilon / math.sqrt(0.5 * copies * math.log(1e3 / delta))
        loss = query.loss(max(step, window / _GRID_MOST, query.least_step))
    return largest_count(loss, epsilon, delta, guarantee)


def softmax_loss(mechanism: PrivBoN, tilt: float) -> PrivacyLoss:
    """Worst loss of a 2Δ/σ-bounded-range mechanism at order 1 + s: two atoms at distance 2Δ/σ, E e^{-L} = 1."""
    if mechanism.candidates == 1:
        raise InvalidQuantityError("candidates", 1, "at least 2: one candidate loses nothing, without limit")
    spread = mechanism.bounded_range()
    high = worst_offset(1.0 + tilt, spread)
    return PrivacyLoss.two_atoms(high, spread, math.expm1(high - spread) / math.expm1(-spread), tilt)


def largest_count(loss: PrivacyLoss, epsilon: float, delta: float, guarantee: Guarantee = "dp") -> Limit:
    """Largest number of independent losses with δ(ε) ≤ δ, bracketed; at most 10^9. Arguments as `composition_limit`."""
    known: dict[int, tuple[float, float]] = {}

    def excess(copies: int, side: int) -> float:
        """log of (low, high)/δ."""
        if copies not in known:
            bracket = loss.trade_off(epsilon, copies, guarantee, at=delta)
            known[copies] = (_log(bracket.low / delta), _log(bracket.high / delta))
        return known[copies][side]

    guess = min(epsilon / max(loss.mean(), _LEAST), _MOST_QUERIES)
    low = _largest(lambda k: excess(k, 1), round(guess), _MOST_QUERIES)
    most = min(4 * (low + 16), _MOST_QUERIES)
    high = _largest(lambda k: excess(k, 0), low, most)
    return Limit(min(low, high), high if high < most else _MOST_QUERIES)


def _gaussian_total(epsilon: float, delta: float, guarantee: Guarantee) -> float:
    """Mean loss μ²/2 of the Gaussian with exactly (ε, δ): what k small losses add up to at the limit, roughly."""
    require_delta(delta)
    if guarantee == "probabilistic":
        z = max(-float(ndtri(delta)), 0.0)
        return 0.5 * (math.sqrt(z * z + 2.0 * require_positive("epsilon", epsilon)) - z) ** 2
    return 0.5 / calibrated_scale(epsilon, delta) ** 2


def _log(ratio: float) -> float:
    return math.log(max(ratio, _LEAST))


def _largest(excess: Callable[[int], float], guess: int, most: int) -> int:
    """Largest k ≤ `most` with excess(k) ≤ 0, for an increasing function; 0 if there is none. Secant, then bisection."""
    low, high = 0, most + 1
    k = min(max(guess, 1), most)
    slope, last = _LOG_SLOPE / k, (0, 0.0)
    for evaluation in count():
        value = excess(k)
        low, high = (k, high) if value <= 0.0 else (low, k)
        if high - low <= 1:
            break
        if evaluation > 0:
            slope = (value - last[1]) / (k - last[0])
        last = (k, value)
        if evaluation < _SECANT_STEPS and slope > 0.0:
            target = k - value / slope
        else:
            target = 0.5 * (low + min(high, 4 * max(low, 1)))
        # One step at most to a quarter or to four times: far from the answer δ is flat and secants go astray.
        k = min(max(math.floor(min(target, 4.0 * k)), low + 1, k // 4), high - 1)
    return low
