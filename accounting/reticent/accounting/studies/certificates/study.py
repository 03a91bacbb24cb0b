"""One study: a cell, a rule, a target, an ε; how often it fires, after how many events, and whether it was right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS, ReleaseKind
from reticent.accounting.calibration.noise_scale import release_scale
from reticent.accounting.certificates.bounds import NO_TRANSFER, Bounds, Rule, select
from reticent.accounting.studies.certificates.controls import native_of, resolve
from reticent.accounting.studies.certificates.engine import Transcripts, simulate
from reticent.accounting.studies.certificates.populations import Population, fitted_cell
from reticent.accounting.studies.certificates.schedules import schedule_slots
from reticent.accounting.studies.certificates.streams import Stream

__all__ = [
    "DELTA",
    "PAPER_RELEASE",
    "PLAIN_RELEASE",
    "Outcome",
    "ReleasePolicy",
    "Result",
    "Study",
    "claim_at",
    "evaluate",
    "run",
]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

DELTA = 1e-6
"""δ of every study, as in the paper."""

_CHUNK = 150_000  # bounds that are worked out at a time
_TOLERANCE = 1e-9  # of a violation: the truth is a rounded sum of probabilities


def claim_at(target_risk: float) -> Claim:
    """The paper's claim: a_min = .05; α .05 in all (the e-process splits it .045 + .005)."""
    return Claim(target_risk, 0.05, 0.045, 0.005)


@dataclass(frozen=True)
class ReleasePolicy:
    """What is released, and with which noise.

    Attributes:
        name: "paper" or "plain".
        kind: of release.
        discrete: discrete Gaussian of the exact scale; else continuous Gaussian of the paper's zCDP scale.
    """

    name: str
    kind: ReleaseKind
    discrete: bool

    def scale(self, epsilon: float) -> float:
        """σ; 0 for an infinite ε."""
        return 0.0 if math.isinf(epsilon) else _scale(self.kind, self.discrete, epsilon)


PAPER_RELEASE = ReleasePolicy("paper", COUNT_ERROR, discrete=False)
"""Counts and errors, sensitivity √2, continuous noise, σ = 1/sqrt(ρ*)."""

PLAIN_RELEASE = ReleasePolicy("plain", LOSS_NONLOSS, discrete=True)
"""Accepted loss and non-loss, sensitivity 1, discrete noise of the exact scale."""

_RELEASES = {policy.name: policy for policy in (PAPER_RELEASE, PLAIN_RELEASE)}
_OF_THE_PAPER = ("fed_src_c", "fed_src_va", "ratio", "capital_heuristic", "private_fixed_time", "schedule_conditioned")


@dataclass(frozen=True)
class Study:
    """What is simulated.

    Args:
        cell: of `fitted_cell`.
        rule: a rule, a comparator, or `control:rule`.
        target_risk: r*.
        epsilon: > 0; infinite for no noise.
        trials, seed: of the simulation.
        schedule: "paper", "own", "dev" or "long"; see `schedule_slots`.
        release: "paper" or "plain"; left out, the paper's for the paper's own methods, plain for all others.
    """

    cell: str
    rule: str
    target_risk: float
    epsilon: float
    trials: int = 200
    seed: int = 1
    schedule: str = "own"
    release: str | None = None

    @property
    def claim(self) -> Claim:
        """As of every study; see `claim_at`."""
        return claim_at(self.target_risk)

    @property
    def release_policy(self) -> ReleasePolicy:
        """The release that is simulated.

        Raises:
            ValueError: no such release.
        """
        default = "paper" if self.rule.rpartition(":")[2] in _OF_THE_PAPER else "plain"
        name = self.release or default
        if name not in _RELEASES:
            raise ValueError(f"the release must be one of {', '.join(_RELEASES)}, got {name!r}")
        return _RELEASES[name]


@dataclass(frozen=True)
class Outcome:
    """What became of each trial, (trials,).

    Attributes:
        fired: some threshold was certified at some look.
        events: used until then; not a number where it did not fire.
        chosen: threshold chosen then; -1 where it did not fire.
        violated: some bound at some threshold and look was wrong for the deployment mixture.
        false: a threshold certified at some look does not keep the risk and the floor.
    """

    fired: Mask
    events: Array
    chosen: NDArray[np.int64]
    violated: Mask
    false: Mask


@dataclass(frozen=True)
class Result:
    """A study's figures.

    Attributes:
        study: what was simulated.
        release, noise_scale: "paper" or "plain", and σ of each cell.
        looks: number of looks at most.
        fired: trials that certified. For "local_only" the mean over the sites.
        median_events: of the fired trials; None if none fired.
        acceptance, risk: true ones of the threshold chosen at the first certificate, means over the fired trials.
        violations: trials in which any bound, at any threshold and look, was wrong.
        false_certifications: trials in which anything certified at any look was wrong.
    """

    study: Study
    release: str
    noise_scale: float
    looks: int
    fired: float
    median_events: float | None
    acceptance: float | None
    risk: float | None
    violations: float
    false_certifications: float

    def to_dict(self) -> dict[str, object]:
        """As JSON values; an infinite ε is "inf"."""
        s = self.study
        return {
            "cell": s.cell,
            "rule": s.rule,
            "target_risk": s.target_risk,
            "epsilon": "inf" if math.isinf(s.epsilon) else s.epsilon,
            "delta": DELTA,
            "trials": s.trials,
            "seed": s.seed,
            "schedule": s.schedule,
            "release": self.release,
            "noise_scale": self.noise_scale,
            "looks": self.looks,
            "fired": self.fired,
            "median_events": self.median_events,
            "acceptance": self.acceptance,
            "risk": self.risk,
            "violations": self.violations,
            "false_certifications": self.false_certifications,
        }


