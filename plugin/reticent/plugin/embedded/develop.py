"""The development split: which score the gate should read, which risk it can certify, how many events that takes.

The split is drawn apart from the preference pairs and from the calibration. Nothing here is private or certified: it
only chooses what the plan then fixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reticent.accounting.lattice import RewardLattice
from reticent.accounting.noise import noisy_argmax
from reticent.plugin.embedded.records import Drawn, subject_of
from reticent.plugin.embedded.task import loss
from reticent.rewards.ports import RewardBackend
from reticent.rewards.scores.base import Score, ScoreInputs

__all__ = ["Selected", "auc", "risk_at", "score_records", "select_offline"]


@dataclass(frozen=True)
class Selected:
    """One development item with the candidate that PrivBoN chose."""

    drawn: Drawn
    index: int
    loss: int


def select_offline(
    drawn: Iterable[Drawn], backend: RewardBackend, lattice: RewardLattice, noise_scale: float
) -> list[Selected]:
    """PrivBoN over the drawn candidates, as the server does it."""
    chosen = []
    for one in drawn:
        texts = [sample.text for sample in one.samples]
        raw = backend.score(subject_of(one.item), texts)
        rewards = [lattice.quantise(r) if text else 0 for r, text in zip(raw, texts, strict=True)]
        index = noisy_argmax(rewards, lattice.to_units(noise_scale))
        chosen.append(Selected(one, index, loss(one.item, texts[index])))
    return chosen


def score_records(selected: Sequence[Selected], score: Score) -> list[tuple[float, float]]:
    """(score, loss) of every chosen candidate."""
    records = []
    for one in selected:
        samples = one.drawn.samples
        others = tuple(s.text for i, s in enumerate(samples) if i != one.index)
        inputs = ScoreInputs(
            question=one.drawn.item.question,
            evidence=(one.drawn.item.passage,),
            answer=samples[one.index].text,
            others=others,
            mean_log_probability=samples[one.index].mean_log_probability,
            lift_log_ratios=None,
        )
        records.append((score.compute(inputs), float(one.loss)))
    return records


def auc(records: Sequence[tuple[float, float]]) -> float:
    """Probability that a right answer scores above a wrong one (ties count half)."""
    right = np.array([s for s, bad in records if not bad])
    wrong = np.array([s for s, bad in records if bad])
    above = (right[:, None] > wrong[None, :]).mean() + 0.5 * (right[:, None] == wrong[None, :]).mean()
    return float(above)


def risk_at(records: Sequence[tuple[float, float]], coverages: Sequence[float]) -> Mapping[float, float]:
    """Mean loss of the share of answers with the largest scores, for each share."""
    ordered = [bad for _, bad in sorted(records, key=lambda record: -record[0])]
    return {c: float(np.mean(ordered[: max(1, round(c * len(ordered)))])) for c in coverages}
