"""A rule's verdict on a calibration at one time: what a certificate stores, and what recomputing it must give again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.aggregate import Aggregate
from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.bounds import COUNT_ERROR, LOSS_NONLOSS, Rule, Sums, Transfer, select
from reticent.accounting.certificates.eprocess import log_acceptance_evidence, log_risk_evidence
from reticent.accounting.certificates.rules import RULES

__all__ = ["Verdict", "judge", "judge_sums", "sums_of"]


@dataclass(frozen=True)
class Verdict:
    """A rule's answer at one time. Indices of thresholds start at 0; tuples have one entry for each threshold.

    Attributes:
        certified: indices of the certified thresholds, increasing.
        chosen: the one that the rule's selection takes, or None.
        threshold: the threshold at `chosen`, or None.
        contrast_upper: d̄, upper bounds of E A(ℓ - r*) under the deployment mixture, in [-r*, 1-r*]; certified implies
            ≤ 0.
        acceptance_lower: a̲, lower bounds of the acceptance under the deployment mixture, in [0, 1].
        log_risk_evidence, log_acceptance_evidence: log E at the null, compared with `log_risk_required` and
            `log_acceptance_required` (the log of m/α). For rule "eprocess"; () and None for the others.
        events: N, slots released.
    """

    certified: tuple[int, ...]
    chosen: int | None
    threshold: float | None
    contrast_upper: tuple[float, ...]
    acceptance_lower: tuple[float, ...]
    log_risk_evidence: tuple[float, ...]
    log_acceptance_evidence: tuple[float, ...]
    log_risk_required: float | None
    log_acceptance_required: float | None
    events: int


def sums_of(total: Aggregate) -> tuple[Sums, Transfer]:
    """What a rule reads of a calibration."""
    other = total.accepted if total.release == COUNT_ERROR else total.accepted_nonloss
    sums = Sums(total.release, total.accepted_loss, other, total.noise_variance, total.events, total.least_variance)
    return sums, Transfer(total.contrast_transfer, total.transfer)


def judge_sums(rule: Rule, claim: Claim, thresholds: Sequence[float], sums: Sums, transfer: Transfer) -> Verdict:
    """The verdict of `rule` at one time. All bounds hold together, at every time and threshold, with probability at
    least 1 - Σ `rule.failure_probabilities(claim)`.

    Raises:
        ValueError: lengths that differ, no threshold, negative events, variance or transfer, a value that is not
            finite, or a release that the rule does not read.
    """
    _check(rule, len(thresholds), sums, transfer)
    bounds = rule.bounds(claim, sums, transfer)
    index = int(select(rule.selection, bounds))
    chosen = None if index < 0 else index
    risk, acceptance = _evidence(claim, sums, transfer) if rule.name == "eprocess" else ((), ())
    m = sums.size
    return Verdict(
        certified=tuple(int(j) for j in np.flatnonzero(bounds.certified)),
        chosen=chosen,
        threshold=None if chosen is None else float(thresholds[chosen]),
        contrast_upper=_floats(bounds.contrast_upper),
        acceptance_lower=_floats(bounds.acceptance_lower),
        log_risk_evidence=risk,
        log_acceptance_evidence=acceptance,
        log_risk_required=math.log(m / claim.alpha_risk) if risk else None,
        log_acceptance_required=math.log(m / claim.alpha_acceptance) if risk else None,
        events=int(sums.events),
    )


def judge(
    claim: Claim,
    thresholds: Sequence[float],
    accepted_loss: Sequence[float],
    accepted_nonloss: Sequence[float],
    noise_variance: Sequence[float],
    events: int,
    *,
    contrast_transfer: float = 0.0,
    acceptance_transfer: float = 0.0,
) -> Verdict:
    """The verdict of rule "eprocess" on a "loss_nonloss" release. Errors as `judge_sums`."""
    sums = Sums(LOSS_NONLOSS, accepted_loss, accepted_nonloss, noise_variance, events)
    return judge_sums(RULES["eprocess"], claim, thresholds, sums, Transfer(contrast_transfer, acceptance_transfer))


def _evidence(claim: Claim, sums: Sums, transfer: Transfer) -> tuple[tuple[float, ...], tuple[float, ...]]:
    Z, other, V, N, kind = sums.loss, sums.other, sums.variance, sums.events, sums.release
    floor = claim.min_acceptance + transfer.acceptance
    return (
        _floats(log_risk_evidence(Z, other, V, N, -transfer.contrast, claim.target_risk, kind)),
        _floats(log_acceptance_evidence(Z, other, V, N, floor, kind)),
    )


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) + 0.0 for value in values)  # + 0.0 turns -0.0 into 0.0


def _check(rule: Rule, m: int, sums: Sums, transfer: Transfer) -> None:
    if m == 0:
        raise ValueError("a verdict needs at least one threshold")
    for values in (sums.loss, sums.other, sums.variance):
        if values.shape != (m,):
            raise ValueError(f"expected {m} suffix sums, one for each threshold, got shape {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError("suffix sums and variances must be finite")
    if sums.events.shape != () or not 0.0 <= sums.events < math.inf or (sums.variance < 0.0).any():
        raise ValueError("events and noise variances cannot be negative")
    for name, part in (("contrast", transfer.contrast), ("acceptance", transfer.acceptance)):
        if part.shape != () or not 0.0 <= part < math.inf:
            raise ValueError(f"transfers must be finite and not negative, the {name}'s is {part}")
    if sums.release not in rule.releases:
        raise ValueError(f"rule {rule.name!r} reads {sorted(rule.releases)}, not {sums.release!r}")