def run(study: Study) -> Result:
    """Simulate a study.

    A method for exact records gets exact sums whatever ε is (`naive:` feeds it noised ones).

    Raises:
        ValueError: an unknown cell, rule, schedule or release, or a value outside its range.
        NeverFiresError: see `schedule_slots`.
    """
    if study.trials < 1 or not study.epsilon > 0.0:
        raise ValueError(f"trials must be at least 1 and epsilon above 0, got {study.trials} and {study.epsilon!r}")
    rule, population, policy = resolve(study.rule), fitted_cell(study.cell), study.release_policy
    sigma = policy.scale(study.epsilon)
    slots = schedule_slots(study.schedule, study.claim, population, sigma, study.seed)
    noise = 0.0 if native_of(rule).reads == "exact" else sigma
    alone = study.rule.rpartition(":")[2] == "local_only"
    stream = Stream(slots, noise, policy.kind, policy.discrete)
    transcripts = simulate(population, stream, study.trials, study.seed, keep_sites=alone)
    if alone:
        parts = [
            (evaluate(rule, study.claim, transcripts, population.site(k), site=k), population.site(k))
            for k in range(population.sites)
        ]
    else:
        parts = [(evaluate(rule, study.claim, transcripts, population), population)]
    return _result(study, noise, len(slots), parts)


def evaluate(
    rule: Rule,
    claim: Claim,
    transcripts: Transcripts,
    population: Population,
    *,
    drift: float = 0.0,
    site: int | None = None,
) -> Outcome:
    """Judge every trial at every look (a rule for the final look, at that), against the truth.

    Args:
        population: the deployment laws and weights: the truth.
        drift: Σ w_k γ_k, as declared.
        site: judge this site's own sums, without transfer.
    """
    truth = population.contrast(claim.target_risk), population.accepted()
    trials, rounds, m = transcripts.loss.shape
    step = max(1, _CHUNK // (rounds * m))
    parts = []
    for start in range(0, trials, step):
        rows = slice(start, start + step)
        if site is None:
            sums, transfer = transcripts.sums(rows), transcripts.transfer(population.weights, drift, rows)
        else:
            sums, transfer = transcripts.site_sums(site, rows), NO_TRANSFER
        bounds = rule.bounds(claim, sums, transfer)
        parts.append(_judged(rule, claim, bounds, sums.events[..., 0], truth))
    fired, events, chosen, violated, false = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Outcome(fired, events, chosen, violated, false)


def _judged(
    rule: Rule, claim: Claim, bounds: Bounds, events: Array, truth: tuple[Array, Array]
) -> tuple[Mask, Array, NDArray[np.int64], Mask, Mask]:
    d, a = truth
    if native_of(rule).looks == "final":
        last = (slice(None), slice(-1, None))
        bounds = Bounds(bounds.contrast_upper[last], bounds.acceptance_lower[last], bounds.certified[last])
        events = events[last]
    seen = events > 0.0
    wrong: Mask = (bounds.contrast_upper < d - _TOLERANCE) | (bounds.acceptance_lower > a + _TOLERANCE)
    bad: Mask = (d > _TOLERANCE) | (a < claim.min_acceptance - _TOLERANCE)
    certified = bounds.certified & seen[..., None]
    choice = np.where(seen, select(rule.selection, bounds), -1)
    fired = np.asarray((choice >= 0).any(axis=1))
    rows, first = np.arange(len(fired)), (choice >= 0).argmax(axis=1)
    return (
        fired,
        np.where(fired, events[rows, first], np.nan),
        np.where(fired, choice[rows, first], -1),
        np.asarray((wrong.any(axis=2) & seen).any(axis=1)),
        np.asarray((certified & bad).any(axis=(1, 2))),
    )


def _result(study: Study, noise: float, looks: int, parts: list[tuple[Outcome, Population]]) -> Result:
    events = np.concatenate([o.events[o.fired] for o, _ in parts])
    acceptance = np.concatenate([p.accepted()[o.chosen[o.fired]] for o, p in parts])
    risk = np.concatenate([p.risk()[o.chosen[o.fired]] for o, p in parts])
    count = len(parts)
    means = [sum(float(getattr(o, name).sum()) for o, _ in parts) / count for name in ("fired", "violated", "false")]
    return Result(
        study,
        study.release_policy.name,
        noise,
        looks,
        fired=means[0],
        median_events=float(np.median(events)) if len(events) else None,
        acceptance=float(acceptance.mean()) if len(events) else None,
        risk=float(risk.mean()) if len(events) else None,
        violations=means[1],
        false_certifications=means[2],
    )


@lru_cache(maxsize=64)
def _scale(kind: ReleaseKind, discrete: bool, epsilon: float) -> float:
    if discrete:
        return release_scale(kind, epsilon, DELTA)
    return release_scale(kind, epsilon, DELTA, method="zcdp", noise="continuous")
