"""One row of a table: run a rule on a source, and the figures that the paper prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.boundaries import gaussian_width, hoeffding_width
from reticent.accounting.certificates.bounds import contrast_factor
from reticent.accounting.certificates.rules.common import level
from reticent.accounting.studies.certificates.controls import resolve
from reticent.accounting.studies.certificates.decisions import Decisions, decide
from reticent.accounting.studies.certificates.engine import Transcripts, simulate
from reticent.accounting.studies.certificates.intervals import clopper_pearson, mean_interval
from reticent.accounting.studies.certificates.item_streams import WITH_REPLACEMENT, run_items, slots_of_looks
from reticent.accounting.studies.certificates.looks import PAPER_LOOKS
from reticent.accounting.studies.certificates.paper_sources import Source
from reticent.accounting.studies.certificates.populations import Population
from reticent.accounting.studies.certificates.streams import Stream
from reticent.accounting.studies.certificates.study import PAPER_RELEASE, PLAIN_RELEASE, Outcome, evaluate

__all__ = ["ALL_RULES", "Ask", "Made", "figures", "run_row"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

ALL_RULES: tuple[str, ...] = ("fed_src_c", "eprocess")
"""Rules in every table: the paper's, and this project's default; each with its own release and noise."""


@dataclass(frozen=True)
class Ask:
    """A row.

    Attributes:
        rule: a rule, a comparator, or `control:rule`.
        claim, epsilon: as usual.
        trials, seed: of the simulation.
        slots: (R, K); left out, the paper's 30 rounds of 1,000 by the population's weights.
        deployment: laws and weights that the certificate is to hold for; left out, the population's own.
        drift: Σ w_k γ_k.
        by_item: follow single records (the source must have them).
    """

    rule: str
    claim: Claim
    epsilon: float
    trials: int
    seed: int
    slots: Counts | None = None
    deployment: Population | None = None
    drift: float = 0.0
    by_item: bool = False


@dataclass(frozen=True)
class Made:
    """A row's raw results. `uses` is (T, R, n) where single records were followed; `first` None for rules that read
    rounds together."""

    source: Source
    ask: Ask
    transcripts: Transcripts
    outcome: Outcome
    first: Decisions | None
    uses: NDArray[np.int32] | None


def run_row(source: Source, ask: Ask) -> Made:
    """Simulate and judge."""
    rule = resolve(ask.rule)
    policy = PLAIN_RELEASE if ask.rule.endswith("eprocess") else PAPER_RELEASE
    slots = slots_of_looks(PAPER_LOOKS, source.population.weights) if ask.slots is None else ask.slots
    scale, uses = policy.scale(ask.epsilon), None
    if ask.by_item and source.items is not None:
        run = run_items(source.items, slots, scale, policy.kind, WITH_REPLACEMENT, ask.trials, ask.seed)
        transcripts, uses = run.transcripts, run.uses
    else:
        stream = Stream(slots, scale, policy.kind, policy.discrete)
        transcripts = simulate(source.population, stream, ask.trials, ask.seed)
    truth = ask.deployment or source.population
    outcome = evaluate(rule, ask.claim, transcripts, truth, drift=ask.drift)
    whole = ask.rule.endswith("capital_heuristic")
    first = None if whole else decide(rule, ask.claim, transcripts, truth.weights, ask.drift)
    return Made(source, ask, transcripts, outcome, first, uses)


def figures(made: Made) -> dict[str, Any]:
    """Everything that some table prints. Means are over the fired trials; None where none fired."""
    outcome, fired = made.outcome, made.outcome.fired
    truth = made.ask.deployment or made.source.population
    found: dict[str, Any] = {
        "fired": int(fired.sum()),
        "violations": int(outcome.violated.sum()),
        "false_certifications": int(outcome.false.sum()),
    }
    if not fired.any():
        return found
    chosen = outcome.chosen[fired]
    found |= {
        "acceptance": float(truth.accepted()[chosen].mean()),
        "risk": float(truth.risk()[chosen].mean()),
        "events": float(outcome.events[fired].mean()),
        "median_events": float(np.median(outcome.events[fired])),
    }
    return found | _at_selection(made) | _heldout(made) | _reuse(made)


def _at_selection(made: Made) -> dict[str, Any]:
    first, fired, claim = made.first, made.outcome.fired, made.ask.claim
    if first is None:
        return {}
    found = {
        "rounds": float(first.round[fired].mean() + 1.0),
        "transfer": float(first.transfer[fired].mean()),
        "contrast_upper": float(first.contrast_upper[fired].mean()),
    }
    if made.ask.rule != "fed_src_c":
        return found
    m = made.transcripts.loss.shape[2]
    N = first.events[fired]
    V = made.transcripts.noise[fired, first.round[fired]] * (m - first.chosen[fired])
    V_D = contrast_factor(made.transcripts.release, claim.target_risk) * V
    H = hoeffding_width(N, level(2, m, claim.alpha_sampling))
    G = gaussian_width(V_D, made.transcripts.least_variance, level(2, m, claim.alpha_noise))
    return found | {"sampling_width": float((H / N).mean()), "noise_width": float((G / N).mean())}


def _heldout(made: Made) -> dict[str, Any]:
    """Held-out figures as in table 4: means over fired trials, and exact intervals."""
    chosen = made.outcome.chosen[made.outcome.fired]
    losses = [made.source.heldout_loss[made.source.heldout_bins > j] for j in chosen]
    counts = np.array([len(x) for x in losses], dtype=np.float64)
    errors = np.array([x.sum() for x in losses])
    risks = errors[counts > 0] / counts[counts > 0]
    above = int((risks > made.ask.claim.target_risk).sum())
    common = mean_interval(_usual(made))
    return {
        "heldout_risk": float(risks.mean()) if len(risks) else None,
        "heldout_accepted": float(counts.mean()),
        "heldout_errors": float(errors.mean()),
        "heldout_risk_interval": [common.low, common.high],
        "heldout_exceeds": above,
        "heldout_exceed_interval": list(clopper_pearson(above, len(chosen))),
    }


def _usual(made: Made) -> Array:
    """Held-out losses that the threshold chosen most often accepts."""
    usual = int(np.bincount(made.outcome.chosen[made.outcome.fired]).argmax())
    return made.source.heldout_loss[made.source.heldout_bins > usual]


def _reuse(made: Made) -> dict[str, Any]:
    if made.uses is None or made.first is None:
        return {}
    rows = np.flatnonzero(made.outcome.fired)
    by_item = [made.uses[t, : made.first.round[t] + 1].sum(axis=0) for t in rows]
    unique = np.array([(uses > 0).sum() for uses in by_item], dtype=np.float64)
    return {
        "unique_items": float(unique.mean()),
        "reuse": float((made.first.events[rows] / unique).mean()),
        "most_uses_of_an_item": int(max(uses.max() for uses in by_item)),
    }
