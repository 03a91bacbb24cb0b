"""What a rule reads and what it answers, as values, and the protocol of a rule.

Arrays have the m thresholds along the last axis; leading axes are independent trials, rounds, or both, and broadcast.
A rule reads the sums of one time and nothing else, and its bounds hold at all thresholds and all times together.

What the caller must guarantee
------------------------------
* The site, the number of slots, the noise scale and the decision to release are fixed before the records are seen.
* Noise of different cells is independent, centred and σ²-sub-Gaussian; `Sums.variance` is the sum of σ² over the cells
  in the suffix. (The Gaussian is, and so is the discrete Gaussian with parameter σ².) A bin matrix changes what the
  variance is, not what it means.
* `Transfer` bounds, at every time, how far the mean of a slot under the declared deployment mixture can lie from the
  mean over the slots that arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS, RELEASE_KINDS, ReleaseKind

__all__ = [
    "COUNT_ERROR",
    "LARGEST_ACCEPTANCE",
    "LOSS_NONLOSS",
    "NO_TRANSFER",
    "SMALLEST_INDEX",
    "Bounds",
    "Rule",
    "Selection",
    "Sums",
    "Transfer",
    "acceptance_factor",
    "contrast_factor",
    "select",
    "suffix_sums",
]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Selection = Literal["largest_acceptance", "smallest_index"]

LARGEST_ACCEPTANCE: Selection = "largest_acceptance"
SMALLEST_INDEX: Selection = "smallest_index"


@dataclass(frozen=True, eq=False, init=False)
class Sums:
    """Noised suffix sums at every threshold, never clipped.

    Args:
        release: which two sums were released.
        loss: Z̃, accepted loss, (..., m).
        other: F̃, accepted non-loss, for "loss_nonloss"; Ã, accepted count, for "count_error"; (..., m).
        variance: V of the noise in *each* of the two sums, (..., m); 0 without noise.
        events: N, slots released; broadcasts against (..., m): a number, or (..., 1).
        least_variance: v0 > 0, the least σ² that the plan admits. Fixed beforehand; it affects the width of stitched
            noise bounds, not their validity (paper, appendix K).

    Raises:
        ValueError: an unknown kind of release, or v0 not above 0.
    """

    release: ReleaseKind
    loss: Array
    other: Array
    variance: Array
    events: Array
    least_variance: float

    def __init__(
        self,
        release: ReleaseKind,
        loss: ArrayLike,
        other: ArrayLike,
        variance: ArrayLike,
        events: ArrayLike,
        least_variance: float = 1.0,
    ) -> None:
        if release not in RELEASE_KINDS:
            raise ValueError(f"the release must be one of {sorted(RELEASE_KINDS)}, got {release!r}")
        if not 0.0 < least_variance < np.inf:
            raise ValueError(f"least_variance must be finite and above 0, got {least_variance!r}")
        object.__setattr__(self, "release", release)
        for name, value in (("loss", loss), ("other", other), ("variance", variance), ("events", events)):
            object.__setattr__(self, name, np.asarray(value, dtype=np.float64))
        object.__setattr__(self, "least_variance", float(least_variance))

    @property
    def size(self) -> int:
        """m, number of thresholds."""
        return int(self.loss.shape[-1])

    @property
    def nonloss(self) -> Array:
        """F̃, accepted non-loss; for "count_error" it is Ã - Z̃, whose noise has variance 2V and depends on Z̃'s."""
        return self.other if self.release == LOSS_NONLOSS else self.other - self.loss

    @property
    def accepted(self) -> Array:
        """Ã, accepted count."""
        return self.loss + self.other if self.release == LOSS_NONLOSS else self.other

    @property
    def accepted_variance(self) -> Array:
        """V^A, of the noise in Ã: 2V for "loss_nonloss", V for "count_error"."""
        return acceptance_factor(self.release) * self.variance

    def contrast(self, target_risk: float) -> Array:
        """D̃ = Z̃ - r*Ã."""
        r = target_risk
        if self.release == LOSS_NONLOSS:
            return (1.0 - r) * self.loss - r * self.other
        return self.loss - r * self.other

    def contrast_variance(self, target_risk: float) -> Array:
        """V^D, of the noise in D̃: ((1-r*)² + r*²)V for "loss_nonloss", (1 + r*²)V for "count_error"."""
        return contrast_factor(self.release, target_risk) * self.variance


