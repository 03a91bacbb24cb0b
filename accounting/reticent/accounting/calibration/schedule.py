"""When to look: choosing first look, score and target before calibration. It affects power only, never validity.

Few large releases carry less noise than many small ones, so the first look should come where the rule is likely to
fire. With a development split (labelled records that calibration will not use) the rule itself is simulated to find
that place.

The simulations use numpy's seeded generator. They run on development records, release nothing and protect nothing; no
number drawn here is ever privacy noise, and nothing in the calibration path imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.bounds import suffix_sums
from reticent.accounting.certificates.eprocess import certified_mask
from reticent.accounting.errors import AccountingError

__all__ = [
    "Design",
    "NeverFiresError",
    "Outlook",
    "compare",
    "expected_first_look",
    "first_look",
    "fraction_certified",
    "least_events",
]

_LEAST_FIRST_LOOK = 500
_USEFUL_CONTRAST = 0.02


class NeverFiresError(AccountingError, ValueError):
    """Half of the simulated runs never certify.

    Attributes:
        max_events: the largest number of events that was tried.
        fraction: of the runs that certified there.
    """

    def __init__(self, max_events: int, fraction: float) -> None:
        super().__init__(f"with {max_events} events {fraction:.0%} of the simulated runs certify, fewer than half")
        self.max_events = max_events
        self.fraction = fraction


@dataclass(frozen=True)
class Design:
    """The part of a plan that the simulation needs.

    Args:
        claim: r*, a_min, α_D, α_A.
        thresholds: increasing, in [0, 1].
        noise_scale: σ of each cell of one release; 0 for a calibration without privacy.
        sites: K ≥ 1, releases a round.
        contrast_transfer, acceptance_transfer: as in `Aggregate`; 0 when the realised mixture is the declared one.
    """

    claim: Claim
    thresholds: tuple[float, ...]
    noise_scale: float
    sites: int = 1
    contrast_transfer: float = 0.0
    acceptance_transfer: float = 0.0


@dataclass(frozen=True)
class Outlook:
    """What a candidate score promises for a target.

    Attributes:
        score: its name.
        target_risk: r*.
        first_look: events at which half of the simulated runs certify, or None if they never do.
        acceptance: fraction of development records at or above the lowest threshold whose development risk meets the
            target.
    """

    score: str
    target_risk: float
    first_look: int | None
    acceptance: float


def first_look(claim: Claim, m: int, noise_scale: float, sites: int) -> int:
    """N0 = max(500, sqrt(2 x0 V1)/0.02), x0 = log(m/α_D) + 2, V1 = ((1-r*)² + r*²)·4Kσ²: without a development split.

    There the noise of one round, over four bins, is as large as a mean contrast of -0.02 can outweigh.
    """
    r = claim.target_risk
    needed = math.log(m / claim.alpha_risk) + 2.0
    variance = ((1.0 - r) ** 2 + r**2) * 4.0 * sites * noise_scale**2
    return max(_LEAST_FIRST_LOOK, math.ceil(math.sqrt(2.0 * needed * variance) / _USEFUL_CONTRAST))


def fraction_certified(
    records: Sequence[tuple[float, float]], design: Design, events: int, trials: int, seed: int
) -> float:
    """Fraction of simulated runs that certify some threshold at a single look after `events` events.

    Args:
        records: development pairs (score, loss) in [0, 1]; events are drawn from them with replacement.
    """
    cells = _cell_frequencies(records, design.thresholds)
    return _fraction(cells, design, events, trials, np.random.default_rng([seed, events]))


def expected_first_look(
    dev_records: Sequence[tuple[float, float]], design: Design, trials: int, seed: int, *, max_events: int = 200_000
) -> int:
    """Events N at which half of the runs of the whole rule certify at a single look, to within about 2 %.

    Start the schedule at 1.0 to 1.4 times this and let it grow by 1.4. The development records must not be used again
    in the calibration, or the thresholds and the looks would depend on them.

    Raises:
        ValueError: no records, a value outside [0, 1], or no trials.
        NeverFiresError: half of the runs do not certify with `max_events` either.
    """
    if trials < 1 or max_events < 1:
        raise ValueError(f"trials and max_events must be at least 1, got {trials} and {max_events}")
    cells = _cell_frequencies(dev_records, design.thresholds)

    def fires(events: int) -> float:
        return _fraction(cells, design, events, trials, np.random.default_rng([seed, events]))

    fraction = fires(max_events)
    if fraction < 0.5:
        raise NeverFiresError(max_events, fraction)
    return least_events(lambda events: fires(events) >= 0.5, max_events, 50)


def least_events(fires: Callable[[int], bool], most: int, fineness: int) -> int:
    """The least number of events that is enough, to within one part in `fineness`, from above.

    Args:
        fires: whether so many events are enough; they are from some number on.
        most: known to be enough.
    """
    low, high = 1, most  # fires(high) throughout
    while high - low > 1 + low // fineness:
        middle = max(low + 1, round(math.sqrt(low * high)))
        low, high = (low, middle) if fires(middle) else (middle, high)
    return high


def compare(
    dev_records: Mapping[str, Sequence[tuple[float, float]]],
    designs: Mapping[str, Design],
    targets: Iterable[float],
    trials: int,
    seed: int,
    *,
    max_events: int = 200_000,
) -> tuple[Outlook, ...]:
    """Expected first look for every candidate score and target, the most promising first.

    Args:
        dev_records: development pairs for each candidate score.
        designs: for each score a design with its own thresholds; its target is replaced by each of `targets`.

    Returns:
        Sorted by target, then by first look; what never fires comes last in its target.
    """
    found = []
    for name, records in dev_records.items():
        for target in targets:
            design = replace(designs[name], claim=replace(designs[name].claim, target_risk=target))
            try:
                look: int | None = expected_first_look(records, design, trials, seed, max_events=max_events)
            except NeverFiresError:
                look = None
            found.append(Outlook(name, target, look, _acceptance_at_target(records, design)))
    return tuple(sorted(found, key=lambda o: (o.target_risk, o.first_look is None, o.first_look or 0, o.score)))


def _cell_frequencies(records: Sequence[tuple[float, float]], thresholds: tuple[float, ...]) -> NDArray[np.float64]:
    """Probabilities of the 2(m+1) cells, losses first; a fractional loss is shared between the two."""
    if len(records) == 0:
        raise ValueError("the simulation needs development records")
    pairs = np.asarray(records, dtype=np.float64).reshape(len(records), 2)
    if not np.all((pairs >= 0.0) & (pairs <= 1.0)):
        raise ValueError("scores and losses must lie in [0, 1]")
    bins = np.searchsorted(np.asarray(thresholds), pairs[:, 0], side="right")
    size = len(thresholds) + 1
    loss = np.bincount(bins, weights=pairs[:, 1], minlength=size)
    nonloss = np.bincount(bins, weights=1.0 - pairs[:, 1], minlength=size)
    cells = np.concatenate([loss, nonloss])
    return np.asarray(cells / cells.sum(), dtype=np.float64)


def _fraction(cells: NDArray[np.float64], design: Design, events: int, trials: int, rng: np.random.Generator) -> float:
    m = len(design.thresholds)
    variance = design.sites * design.noise_scale**2
    counts = rng.multinomial(events, cells, size=trials).astype(np.float64)
    counts += np.rint(rng.normal(0.0, math.sqrt(variance), size=counts.shape))
    loss, nonloss = counts[:, : m + 1], counts[:, m + 1 :]
    mask = certified_mask(
        design.claim,
        suffix_sums(loss),
        suffix_sums(nonloss),
        variance * np.arange(m, 0, -1),
        events,
        contrast_transfer=design.contrast_transfer,
        acceptance_transfer=design.acceptance_transfer,
    )
    return float(mask.any(axis=-1).mean())


def _acceptance_at_target(records: Sequence[tuple[float, float]], design: Design) -> float:
    cells = _cell_frequencies(records, design.thresholds)
    m = len(design.thresholds)
    loss = suffix_sums(cells[: m + 1])
    accepted = loss + suffix_sums(cells[m + 1 :])
    meets = (loss <= design.claim.target_risk * accepted) & (accepted > 0.0)
    return float(accepted[meets].max(initial=0.0))
