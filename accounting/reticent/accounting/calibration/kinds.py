"""Names that a plan registers: kinds of release, and the rules that may judge one.

A table here, because a plan must check its rule without importing the rules, which import plans. A test holds it to
the registry in `reticent.accounting.certificates.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["COUNT_ERROR", "LOSS_NONLOSS", "RELEASE_KINDS", "SERVING_RULES", "ReleaseKind"]

ReleaseKind = str

LOSS_NONLOSS: ReleaseKind = "loss_nonloss"
"""Accepted loss Σℓ and accepted non-loss Σ(1-ℓ) of every bin. One record moves one cell: L2 sensitivity 1."""

COUNT_ERROR: ReleaseKind = "count_error"
"""Count and loss Σℓ of every bin (paper, equations 13 and 14). One record moves two cells: L2 sensitivity √2."""

RELEASE_KINDS: frozenset[ReleaseKind] = frozenset({LOSS_NONLOSS, COUNT_ERROR})

SERVING_RULES: Mapping[str, frozenset[ReleaseKind]] = MappingProxyType(
    dict.fromkeys(("crossing_line", "eprocess", "fed_src_c", "fed_src_va", "normal_mixture", "ratio"), RELEASE_KINDS)
)
"""Rules that a plan may name, each with the kinds of release it reads."""
