"""Rules broken on purpose. Each leaves out one thing that validity rests on, and must be seen to fail.

Source: SRC, appendix O.3 (noise ignored, variance halved, shift ignored, a fixed-time rule reused after stopping) and
table 3 (a rule for exact records that reads noised ones).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import ReleaseKind
from reticent.accounting.certificates.bounds import NO_TRANSFER, Bounds, Rule, Selection, Sums, Transfer
from reticent.accounting.certificates.rules import RULES
from reticent.accounting.studies.certificates.comparator_base import Comparator, Native
from reticent.accounting.studies.certificates.comparators import COMPARATORS

__all__ = ["CONTROLS", "Alteration", "Control", "native_of", "resolve", "study_rule_names", "unchanged"]

Alteration = Callable[[Sums, Transfer], tuple[Sums, Transfer]]

_ANY_TIME = Native("noised", "every", iid=False)


@dataclass(frozen=True)
class Control:
    """A rule that is fed something else than what it needs. Not valid, and `serves` is False.

    Attributes:
        name: control and rule, "noise_ignored:eprocess".
        rule: what is broken.
        native: how the study feeds it.
        alter: what it is fed in place of the sums and the transfer.
    """

    name: str
    rule: Rule
    native: Native
    alter: Alteration
    serves: bool = False

    @property
    def releases(self) -> frozenset[ReleaseKind]:
        """Of the rule."""
        return self.rule.releases

    @property
    def selection(self) -> Selection:
        """Of the rule."""
        return self.rule.selection

    def failure_probabilities(self, claim: Claim) -> Mapping[str, float]:
        """What the rule claims, and this does not keep."""
        return self.rule.failure_probabilities(claim)

    def certified(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> NDArray[np.bool_]:
        """What the rule would certify."""
        return self.rule.certified(claim, *self.alter(sums, transfer))

    def bounds(self, claim: Claim, sums: Sums, transfer: Transfer = NO_TRANSFER) -> Bounds:
        """What the rule would say."""
        return self.rule.bounds(claim, *self.alter(sums, transfer))


def _noise_ignored(sums: Sums, transfer: Transfer) -> tuple[Sums, Transfer]:
    return replace(sums, variance=0.0 * sums.variance), transfer


def _variance_halved(sums: Sums, transfer: Transfer) -> tuple[Sums, Transfer]:
    return replace(sums, variance=0.5 * sums.variance), transfer


def _shift_ignored(sums: Sums, _: Transfer) -> tuple[Sums, Transfer]:
    return sums, NO_TRANSFER


def unchanged(sums: Sums, transfer: Transfer) -> tuple[Sums, Transfer]:
    """The alteration that alters nothing."""
    return sums, transfer


CONTROLS: Mapping[str, Alteration] = MappingProxyType(
    {
        "noise_ignored": _noise_ignored,
        "variance_halved": _variance_halved,
        "shift_ignored": _shift_ignored,
        "after_stopping": unchanged,
        "naive": _noise_ignored,
    }
)
"""By name: "after_stopping" looks every round with a rule for the final one, "naive" feeds noise to a rule for exact
records. Used as `control:rule`."""


def native_of(rule: Rule) -> Native:
    """How a study feeds a rule: as the comparator or control says; a certification rule reads noised sums always."""
    return rule.native if isinstance(rule, (Comparator, Control)) else _ANY_TIME


def resolve(name: str) -> Rule:
    """A rule, a comparator, or `control:rule`.

    Raises:
        ValueError: no such thing, or a control that does not apply to that rule.
    """
    control, _, rest = name.rpartition(":")
    known: dict[str, Rule] = {**RULES, **COMPARATORS}
    if rest not in known or (control and control not in CONTROLS):
        raise ValueError(f"the rule must be one of {', '.join(study_rule_names())}, or CONTROL:RULE, got {name!r}")
    rule = known[rest]
    if not control:
        return rule
    native = native_of(rule)
    if control == "after_stopping" and native.looks == "every":
        raise ValueError(f"{rest} may look every round already")
    if control == "naive" and native.reads == "noised":
        raise ValueError(f"{rest} reads noised sums already; use noise_ignored")
    stopping = control == "after_stopping"
    fed = Native(
        native.reads if stopping else "noised", "every" if stopping else native.looks, native.iid, proved=False
    )
    return Control(name, rule, fed, CONTROLS[control])


def study_rule_names() -> tuple[str, ...]:
    """Rules and comparators by name, sorted."""
    return tuple(sorted({*RULES, *COMPARATORS}))
