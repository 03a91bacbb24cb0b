"""What a rule does with simulated transcripts: when each trial first certifies, what it chooses, with which bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.bounds import Bounds, Rule, Sums, Transfer, select
from reticent.accounting.studies.certificates.engine import Transcripts

__all__ = ["Decisions", "bounds_at", "decide"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Decisions:
    """First certificate of every trial, (T,) each.

    Attributes:
        fired: a threshold was certified at some round.
        round: index of that round; the last one where none was.
        chosen: index of the chosen threshold; -1 where none was.
        events: N at that round.
        transfer: η at that round.
        contrast_upper, acceptance_lower: bounds at the chosen threshold; not a number where none was.
    """

    fired: NDArray[np.bool_]
    round: Index
    chosen: Index
    events: Array
    transfer: Array
    contrast_upper: Array
    acceptance_lower: Array


def decide(rule: Rule, claim: Claim, transcripts: Transcripts, weights: Array, drift: float = 0.0) -> Decisions:
    """Stop every trial at its first certificate.

    Args:
        weights: w, the declared mixture.
        drift: Σ w_k γ_k.
    """
    transfer = transcripts.transfer(weights, drift)
    certified = rule.certified(claim, transcripts.sums(), transfer)
    fires = np.asarray(certified.any(axis=2), dtype=np.bool_)
    trials, rounds = fires.shape
    fired = np.asarray(fires.any(axis=1), dtype=np.bool_)
    at = np.where(fired, fires.argmax(axis=1), rounds - 1).astype(np.int64)
    rows = np.arange(trials)
    bounds = bounds_at(rule, claim, transcripts, transfer, at)
    chosen = np.where(fired, select(rule.selection, bounds), -1)
    place = np.maximum(chosen, 0)
    return Decisions(
        fired,
        at,
        chosen,
        transcripts.events[rows, at],
        np.broadcast_to(transfer.contrast, (trials, rounds, 1))[rows, at, 0],
        np.where(fired, bounds.contrast_upper[rows, place], np.nan),
        np.where(fired, bounds.acceptance_lower[rows, place], np.nan),
    )


def bounds_at(rule: Rule, claim: Claim, transcripts: Transcripts, transfer: Transfer, at: Index) -> Bounds:
    """A rule's bounds at one round of each trial, (T, m)."""
    rows, every = np.arange(len(at)), transcripts.sums()
    shape = every.loss.shape
    events = np.broadcast_to(every.events, (*shape[:2], 1))[rows, at]
    sums = Sums(
        every.release,
        every.loss[rows, at],
        every.other[rows, at],
        np.broadcast_to(every.variance, shape)[rows, at],
        events,
        every.least_variance,
    )
    eta = [np.broadcast_to(x, (*shape[:2], 1))[rows, at] for x in (transfer.contrast, transfer.acceptance)]
    return rule.bounds(claim, sums, Transfer(*eta))
