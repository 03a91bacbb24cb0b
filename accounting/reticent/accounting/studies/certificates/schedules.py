"""When a simulated calibration looks. It affects power only, never validity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.plan import Schedule
from reticent.accounting.calibration.schedule import Design, expected_first_look, first_look
from reticent.accounting.studies.certificates.populations import Population
from reticent.accounting.studies.certificates.streams import even

__all__ = ["HORIZON", "SCHEDULES", "development_schedule", "own_schedule", "paper_schedule", "schedule_slots"]

Counts = NDArray[np.int64]

SCHEDULES: tuple[str, ...] = ("paper", "own", "dev", "long")
HORIZON = 30_000
"""Events at which every schedule but "long" ends: the paper's 30 rounds of 1000."""

_GROWTH = 1.4
_DEVELOPMENT_RECORDS = 500
_DEVELOPMENT_TRIALS = 200
_DEVELOPMENT_LEAD = 1.2


def schedule_slots(name: str, claim: Claim, population: Population, noise_scale: float, seed: int) -> Counts:
    """Planned slots, (rounds, K), of a schedule by name.

    Args:
        name: "paper", "own", "dev", or "long": 400 rounds of 1000, which the paper gives the capital heuristic.
        seed: of the development split ("dev" only).

    Raises:
        ValueError: no such schedule.
        NeverFiresError: "dev", and the e-process does not fire on the development split within the horizon.
    """
    if name == "paper":
        return paper_schedule(population.sites)
    if name == "long":
        return even(400, 1000, population.sites)
    if name == "own":
        return own_schedule(claim, population.size, noise_scale, population.sites)
    if name == "dev":
        return development_schedule(claim, population, noise_scale, seed)
    raise ValueError(f"the schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")


def paper_schedule(sites: int) -> Counts:
    """30 rounds of 1000 records (paper, table 4: 5 sites of 200)."""
    return even(30, 1000, sites)


def own_schedule(claim: Claim, m: int, noise_scale: float, sites: int) -> Counts:
    """First look N0 = max(500, sqrt(2 x0 V1)/0.02), then every 1.4 times more, up to the horizon."""
    return _geometric(first_look(claim, m, noise_scale, sites), sites)


def development_schedule(claim: Claim, population: Population, noise_scale: float, seed: int) -> Counts:
    """First look at 1.2 times the N at which half of the simulated runs of the e-process fire on a development split.

    The split holds 500 records of the declared mixture, independent of all that are calibrated with.
    """
    records, thresholds = population.draw_records(_DEVELOPMENT_RECORDS, seed)
    design = Design(claim, thresholds, noise_scale, population.sites)
    found = expected_first_look(records, design, _DEVELOPMENT_TRIALS, seed, max_events=HORIZON)
    return _geometric(round(_DEVELOPMENT_LEAD * found), population.sites)


def _geometric(first: int, sites: int) -> Counts:
    looks = [n for n in Schedule(min(first, HORIZON), _GROWTH, 30).looks() if n < HORIZON]
    shares = -(-np.array([*looks, HORIZON], dtype=np.int64) // sites)
    return np.repeat(np.diff(shares, prepend=0)[:, None], sites, axis=1)
