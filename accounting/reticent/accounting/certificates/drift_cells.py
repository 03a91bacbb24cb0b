"""Histograms that a drift audit compares: exact ones of labelled records, and noised ones of transcripts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

from reticent.accounting.calibration.kinds import COUNT_ERROR
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.release import RecordInvalidError
from reticent.accounting.calibration.transcript import Transcript
from reticent.accounting.errors import AccountingError

__all__ = ["CellCounts", "NotComparable", "counts_of_records", "counts_of_transcript", "require_comparable"]


class NotComparable(AccountingError, ValueError):  # noqa: N818 - reads as a verdict
    """Two samples that do not speak of the same cells.

    Attributes:
        field: what differs.
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field


@dataclass(frozen=True, repr=False)
class CellCounts:
    """A histogram of one sample over the cells of a plan. Private where it has no noise, so its repr shows nothing.

    Attributes:
        loss, nonloss: counts of the bins 0..m, noised or not; not clipped. Fractional losses may be split.
        slots: records, and empty slots, > 0.
        proxy: s, half the sum of 4 L²N²σ² over the noise variables; 0 without noise.
        noise_variance: sum of the variances of the noise in all cells.
        unfilled: largest share of the slots that may be empty.
        looks: at how many times the sampling could have stopped because of what it had found; 1 for a fixed sample.
    """

    loss: tuple[float, ...]
    nonloss: tuple[float, ...]
    slots: int
    proxy: float = 0.0
    noise_variance: float = 0.0
    unfilled: float = 0.0
    looks: int = 1

    def __repr__(self) -> str:
        return f"CellCounts(slots={self.slots}, private)"

    def joined(self, threshold: int) -> CellCounts:
        """The three cells at threshold j = 1..m: rejected, accepted loss, accepted non-loss."""
        rejected = math.fsum(self.loss[:threshold]) + math.fsum(self.nonloss[:threshold])
        # The non-losses of a rejected bin stand nowhere: they are part of its one cell.
        return replace(
            self,
            loss=(rejected, math.fsum(self.loss[threshold:])),
            nonloss=(0.0, math.fsum(self.nonloss[threshold:])),
        )


def counts_of_records(plan: Plan, records: Iterable[tuple[float, float]]) -> CellCounts:
    """The exact histogram of labelled records (score, loss), a fractional loss split between its two cells.

    Raises:
        RecordInvalidError: a score or loss that does not lie in [0, 1]. Its values are not repeated.
        ValueError: no record.
    """
    loss, nonloss, slots = [0.0] * plan.bins, [0.0] * plan.bins, 0
    for index, (score, value) in enumerate(records):
        if not (0.0 <= score <= 1.0 and 0.0 <= value <= 1.0):
            raise RecordInvalidError(index, "score or loss does not lie in [0, 1]")
        cell = bisect_right(plan.thresholds, score)
        loss[cell] += value
        nonloss[cell] += 1.0 - value
        slots += 1
    if slots == 0:
        raise ValueError("a sample needs at least one record")
    return CellCounts(tuple(loss), tuple(nonloss), slots)


def counts_of_transcript(transcript: Transcript) -> dict[str, CellCounts]:
    """The noised histogram of every site that has released, over all its releases."""
    plan = transcript.plan
    is_difference = plan.release == COUNT_ERROR
    found: dict[str, CellCounts] = {}
    for entry in transcript.entries:
        release = entry.release
        loss = release.loss_counts
        nonloss = (
            tuple(c - e for c, e in zip(release.all_counts, loss, strict=True))
            if is_difference
            else release.nonloss_counts
        )
        before = found.get(release.site, CellCounts((0.0,) * plan.bins, (0.0,) * plan.bins, 0))
        noise = plan.bins * release.noise_scale**2
        found[release.site] = CellCounts(
            tuple(x + y for x, y in zip(before.loss, loss, strict=True)),
            tuple(x + y for x, y in zip(before.nonloss, nonloss, strict=True)),
            before.slots + release.slots,
            before.proxy + (2.5 if is_difference else 1.0) * noise,
            before.noise_variance + (3.0 if is_difference else 2.0) * noise,
            plan.max_unfilled,
            plan.schedule.rounds,
        )
    return found


def require_comparable(calibration: Plan, deployment: Plan) -> None:
    """Refuse a plan whose releases do not speak of the same cells of the same answers.

    Raises:
        NotComparable: other thresholds, loss, score or fingerprint.
    """
    for field in ("thresholds", "loss", "score", "fingerprint"):
        if getattr(calibration, field) != getattr(deployment, field):
            raise NotComparable(field, "the two plans differ in it")
