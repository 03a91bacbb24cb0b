"""The null suite: the risk exactly at the target at every threshold, on every kind of stream that a plan may have.

A rule that is valid must be wrong about any bound, at any threshold and round, in at most α_D + α_A = .05 of the
trials; the project asks for .045. Rules broken on purpose must be seen to be wrong more often. As a module, a table:

    python -m reticent.accounting.studies.certificates.null_suite --trials 1000 --seed 1
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.bounds import Rule, Sums, Transfer
from reticent.accounting.certificates.eprocess import log_acceptance_evidence, log_risk_evidence, rounding_margin
from reticent.accounting.certificates.rules import RULES
from reticent.accounting.certificates.rules.eprocess import EProcess
from reticent.accounting.studies.certificates.controls import Alteration, Control, resolve, unchanged
from reticent.accounting.studies.certificates.engine import Transcripts, simulate
from reticent.accounting.studies.certificates.populations import Population, null_population, with_drift
from reticent.accounting.studies.certificates.streams import (
    Stream,
    adaptive_scale,
    adversarial,
    alternating,
    even,
    largest_deficit,
    uneven_batches,
)
from reticent.accounting.studies.certificates.study import (
    PAPER_RELEASE,
    PLAIN_RELEASE,
    ReleasePolicy,
    claim_at,
    evaluate,
)

__all__ = ["ALLOWED", "CASES", "CONTROL_CASES", "VALID_RULES", "NullCase", "transcripts_of", "violation_rate"]

ALLOWED = 0.045
"""Largest rate of any violation for a valid rule."""

VALID_RULES: tuple[str, ...] = tuple(RULES)
"""Rules that must pass: all that a plan may name."""

_SPREAD = 0.09
_CHUNK = 100_000
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class NullCase:
    """A stream on which nothing must be certified below the target.

    Attributes:
        name: of the case.
        target_risk: r*; the deployment risk is r* at every threshold.
        calibration: laws of the records.
        deployment: laws and weights that the bounds are about.
        stream: what is asked for.
        drift: Σ w_k γ_k, declared.
    """

    name: str
    target_risk: float
    calibration: Population
    deployment: Population
    stream: Stream
    drift: float = 0.0

    @property
    def claim(self) -> Claim:
        """As in the studies."""
        return claim_at(self.target_risk)


def _case(
    name: str,
    r: float,
    slots: NDArray[np.int64],
    release: ReleasePolicy,
    epsilon: float,
    *,
    spread: float = _SPREAD,
    fractional: bool = False,
    m: int = 20,
    **stream: object,
) -> NullCase:
    population = null_population(r, spread=spread, sites=slots.shape[1], m=m, fractional=fractional)
    made = Stream(slots, release.scale(epsilon), release.kind, release.discrete, **stream)  # type: ignore[arg-type]
    return NullCase(name, r, population, population, made)


def _drifting() -> NullCase:
    """Deployment is worse than calibration by exactly what is declared, and its risk is r*."""
    r, drift, m = 0.2, 0.02, 20
    # Calibration risk ρ with (1 - γ)ρ + γ = r*.
    calibration = null_population((r - drift) / (1.0 - drift), spread=_SPREAD, m=m)
    stream = Stream(even(30, 500, 2), PLAIN_RELEASE.scale(4.0))
    return NullCase("declared drift", r, calibration, with_drift(calibration, drift), stream, drift)


CASES: tuple[NullCase, ...] = (
    _case("static, no noise", 0.2, even(30, 1000, 5), PLAIN_RELEASE, math.inf),
    _case("static", 0.3, even(30, 1000, 5), PLAIN_RELEASE, 1.0),
    _case("static, paper release", 0.1, even(30, 1000, 5), PAPER_RELEASE, 1.0),
    _case("moving mixture", 0.2, alternating(30, 500, 0.9), PLAIN_RELEASE, 1.0),
    _case("moving mixture, paper release", 0.3, alternating(30, 500, 0.9), PAPER_RELEASE, 4.0),
    _case("growing batches", 0.2, alternating(16, 100, 0.8, growth=1.4), PLAIN_RELEASE, 2.0),
    _case("mixture other than declared", 0.2, np.tile([270, 230], (30, 1)), PLAIN_RELEASE, 2.0),
    _case("adversarial recruitment", 0.2, even(60, 400, 2), PLAIN_RELEASE, 2.0, policy=adversarial),
    _case("adversarial, paper release", 0.2, even(60, 400, 2), PAPER_RELEASE, 8.0, policy=adversarial),
    _case("deficit and dropout", 0.3, even(40, 400, 3), PLAIN_RELEASE, 1.0, policy=largest_deficit, dropout=0.4),
    _case("dropout of every site", 0.2, even(40, 400, 3), PAPER_RELEASE, 2.0, dropout=0.4, spread=0.0),
    _case("adaptive noise", 0.1, even(40, 400, 2), PLAIN_RELEASE, 1.0, policy=adaptive_scale),
    _case("batches from the past", 0.5, even(40, 300, 2), PLAIN_RELEASE, 4.0, policy=uneven_batches),
    _case("fractional losses, coin", 0.3, even(30, 500, 2), PLAIN_RELEASE, 2.0, fractional=True),
    _case("fractional losses, sums", 0.3, even(30, 500, 2), PAPER_RELEASE, 8.0, fractional=True),
    _drifting(),
    _case("300 rounds", 0.2, even(300, 100, 2), PLAIN_RELEASE, 1.0),
)
"""Every kind of stream."""

_TILTED = _case("mostly the good site", 0.2, np.tile([450, 50], (60, 1)), PLAIN_RELEASE, 4.0)
_NO_NOISE = _case("300 small rounds, no noise", 0.5, even(300, 10, 5), PLAIN_RELEASE, math.inf, spread=0.0)
_MUCH_NOISE = _case("300 small rounds, much noise", 0.5, even(300, 10, 5), PAPER_RELEASE, 1.0, spread=0.0)
_FEW_THRESHOLDS = _case("the same with 2 thresholds", 0.5, even(300, 10, 5), PAPER_RELEASE, 1.0, spread=0.0, m=2)

CONTROL_CASES: tuple[tuple[str, NullCase], ...] = (
    ("noise_ignored:eprocess", CASES[1]),
    ("noise_ignored:fed_src_c", CASES[2]),
    ("variance_halved:eprocess", _MUCH_NOISE),
    ("variance_halved:normal_mixture", _MUCH_NOISE),
    ("shift_ignored:eprocess", _TILTED),
    ("shift_ignored:fed_src_c", _TILTED),
    ("after_stopping:private_fixed_time", _FEW_THRESHOLDS),
    ("after_stopping:central_ltt", _NO_NOISE),
    ("naive:csa", CASES[1]),
    ("naive:anytime_valid_crc", CASES[2]),
    ("naive:yu_liu", CASES[1]),
)
"""Controls, each with a stream on which it must be seen to fail."""


def transcripts_of(case: NullCase, trials: int, seed: int) -> Transcripts:
    """Simulate a case."""
    return simulate(case.calibration, case.stream, trials, seed, target_risk=case.target_risk)


def violation_rate(rule: Rule, case: NullCase, transcripts: Transcripts) -> float:
    """Fraction of trials in which any bound is wrong, at any threshold and round."""
    if isinstance(rule, EProcess):
        return float(_eprocess_violated(case, transcripts, unchanged).mean())
    if isinstance(rule, Control) and isinstance(rule.rule, EProcess):
        return float(_eprocess_violated(case, transcripts, rule.alter).mean())
    found = evaluate(rule, case.claim, transcripts, case.deployment, drift=case.drift)
    return float(found.violated.mean())


def _eprocess_violated(case: NullCase, transcripts: Transcripts, alter: Alteration) -> NDArray[np.bool_]:
    """d̄ < d exactly when the evidence at the true contrast has reached its level, and so for a̲: no root is needed."""
    trials, rounds, m = transcripts.loss.shape
    step = max(1, _CHUNK // (rounds * m))
    parts = []
    for start in range(0, trials, step):
        rows = slice(start, start + step)
        transfer = transcripts.transfer(case.deployment.weights, case.drift, rows)
        parts.append(_reached(case, *alter(transcripts.sums(rows), transfer)))
    return np.concatenate(parts)


def _reached(case: NullCase, sums: Sums, transfer: Transfer) -> NDArray[np.bool_]:
    claim, r, m = case.claim, case.target_risk, sums.size
    d, a = case.deployment.contrast(r) - _TOLERANCE, case.deployment.accepted() + _TOLERANCE
    read = (sums.loss, sums.other, sums.variance, sums.events)
    # A bound beyond its range is cut to the range, where it cannot be wrong.
    contrast = np.broadcast_to(d - transfer.contrast, sums.loss.shape)
    risk = log_risk_evidence(*read, contrast, r, release=sums.release)
    floor = np.broadcast_to(a + transfer.acceptance, sums.loss.shape)
    acceptance = log_acceptance_evidence(*read, floor, release=sums.release)
    margin = rounding_margin(*read)
    wrong = risk >= math.log(m / claim.alpha_risk) + margin
    wrong |= (acceptance >= math.log(m / claim.alpha_acceptance) + margin) & (floor <= 1.0)
    return np.asarray((wrong & (sums.events > 0.0)).any(axis=(1, 2)))


def rates(trials: int, seed: int) -> Iterator[tuple[str, str, float]]:
    """(case, rule, rate of any violation), valid rules first, then controls."""
    for number, case in enumerate(CASES):
        transcripts = transcripts_of(case, trials, seed + number)
        for name in VALID_RULES:
            yield case.name, name, violation_rate(RULES[name], case, transcripts)
    for name, case in CONTROL_CASES:
        yield case.name, name, violation_rate(resolve(name), case, transcripts_of(case, trials, seed))


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Rates of any violation where the risk is exactly at the target.")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(None if arguments is None else list(arguments))
    for case, rule, rate in rates(given.trials, given.seed):
        print(f"{rate:7.4f}  {rule:34s} {case}", flush=True)


if __name__ == "__main__":
    main()