def contrast_factor(release: ReleaseKind, target_risk: float) -> float:
    """V^D/V: the noise in D̃ = Z̃ - r*Ã against that in each of the two sums released."""
    r = target_risk
    return (1.0 - r) ** 2 + r * r if release == LOSS_NONLOSS else 1.0 + r * r


def acceptance_factor(release: ReleaseKind) -> float:
    """V^A/V: the noise in Ã against that in each of the two sums released."""
    return 2.0 if release == LOSS_NONLOSS else 1.0


def suffix_sums(cells: Array) -> Array:
    """Sums over the bins j..m for j = 1..m, along the last axis, which has the bins 0..m."""
    return np.asarray(np.cumsum(cells[..., :0:-1], axis=-1)[..., ::-1], dtype=np.float64)


@dataclass(frozen=True, eq=False, init=False)
class Transfer:
    """From the mean over the slots that arrived to the declared deployment mixture. Broadcasts like `Sums.events`.

    Args:
        contrast: added to upper bounds of the contrast: η, and what unfilled slots can hide. Not negative.
        acceptance: taken from lower bounds of the acceptance: η. Not negative.
    """

    contrast: Array
    acceptance: Array

    def __init__(self, contrast: ArrayLike = 0.0, acceptance: ArrayLike = 0.0) -> None:
        object.__setattr__(self, "contrast", np.asarray(contrast, dtype=np.float64))
        object.__setattr__(self, "acceptance", np.asarray(acceptance, dtype=np.float64))


NO_TRANSFER = Transfer()


@dataclass(frozen=True, eq=False)
class Bounds:
    """A rule's answer at one time (or at many, along leading axes). All of shape (..., m).

    Attributes:
        contrast_upper: d̄, upper bounds of E A(ℓ - r*) under the deployment mixture, rounded up, in [-r*, 1-r*].
        acceptance_lower: a̲, lower bounds of the acceptance under the deployment mixture, rounded down, in [0, 1].
        certified: d̄ ≤ 0 and a̲ ≥ a_min, and so the risk is at most r*.
    """

    contrast_upper: Array
    acceptance_lower: Array
    certified: Mask


class Rule(Protocol):
    """From sums to bounds. Stateless; a name's meaning never changes.

    Attributes:
        name: as a plan registers it.
        releases: kinds of release it reads.
        selection: how it picks among certified thresholds; see `select`.
        serves: whether a plan may name it. A rule that is only for studies says False, and is refused elsewhere.
    """

    @property
    def name(self) -> str: ...
    @property
    def releases(self) -> frozenset[ReleaseKind]: ...
    @property
    def selection(self) -> Selection: ...
    @property
    def serves(self) -> bool: ...

    def failure_probabilities(self, claim: Claim) -> Mapping[str, float]:
        """By name; the bounds hold at all times and thresholds with probability at least 1 - their sum."""
        ...

    def certified(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Mask:
        """Certified thresholds only, (..., m): the same as `bounds(...).certified`, faster."""
        ...

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """All bounds, (..., m)."""
        ...


def select(selection: Selection, bounds: Bounds) -> NDArray[np.int64]:
    """Index of the chosen threshold, shape (...); -1 where none is certified.

    "largest_acceptance" takes the certified threshold with the largest a̲, the smaller index on a tie (paper, equation
    30). "smallest_index" takes the first; acceptance falls with the threshold, so it accepts most. They differ where
    noise makes a̲ rise with the threshold: smaller thresholds sum more cells, and so more noise. Any choice from the
    transcript is valid, because the bounds hold at all thresholds together.
    """
    mask = bounds.certified
    if selection == SMALLEST_INDEX:
        first = mask.argmax(axis=-1)
    else:
        first = np.where(mask, bounds.acceptance_lower, -1.0).argmax(axis=-1)
    return np.asarray(np.where(mask.any(axis=-1), first, -1), dtype=np.int64)
