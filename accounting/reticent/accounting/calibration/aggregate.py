"""Sum of the releases that arrived: suffix sums at every threshold, their noise, and the transfer to deployment.

With bins b = 0..m and threshold j = 1..m, Z̃_j and F̃_j are the sums over the bins j..m, over d_j = m - j + 1 cells
each, so V_j = d_j Σσ² over the releases that are really there (paper, equation 18, for one of the two sums). Counts
are integers and are added exactly, whatever the order of the releases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from reticent.accounting.calibration.kinds import COUNT_ERROR, ReleaseKind
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.release import Release

__all__ = ["Aggregate", "aggregate", "mixture_transfer"]


@dataclass(frozen=True)
class Aggregate:
    """What the rule reads. Tuples over thresholds have m entries, tuples over sites follow the plan's order.

    Attributes:
        accepted_loss, accepted_nonloss: Z̃_j and F̃_j, noised, never clipped. With "count_error" releases, where F̃_j
            is not released, the latter is Ã_j - Z̃_j.
        noise_variance: V_j, the σ² of all cells in each of the two sums.
        events: N, slots released.
        events_by_site: N_k.
        releases: number of releases.
        transfer: η = ½ Σ|w_k - w̄_k| + Σ w_k γ_k (paper, equation 8).
        contrast_transfer: η, and (1 - r*) for the largest fraction of unfilled slots that the plan allows. An empty
            slot hides a contrast of at most 1 - r*.
        release: kind of the releases.
        accepted: Ã_j, noised; the released counts with "count_error", Z̃_j + F̃_j otherwise.
        least_variance: v0, the least σ² of a release under the plan.
    """

    accepted_loss: tuple[int, ...]
    accepted_nonloss: tuple[int, ...]
    noise_variance: tuple[float, ...]
    events: int
    events_by_site: tuple[int, ...]
    releases: int
    transfer: float
    contrast_transfer: float
    release: ReleaseKind
    accepted: tuple[int, ...]
    least_variance: float

    @property
    def realised_weights(self) -> tuple[float, ...]:
        """w̄_k = N_k/N; zeros before the first release."""
        return tuple(count / self.events if self.events else 0.0 for count in self.events_by_site)


def aggregate(plan: Plan, releases: Iterable[Release]) -> Aggregate:
    """Add up releases that `Transcript.append` has accepted (lengths, sites and noise scales are checked there)."""
    arrived = tuple(releases)
    loss, other = [0] * plan.bins, [0] * plan.bins
    by_site = [0] * len(plan.sites)
    for item in arrived:
        loss = [x + y for x, y in zip(loss, item.loss_counts, strict=True)]
        others = item.all_counts if plan.release == COUNT_ERROR else item.nonloss_counts
        other = [x + y for x, y in zip(other, others, strict=True)]
        by_site[plan.site_index(item.site)] += item.slots
    variance = math.fsum(item.noise_scale**2 for item in arrived)
    m = len(plan.thresholds)
    eta = mixture_transfer([site.weight for site in plan.sites], by_site, [site.drift for site in plan.sites])
    sign = -1 if plan.release == COUNT_ERROR else 1
    Z, Y = _suffix_sums(loss), _suffix_sums(other)
    combined = tuple(y + sign * z for z, y in zip(Z, Y, strict=True))
    return Aggregate(
        accepted_loss=Z,
        accepted_nonloss=combined if plan.release == COUNT_ERROR else Y,
        noise_variance=tuple((m - j) * variance for j in range(m)),
        events=sum(by_site),
        events_by_site=tuple(by_site),
        releases=len(arrived),
        transfer=eta,
        contrast_transfer=eta + (1.0 - plan.target_risk) * plan.max_unfilled,
        release=plan.release,
        accepted=Y if plan.release == COUNT_ERROR else combined,
        least_variance=plan.noise_scale**2,
    )


def mixture_transfer(weights: Iterable[float], events_by_site: Iterable[int], drifts: Iterable[float]) -> float:
    """η = ½ Σ|w_k - w̄_k| + Σ w_k γ_k (paper, equation 8).

    Before the first record the first term is 1, its largest value.
    """
    w, counts, gamma = tuple(weights), tuple(events_by_site), tuple(drifts)
    total = sum(counts)
    drift = math.fsum(x * y for x, y in zip(w, gamma, strict=True))
    if total == 0:
        return 1.0 + drift
    return 0.5 * math.fsum(abs(x - count / total) for x, count in zip(w, counts, strict=True)) + drift


def _suffix_sums(cells: list[int]) -> tuple[int, ...]:
    """Sums over the bins j..m for j = 1..m; bin 0 belongs to no threshold."""
    return tuple(accumulate(reversed(cells[1:])))[::-1]
