"""When to look, from development records: the rule is simulated on them. It affects power only, never validity."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import LOSS_NONLOSS, ReleaseKind
from reticent.accounting.calibration.schedule import first_look, least_events
from reticent.accounting.certificates.bounds import Rule, Sums, suffix_sums

__all__ = ["PAPER_LOOKS", "development_looks", "expected_look"]

Array = NDArray[np.float64]

PAPER_LOOKS: tuple[int, ...] = tuple(range(1000, 30_001, 1000))
"""30 rounds of 1,000 records (paper, table 4)."""

_TRIALS = 200
_GROWTH = 1.4
_AFTER_EXPECTED = 1.2


def development_looks(
    cells: Array, rule: Rule, claim: Claim, release: ReleaseKind, noise_scale: float, sites: int, most: int, seed: int
) -> tuple[int, ...]:
    """Looks at 1.2 times the events at which half of the runs certify on development, then every 1.4 times more.

    The last look is at `most` exactly, and no other one is in the second half. Where half of the runs never certify,
    the first look is the design's without development records.

    Args:
        cells: frequencies of (non-loss, loss) by bin in development, (m+1, 2).
        most: events at hand.
    """
    half = expected_look(cells, rule, claim, release, noise_scale, sites, most, seed)
    start = first_look(claim, len(cells) - 1, noise_scale, sites) if half is None else math.ceil(_AFTER_EXPECTED * half)
    looks = []
    # With less than half of the events left, another look would add more noise than it could save records.
    while 2 * start <= most:
        looks.append(start)
        start = math.ceil(start * _GROWTH)
    return (*looks, most)


def expected_look(
    cells: Array, rule: Rule, claim: Claim, release: ReleaseKind, noise_scale: float, sites: int, most: int, seed: int
) -> int | None:
    """Events at which half of the runs certify at a single look, within about 3 %; None if not with `most` either."""

    def fires(events: int) -> bool:
        return _fraction(cells, rule, claim, release, noise_scale, sites, events, seed) >= 0.5

    if not fires(most):
        return None
    return least_events(fires, most, 32)


def _fraction(
    cells: Array, rule: Rule, claim: Claim, release: ReleaseKind, scale: float, sites: int, events: int, seed: int
) -> float:
    rng = np.random.default_rng([seed, 3, events])
    drawn = rng.multinomial(events, cells.ravel() / cells.sum(), size=_TRIALS).reshape(_TRIALS, *cells.shape)
    nonloss, loss = drawn[:, :, 0].astype(np.float64), drawn[:, :, 1].astype(np.float64)
    other = nonloss if release == LOSS_NONLOSS else nonloss + loss
    variance = sites * scale**2
    noised = [suffix_sums(x + np.rint(rng.normal(0.0, math.sqrt(variance), x.shape))) for x in (loss, other)]
    m = len(cells) - 1
    least = scale**2 if scale > 0.0 else 1.0
    sums = Sums(release, noised[0], noised[1], variance * np.arange(m, 0, -1.0), float(events), least)
    return float(rule.certified(claim, sums).any(axis=-1).mean())
