"""One site's noised histogram of one round: made at the site, the only thing that leaves it.

A record with score S and binary loss ℓ adds 1 to one of 2(m+1) cells: to the loss cell of its bin when ℓ = 1, to the
non-loss cell otherwise. Replacing one slot's contribution by nothing moves the histogram by 1 in one coordinate, so
its L2 sensitivity is 1, and an independent discrete Gaussian of scale σ on *every* cell makes it (ε, δ)-DP (zero-out
adjacency). A fractional loss is first rounded by a coin with probability ℓ: the mean is unchanged, and the rule's
bound on the exponential is then an equality.

A "count_error" release (paper, equations 13 to 15) has the losses and the counts of all records of each bin instead.
One slot then moves two cells, and the noise of such a plan is calibrated for that (`noise_scale.py`).

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

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from reticent.accounting.calibration.documents import (
    MAX_INTEGER,
    InvalidDocumentError,
    read_fields,
    read_float,
    read_int,
    read_ints,
    read_object,
    read_text,
)
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS, ReleaseKind
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.errors import AccountingError
from reticent.accounting.noise import bernoulli, discrete_gaussians

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
        cls,
        plan: Plan,
        round_number: int,
        site: str,
        records: Iterable[tuple[float, float]],
        *,
        slots: int | None = None,
    ) -> SiteBatch:
        """Bin the records of one batch.

        Args:
            records: pairs (score, loss), both in [0, 1]. Each record may enter one release only.
            slots: what the open round asks. Left out: what the plan says, if the plan alone decides it.

        Raises:
            ValueError: the plan has no such round or site, or asks the site for nothing in it.
            WrongBatchSizeError: not as many records as the plan asks for.
            RecordInvalidError: a score or loss outside [0, 1], or not a number.
        """
        if slots is None:
            if not plan.recruitment.is_fixed:
                raise ValueError("under this plan the open round says how many slots it asks")
            slots = plan.slots(round_number, site)
        if slots < 1:
            raise ValueError(f"the plan asks {site!r} for nothing in round {round_number}")
        batch = tuple(records)
        least = plan.least_records(slots)
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
        all_counts: noised counts of all records of bins 0..m in a "count_error" release, where `nonloss_counts` is ().
            Empty in a "loss_nonloss" release.
    """

    plan_digest: str
    round_number: int
    site: str
    slots: int
    loss_counts: tuple[int, ...]
    nonloss_counts: tuple[int, ...]
    noise_scale: float
    all_counts: tuple[int, ...] = ()

    @property
    def kind(self) -> ReleaseKind:
        """What it holds; see `kinds`."""
        return COUNT_ERROR if self.all_counts else LOSS_NONLOSS

    def problem(self, plan: Plan) -> str | None:
        """What is wrong with the form of the counts, or None. Never depends on what they say."""
        if self.kind != plan.release or (self.kind == COUNT_ERROR and self.nonloss_counts):
            return f"the plan asks for a {plan.release!r} release"
        for name, counts in (("loss_counts", self.loss_counts), _other_counts(self)):
            if len(counts) != plan.bins:
                return f"{name} has {len(counts)} cells instead of {plan.bins}"
            if any(type(count) is not int or abs(count) > MAX_INTEGER for count in counts):
                return f"{name} holds something that is not an integer of at most 2^53"
        return None

    def to_json(self) -> dict[str, object]:
        """The release as JSON values."""
        name, counts = _other_counts(self)
        return {
            "plan_digest": self.plan_digest,
            "round": self.round_number,
            "site": self.site,
            "slots": self.slots,
            "loss_counts": list(self.loss_counts),
            name: list(counts),
            "noise_scale": self.noise_scale,
        }

    @classmethod
    def from_json(cls, value: object, where: str = "release") -> Release:
        """Read a release strictly. Whether it answers the plan is the transcript's question.

        Raises:
            InvalidDocumentError: a missing, unknown or ill-typed field.
        """
        other = "all_counts" if "all_counts" in read_object(value, where) else "nonloss_counts"
        names = ("plan_digest", "round", "site", "slots", "loss_counts", other, "noise_scale")
        doc = read_fields(value, where, names)
        counts = read_ints(doc[other], f"{where}.{other}")
        if other == "all_counts" and not counts:
            raise InvalidDocumentError(f"{where}.all_counts", "is empty")
        return cls(
            read_text(doc["plan_digest"], f"{where}.plan_digest"),
            read_int(doc["round"], f"{where}.round"),
            read_text(doc["site"], f"{where}.site"),
            read_int(doc["slots"], f"{where}.slots"),
            read_ints(doc["loss_counts"], f"{where}.loss_counts"),
            counts if other == "nonloss_counts" else (),
            read_float(doc["noise_scale"], f"{where}.noise_scale"),
            counts if other == "all_counts" else (),
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
    others: tuple[int, ...] = batch.nonloss_counts
    if plan.release == COUNT_ERROR:
        others = tuple(x + y for x, y in zip(batch.loss_counts, batch.nonloss_counts, strict=True))
    cells = (*batch.loss_counts, *others)
    draws = discrete_gaussians(plan.noise_scale, len(cells)) if noise is None else [noise() for _ in cells]
    noised = tuple(count + draw for count, draw in zip(cells, draws, strict=True))
    losses, others = noised[: plan.bins], noised[plan.bins :]
    return Release(
        plan_digest=plan.digest,
        round_number=batch.round_number,
        site=batch.site,
        slots=batch.slots,
        loss_counts=losses,
        nonloss_counts=() if plan.release == COUNT_ERROR else others,
        noise_scale=plan.noise_scale,
        all_counts=others if plan.release == COUNT_ERROR else (),
    )


def _other_counts(release: Release) -> tuple[str, tuple[int, ...]]:
    if release.kind == COUNT_ERROR:
        return "all_counts", release.all_counts
    return "nonloss_counts", release.nonloss_counts


def _check_record(index: int, score: object, loss: object) -> None:
    for name, value in (("score", score), ("loss", loss)):
        if not isinstance(value, (int, float)):
            raise RecordInvalidError(index, f"the {name} is not a number")
        if not 0.0 <= value <= 1.0:
            raise RecordInvalidError(index, f"the {name} does not lie in [0, 1]")
