"""Certification rules, one a file. Every one is proved, in its file or in the paper, and a plan may name any of them.

What is not proved, or not for a deployment (comparators, invalid controls, noise that is not safe in floating point),
stands with the studies, and nothing there is in `RULES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from reticent.accounting.certificates.bounds import Rule
from reticent.accounting.certificates.rules.crossing_line import CrossingLine
from reticent.accounting.certificates.rules.eprocess import EProcess
from reticent.accounting.certificates.rules.fed_src_c import FedSrcC
from reticent.accounting.certificates.rules.fed_src_va import FedSrcVA
from reticent.accounting.certificates.rules.normal_mixture import NormalMixture
from reticent.accounting.certificates.rules.ratio import Ratio
from reticent.accounting.errors import AccountingError

__all__ = [
    "RULES",
    "CrossingLine",
    "EProcess",
    "FedSrcC",
    "FedSrcVA",
    "NormalMixture",
    "Ratio",
    "RuleNotForServingError",
    "serving_rule",
]

RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.name: rule for rule in (CrossingLine(), EProcess(), FedSrcC(), FedSrcVA(), NormalMixture(), Ratio())}
)


class RuleNotForServingError(AccountingError, ValueError):
    """A certificate may not rest on this rule.

    Attributes:
        name: of the rule.
        release: kind of release that it was asked to read.
        problem: why not.
    """

    def __init__(self, name: str, release: str, problem: str) -> None:
        super().__init__(f"rule {name!r} cannot serve on {release!r} releases: {problem}")
        self.name = name
        self.release = release
        self.problem = problem


def serving_rule(name: str, release: str, rules: Mapping[str, Rule] = RULES) -> Rule:
    """The rule that a plan names, if a certificate may rest on it.

    Raises:
        RuleNotForServingError: no such rule, a rule for studies only, or one that does not read such releases.
    """
    if name not in rules:
        raise RuleNotForServingError(name, release, f"the rules are {sorted(rules)}")
    rule = rules[name]
    if not rule.serves:
        raise RuleNotForServingError(name, release, "it is for studies only")
    if release not in rule.releases:
        raise RuleNotForServingError(name, release, f"it reads {sorted(rule.releases)}")
    return rule
