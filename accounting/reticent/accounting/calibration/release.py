"""One site's noised histogram of one round: made at the site, the only thing that leaves it.

A record with score S and binary loss ℓ adds 1 to one of 2(m+1) cells: to the loss cell of its bin when ℓ = 1, to the
non-loss cell otherwise. Replacing one slot's contribution by nothing moves the histogram by 1 in one coordinate, so
its L2 sensitivity is 1, and an independent discrete Gaussian of scale σ on *every* cell makes it (ε, δ)-DP (zero-out
adjacency). A fractional loss is first rounded by a coin with probability ℓ: the mean is unchanged, and the rule's
bound on the exponential is then an equality.

Slots and unfilled slots
------------------------
N counts slots, and is public. A slot without a record adds nothing (A = 0). For the acceptance floor that errs on the
safe side. For the risk it does not: when sites differ, empty slots at a site whose contrast is positive hide it, and
the realised mixture is no longer the one that N_k tells. So the fraction of unfilled slots is bounded in the plan
(`max_unfilled`, 0 unless declared) and paid for in `Aggregate.contrast_transfer`; a batch with fewer records is
refused here. The bound holds when it is decided before the records are seen which slots stay empty. The site's
decision to release must not depend on what its records say; that it had enough of them is treated as public, like N.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from reticent.accounting.calibration.documents import read_fields, read_float, read_int, read_ints, read_text
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.errors import AccountingError
from reticent.accounting.noise import bernoulli, discrete_gaussian

__all__ = ["RecordInvalidError", "Release", "SiteBatch", "WrongBatchSizeError", "make_release"]


class RecordInvalidError(AccountingError, ValueError):
    """A labelled record cannot be used. The message names its position and never repeats its values.

    Attributes:
        index: position in the batch, from 0.
        problem: what is wrong with it.
    """

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"record {index}: {problem}")
        self.index = index
        self.problem = problem


class WrongBatchSizeError(AccountingError, ValueError):
    """The site has more or fewer records than the round asks for.

    Attributes:
        records: how many there are.
        least, most: how many the plan allows.
    """

    def __init__(self, records: int, least: int, most: int) -> None:
        super().__init__(f"this release takes {least} to {most} records, got {records}")
        self.records = records
        self.least = least
        self.most = most


@dataclass(frozen=True, repr=False)
class SiteBatch:
    """Exact histogram of one site's records of one round. Private: it stays at the site, and its repr shows nothing.

    Attributes:
        plan_digest, round_number, site, slots: what was asked for.
        loss_counts, nonloss_counts: one integer for each bin 0..m.
    """

    plan_digest: str
    round_number: int
    site: str
    slots: int
    loss_counts: tuple[int, ...]
    nonloss_counts: tuple[int, ...]

    def __repr__(self) -> str:
        return f"SiteBatch(round_number={self.round_number}, site={self.site!r}, slots={self.slots}, private)"

    @classmethod
    def from_records(
        cls, plan: Plan, round_number: int, site: str, records: Iterable[tuple[float, float]]
    ) -> SiteBatch:
        """Bin the records of one batch.

        Args:
            records: pairs (score, loss), both in [0, 1]. Each record may enter one release only.

        Raises:
            ValueError: the plan has no such round or site, or asks the site for nothing in it.
            WrongBatchSizeError: not as many records as the plan asks for.
            RecordInvalidError: a score or loss outside [0, 1], or not a number.
        """
        slots = plan.slots(round_number, site)
        if slots == 0:
            raise ValueError(f"the plan asks {site!r} for nothing in round {round_number}")
        batch = tuple(records)
        least = max(0, slots - math.floor(plan.max_unfilled * slots))
        if not least <= len(batch) <= slots:
            raise WrongBatchSizeError(len(batch), least, slots)
        counts = [[0] * plan.bins, [0] * plan.bins]
        for index, (score, loss) in enumerate(batch):
            _check_record(index, score, loss)
            counts[0 if bernoulli(loss) else 1][bisect_right(plan.thresholds, score)] += 1
        return cls(plan.digest, round_number, site, slots, tuple(counts[0]), tuple(counts[1]))


@dataclass(frozen=True)
class Release:
    """One site's noised histogram. Public. Counts may be negative, and are never clipped.

    Attributes:
        plan_digest: of the plan that it answers.
        round_number: from 1.
        site: name in the plan.
        slots: slots of this release.
        loss_counts, nonloss_counts: noised accepted loss and non-loss of bins 0..m.
        noise_scale: σ of the discrete Gaussian on each cell.
    """

    plan_digest: str
    round_number: int
    site: str
    slots: int
    loss_counts: tuple[int, ...]
    nonloss_counts: tuple[int, ...]
    noise_scale: float

    def to_json(self) -> dict[str, object]:
        """The release as JSON values."""
        return {
            "plan_digest": self.plan_digest,
            "round": self.round_number,
            "site": self.site,
            "slots": self.slots,
            "loss_counts": list(self.loss_counts),
            "nonloss_counts": list(self.nonloss_counts),
            "noise_scale": self.noise_scale,
        }

    @classmethod
    def from_json(cls, value: object, where: str = "release") -> Release:
        """Read a release strictly. Whether it answers the plan is the transcript's question.

        Raises:
            InvalidDocumentError: a missing, unknown or ill-typed field.
        """
        names = ("plan_digest", "round", "site", "slots", "loss_counts", "nonloss_counts", "noise_scale")
        doc = read_fields(value, where, names)
        return cls(
            read_text(doc["plan_digest"], f"{where}.plan_digest"),
            read_int(doc["round"], f"{where}.round"),
            read_text(doc["site"], f"{where}.site"),
            read_int(doc["slots"], f"{where}.slots"),
            read_ints(doc["loss_counts"], f"{where}.loss_counts"),
            read_ints(doc["nonloss_counts"], f"{where}.nonloss_counts"),
            read_float(doc["noise_scale"], f"{where}.noise_scale"),
        )


def make_release(plan: Plan, batch: SiteBatch, *, noise: Callable[[], int] | None = None) -> Release:
    """Add noise to every cell, also to those that the batch left empty.

    Call it once for a batch, and keep what it returns: a second release of the same records doubles their privacy loss.

    Args:
        noise: one draw of the discrete Gaussian with scale `plan.noise_scale`. For tests; left out, it is drawn
            exactly from the operating system's generator.

    Raises:
        ValueError: the batch was made for another plan.
    """
    if batch.plan_digest != plan.digest:
        raise ValueError(f"the batch was made for plan {batch.plan_digest}, not for {plan.digest}")
    draw = partial(discrete_gaussian, plan.noise_scale) if noise is None else noise
    return Release(
        plan_digest=plan.digest,
        round_number=batch.round_number,
        site=batch.site,
        slots=batch.slots,
        loss_counts=tuple(count + draw() for count in batch.loss_counts),
        nonloss_counts=tuple(count + draw() for count in batch.nonloss_counts),
        noise_scale=plan.noise_scale,
    )


def _check_record(index: int, score: object, loss: object) -> None:
    for name, value in (("score", score), ("loss", loss)):
        if not isinstance(value, (int, float)):
            raise RecordInvalidError(index, f"the {name} is not a number")
        if not 0.0 <= value <= 1.0:
            raise RecordInvalidError(index, f"the {name} does not lie in [0, 1]")
