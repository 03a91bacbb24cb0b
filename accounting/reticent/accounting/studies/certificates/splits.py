"""Development, calibration and held-out records, and what development fixes: the score's map and the thresholds.

Records that share a group stay on one side (paper, section 6: all outputs that share a query are assigned together).
Only development records decide the map, the thresholds and the looks, so the certificate may treat them as fixed.

The map into [0, 1] is min-max with clipping: S = (s - low)/(high - low), cut to [0, 1], low and high the least and
greatest raw score in development. Thresholds are quantiles of S in development, so any increasing map would give the
same certificate; this one is two numbers, which a gate can compute. Several columns are first joined by least squares
of 1 - ℓ on the standardised columns, in development.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.studies.certificates.tables import LabelledRecords, RecordsInvalidError

__all__ = [
    "DEFAULT_FRACTIONS",
    "SCORE_MAP",
    "Fractions",
    "ScoreMap",
    "Split",
    "fit_score_map",
    "parse_fractions",
    "split_records",
]

Array = NDArray[np.float64]
SCORE_MAP = "min-max of the development scores, clipped to [0, 1]"
_PARTS = ("dev", "cal", "heldout")


@dataclass(frozen=True)
class Fractions:
    """Parts of the groups: development, calibration, held out. Each above 0; together at most 1."""

    dev: float
    cal: float
    heldout: float

    def __post_init__(self) -> None:
        parts = (self.dev, self.cal, self.heldout)
        if not all(0.0 < part < 1.0 for part in parts) or math.fsum(parts) > 1.0 + 1e-9:
            raise ValueError(f"the parts of a split lie above 0 and sum to at most 1, got {parts}")


def parse_fractions(text: str) -> Fractions:
    """Read "dev:0.2,cal:0.5,heldout:0.3".

    Raises:
        ValueError: other parts, or values out of range.
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        parts = {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        parts = {}
    if sorted(parts) != sorted(_PARTS):
        raise ValueError(f"a split is written dev:0.2,cal:0.5,heldout:0.3, got {text!r}")
    return Fractions(**parts)


DEFAULT_FRACTIONS = Fractions(0.2, 0.5, 0.3)


@dataclass(frozen=True)
class Split:
    """Three disjoint parts of the records."""

    dev: LabelledRecords
    cal: LabelledRecords
    heldout: LabelledRecords


def split_records(records: LabelledRecords, fractions: Fractions, seed: int) -> Split:
    """Deal whole groups at random: the first round(dev·G) of a random order of the G groups, then the next ones.

    Raises:
        RecordsInvalidError: a part would be empty.
    """
    order = np.random.default_rng([seed, 1]).permutation(int(records.group.max()) + 1)
    first = round(fractions.dev * len(order))
    second = round((fractions.dev + fractions.cal) * len(order))
    third = round((fractions.dev + fractions.cal + fractions.heldout) * len(order))
    parts = []
    for name, chosen in zip(_PARTS, (order[:first], order[first:second], order[second:third]), strict=True):
        rows = np.flatnonzero(np.isin(records.group, chosen))
        if len(rows) == 0:
            raise RecordsInvalidError(0, f"the split leaves no records for {name}")
        parts.append(records.take(rows))
    return Split(*parts)


@dataclass(frozen=True)
class ScoreMap:
    """The score as development fixed it.

    Attributes:
        names, coefficients: raw score s = Σ coefficient × column.
        low, high: raw scores that become 0 and 1.
        thresholds: increasing, in [0, 1].
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    low: float
    high: float
    thresholds: tuple[float, ...]

    def scores(self, records: LabelledRecords) -> Array:
        """S of every record, (n,)."""
        return np.clip((self._raw(records.columns) - self.low) / (self.high - self.low), 0.0, 1.0)

    def bins(self, records: LabelledRecords) -> NDArray[np.int64]:
        """Bin 0..m of every record: the number of thresholds that its score reaches."""
        return np.searchsorted(np.array(self.thresholds), self.scores(records), side="right").astype(np.int64)

    def raw_threshold(self, index: int) -> float:
        """A threshold on the raw score's scale."""
        return self.low + self.thresholds[index] * (self.high - self.low)

    def _raw(self, columns: Array) -> Array:
        return np.asarray(columns @ np.array(self.coefficients), dtype=np.float64)


def fit_score_map(dev: LabelledRecords, thresholds: int, min_acceptance: float) -> ScoreMap:
    """Map and thresholds from development records.

    The m thresholds are lower quantiles of S at levels evenly spaced from 0 to 1 - 2 a_min: the highest one accepts
    about twice the least fraction that may be certified; far fewer could not be shown. Equal quantiles fall together.

    Raises:
        RecordsInvalidError: all development scores are equal.
        ValueError: fewer than one threshold.
    """
    if thresholds < 1:
        raise ValueError(f"needs at least one threshold, got {thresholds}")
    weights = _coefficients(dev)
    raw = dev.columns @ weights
    low, high = float(raw.min()), float(raw.max())
    if not low < high:
        raise RecordsInvalidError(0, "all development scores are equal")
    scores = np.clip((raw - low) / (high - low), 0.0, 1.0)
    levels = np.linspace(0.0, max(0.0, 1.0 - 2.0 * min_acceptance), thresholds)
    grid = np.unique(np.quantile(scores, levels, method="lower"))
    return ScoreMap(dev.names, tuple(weights.tolist()), low, high, tuple(grid.tolist()))


def _coefficients(dev: LabelledRecords) -> Array:
    columns = dev.columns
    if columns.shape[1] == 1:
        return np.ones(1)
    spread = columns.std(axis=0)
    if not np.all(spread > 0.0):
        raise RecordsInvalidError(0, "a score column is constant in development")
    standard = (columns - columns.mean(axis=0)) / spread
    target = (1.0 - dev.loss) - (1.0 - dev.loss).mean()
    found, *_ = np.linalg.lstsq(standard, target, rcond=None)
    return np.asarray(found / spread, dtype=np.float64)
