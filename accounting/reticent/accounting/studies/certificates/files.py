"""A certificate study on a table of labelled records: `reticent certify file`.

Records are split; development fixes the score's map, the thresholds and the looks; calibration records are frozen
sites, one for each client, weighted by their share; the chosen threshold is then judged on held-out records.

The result shows exact figures of the records themselves, and simulated noise: it is a study, and it is not private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS, ReleaseKind
from reticent.accounting.calibration.noise_scale import release_scale
from reticent.accounting.certificates.bounds import Rule
from reticent.accounting.certificates.rules import RULES
from reticent.accounting.studies.certificates.decisions import Decisions, decide
from reticent.accounting.studies.certificates.intervals import Interval, mean_interval
from reticent.accounting.studies.certificates.item_streams import (
    ONCE,
    WITH_REPLACEMENT,
    Items,
    Run,
    epsilon_of_uses,
    run_items,
    slots_of_looks,
)
from reticent.accounting.studies.certificates.looks import PAPER_LOOKS, development_looks
from reticent.accounting.studies.certificates.splits import (
    DEFAULT_FRACTIONS,
    Fractions,
    ScoreMap,
    Split,
    fit_score_map,
    split_records,
)
from reticent.accounting.studies.certificates.study import evaluate
from reticent.accounting.studies.certificates.tables import LabelledRecords

__all__ = [
    "FileStudy",
    "Outcome",
    "Question",
    "development_cells",
    "frozen_items",
    "native_release",
    "noise_of",
    "study_file",
]

Array = NDArray[np.float64]


def native_release(rule: str) -> tuple[ReleaseKind, str]:
    """Kind of release and calibration of its noise with which a rule was published: the e-process has its own."""
    return (LOSS_NONLOSS, "exact") if rule == "eprocess" else (COUNT_ERROR, "zcdp")


def noise_of(release: ReleaseKind, method: str, epsilon: float, delta: float) -> float:
    """σ of each cell; 0 for ε = ∞. `method`: "exact" or "zcdp"."""
    if math.isinf(epsilon):
        return 0.0
    return release_scale(release, epsilon, delta, method="exact" if method == "exact" else "zcdp")


@dataclass(frozen=True)
class Question:
    """What is asked of the records.

    Attributes:
        claim: r*, a_min, α's.
        epsilon, delta: of one stream occurrence; ε may be infinite.
        rule: name of a rule.
        release, method: kind of release and calibration of σ; left out, those the rule was published with.
        stream: `WITH_REPLACEMENT` or `ONCE`.
        thresholds: m.
        looks: "development", or "paper" (30 rounds of 1,000; not for `ONCE`).
        most: events at most, with replacement.
        fractions: of the split.
        seed: of split, stream and simulated noise.
        trials: repetitions of stream and noise on the same split.
    """

    claim: Claim
    epsilon: float
    delta: float = 1e-6
    rule: str = "eprocess"
    release: ReleaseKind | None = None
    method: str | None = None
    stream: str = WITH_REPLACEMENT
    thresholds: int = 20
    looks: str = "development"
    most: int = 30_000
    fractions: Fractions = DEFAULT_FRACTIONS
    seed: int = 0
    trials: int = 1

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"the rule must be one of {', '.join(sorted(RULES))}, got {self.rule!r}")
        if self.looks not in ("development", "paper") or (self.looks == "paper" and self.stream == ONCE):
            raise ValueError(f"looks are 'development' or, with replacement, 'paper', got {self.looks!r}")
        if self.method not in (None, "exact", "zcdp"):
            raise ValueError(f"the noise is calibrated 'exact' or 'zcdp', got {self.method!r}")
        if not self.epsilon > 0.0 or self.most < 1:
            raise ValueError(f"epsilon and the most events must be above 0, got {self.epsilon!r} and {self.most}")

    @property
    def settled(self) -> Question:
        """With the release and the calibration filled in."""
        release, method = native_release(self.rule)
        return replace(self, release=self.release or release, method=self.method or method)


@dataclass(frozen=True)
class Outcome:
    """One trial. What depends on a chosen threshold is None where nothing is certified.

    Attributes:
        certified: a threshold was certified.
        threshold, raw_threshold: chosen, mapped and on the raw score's scale.
        rounds, events: until the first certificate, or in all.
        unique_items, uses_most: distinct calibration records among the events; most uses of one.
        reuse: events/unique_items.
        transfer: η at the end.
        contrast_upper, acceptance_lower: the certificate's bounds.
        acceptance, calibration_risk: at the threshold, exact on the calibration records under the declared mixture.
        heldout: mean held-out loss of accepted records with its interval.
        heldout_accepted, heldout_acceptance: accepted held-out records, and their fraction.
        item_epsilon, group_epsilon: ε of the record, and of the group of records, that was used most.
    """

    certified: bool
    threshold: float | None
    raw_threshold: float | None
    rounds: int
    events: int
    unique_items: int
    uses_most: int
    transfer: float
    contrast_upper: float | None
    acceptance_lower: float | None
    acceptance: float | None
    calibration_risk: float | None
    heldout: Interval | None
    heldout_accepted: int | None
    heldout_acceptance: float | None
    item_epsilon: float
    group_epsilon: float

    @property
    def reuse(self) -> float:
        """Uses per item that was used at all."""
        return self.events / self.unique_items


@dataclass(frozen=True)
class FileStudy:
    """The study of one table, all trials.

    Attributes:
        question: as it was settled.
        split, score_map, items: what was prepared.
        noise_scale: σ.
        looks: events at each look, as planned.
        run, decisions: the trials.
    """

    question: Question
    split: Split = field(repr=False)
    score_map: ScoreMap
    items: Items = field(repr=False)
    noise_scale: float
    looks: tuple[int, ...]
    run: Run = field(repr=False)
    decisions: Decisions = field(repr=False)

    @property
    def rule(self) -> Rule:
        """The rule."""
        return RULES[self.question.rule]

    @cached_property
    def violated(self) -> NDArray[np.bool_] | None:
        """Trials in which any bound missed the frozen truth, (T,); None for `ONCE`, where the truth is not known."""
        if self.question.stream == ONCE:
            return None
        frozen = self.items.population("calibration records")
        return evaluate(self.rule, self.question.claim, self.run.transcripts, frozen).violated

    def outcome(self, trial: int) -> Outcome:
        """One trial."""
        made, end = self.decisions, int(self.decisions.round[trial])
        uses = self.run.uses[trial, : end + 1]
        by_item = uses.sum(axis=0)
        common = {
            "rounds": end + 1,
            "events": int(made.events[trial]),
            "unique_items": int((by_item > 0).sum()),
            "uses_most": int(by_item.max()),
            "transfer": float(made.transfer[trial]),
            "item_epsilon": self._epsilon(uses[:, [int((uses.astype(np.int64) ** 2).sum(axis=0).argmax())]]),
            "group_epsilon": self._epsilon(self._worst_group(uses)),
        }
        if not made.fired[trial]:
            nothing = dict.fromkeys(_CHOSEN)
            return Outcome(certified=False, **nothing, **common)  # type: ignore[arg-type]
        return Outcome(certified=True, **self._chosen(trial), **common)  # type: ignore[arg-type]

    def _chosen(self, trial: int) -> dict[str, object]:
        j = int(self.decisions.chosen[trial])
        z, a = self.items.truth()
        reached = self.score_map.bins(self.split.heldout) > j
        return {
            "threshold": self.score_map.thresholds[j],
            "raw_threshold": self.score_map.raw_threshold(j),
            "contrast_upper": float(self.decisions.contrast_upper[trial]),
            "acceptance_lower": float(self.decisions.acceptance_lower[trial]),
            "acceptance": float(a[j]),
            "calibration_risk": float(z[j] / a[j]) if a[j] > 0.0 else None,
            "heldout": mean_interval(self.split.heldout.loss[reached]),
            "heldout_accepted": int(reached.sum()),
            "heldout_acceptance": float(reached.mean()),
        }

    def _worst_group(self, uses: NDArray[np.int32]) -> NDArray[np.int64]:
        """Uses, (R, K), of the group of records with the largest sum of squares over rounds and sites."""
        groups, K = self.split.cal.group, self.items.sites
        labels, place = np.unique(groups, return_inverse=True)
        cell, size = place * K + self.items.site, len(labels) * K
        rounds = [np.bincount(cell, weights=row, minlength=size) for row in uses]
        table = np.stack(rounds).astype(np.int64).reshape(len(uses), len(labels), K)
        return np.asarray(table[:, (table**2).sum(axis=(0, 2)).argmax()])

    def _epsilon(self, uses: NDArray[np.integer[Any]]) -> float:
        asked = self.question
        if int(uses.sum()) == 1:
            return asked.epsilon  # one slot in one release: what σ was calibrated for
        return epsilon_of_uses(uses, asked.release or LOSS_NONLOSS, self.noise_scale, asked.delta)


_CHOSEN = (
    "threshold",
    "raw_threshold",
    "contrast_upper",
    "acceptance_lower",
    "acceptance",
    "calibration_risk",
    "heldout",
    "heldout_accepted",
    "heldout_acceptance",
)


def study_file(records: LabelledRecords, question: Question) -> FileStudy:
    """Split, prepare and run all trials.

    Raises:
        RecordsInvalidError: the split leaves a part empty, or development scores are all equal.
    """
    asked = question.settled
    release, claim = asked.release or LOSS_NONLOSS, asked.claim
    split = split_records(records, asked.fractions, asked.seed)
    score_map = fit_score_map(split.dev, asked.thresholds, claim.min_acceptance)
    items = frozen_items(split.cal, score_map)
    scale = noise_of(release, asked.method or "exact", asked.epsilon, asked.delta)
    most = len(items.loss) if asked.stream == ONCE else asked.most
    if asked.looks == "paper":
        looks = tuple(look for look in PAPER_LOOKS if look <= most) or (most,)
    else:
        cells = development_cells(split.dev, score_map)
        looks = development_looks(cells, RULES[asked.rule], claim, release, scale, items.sites, most, asked.seed)
    slots = slots_of_looks(looks, items.weights)
    run = run_items(items, slots, scale, release, asked.stream, asked.trials, asked.seed)
    decisions = decide(RULES[asked.rule], claim, run.transcripts, items.weights)
    return FileStudy(asked, split, score_map, items, scale, looks, run, decisions)


def frozen_items(cal: LabelledRecords, score_map: ScoreMap) -> Items:
    """Calibration records as frozen sites, one for each client that has any, weighted by its share."""
    present, site = np.unique(cal.client, return_inverse=True)
    weights = np.bincount(site, minlength=len(present)) / cal.size
    return Items(score_map.bins(cal), cal.loss, site.astype(np.int64), weights, len(score_map.thresholds))


def development_cells(dev: LabelledRecords, score_map: ScoreMap) -> Array:
    """Frequencies of (non-loss, loss) by bin, (m+1, 2); a fractional loss is shared between the two."""
    bins, size = score_map.bins(dev), len(score_map.thresholds) + 1
    loss = np.bincount(bins, weights=dev.loss, minlength=size)
    nonloss = np.bincount(bins, weights=1.0 - dev.loss, minlength=size)
    return np.asarray(np.stack([nonloss, loss], axis=1) / dev.size)
