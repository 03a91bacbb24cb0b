"""What a simulation is asked: rules, grids of their parameters, how candidates are drawn, and the budget."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.privitp import PrivITP, default_truncation
from reticent.accounting.errors import InvalidQuantityError, require_integer, require_positive
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.planning.accountings import common_order
from reticent.accounting.planning.queries import Budget
from reticent.accounting.studies.pools.noisy_best import require_noise

__all__ = ["RULES", "Cell", "Question", "Rule"]


@dataclass(frozen=True)
class Rule:
    """`what` in words; which parameters it has; whether a charge bounds what its answer tells."""

    what: str
    noisy: bool
    regularized: bool
    private: bool


RULES: Final[dict[str, Rule]] = {
    "base": Rule("one base sample, no reward read", False, False, True),
    "bon": Rule("best of n, not private", False, False, False),
    "privbon": Rule("best of n, Gumbel noise", True, False, True),
    "privbon_gaussian": Rule("best of n, Gaussian noise", True, False, True),
    "itp": Rule("inference-time pessimism, not private", False, True, False),
    "privitp": Rule("private inference-time pessimism, σ_X + σ_Z = σ", True, True, True),
}


@dataclass(frozen=True)
class Cell:
    """One rule with its parameters; None for those that it has not."""

    rule: str
    candidates: int
    noise_scale: float | None = None
    regularization: float | None = None


@dataclass(frozen=True)
class Question:
    """Args:
    candidates: every n ≥ 1.
    rules: keys of `RULES`.
    noise_scales: every σ > 0, in units of R, as all that follows; PrivITP has σ_X = share · σ, σ_Z the rest.
    regularizations: every β > 0.
    distinct: whether n candidates are n different answers of the pool, or n draws with replacement (the bootstrap).
    sensitivity: Δ in (0, 1]; 1 is assumption-free.
    truncation: L ≥ 0 of PrivITP; None for the paper's sqrt(3 log n).
    threshold_share: σ_X/σ, in (0, 1).
    budget: (ε, δ) of the data set.
    order: α; None for the best one.
    certified: whether PrivITP is charged by the server's certified table (a second for each n) or by `round_charges`.
    draws: sets of candidates a prompt, for what is sampled.
    seed: of those.

    Errors: `InvalidQuantityError`, and those of the mechanisms.
    """

    candidates: tuple[int, ...]
    rules: tuple[str, ...]
    noise_scales: tuple[float, ...] = ()
    regularizations: tuple[float, ...] = ()
    distinct: bool = True
    sensitivity: float = 1.0
    truncation: float | None = None
    threshold_share: float = 0.5
    budget: Budget = field(default_factory=lambda: Budget(50.0, 1e-6))
    order: float | None = None
    certified: bool = False
    draws: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.candidates or not self.rules:
            raise InvalidQuantityError("candidates, rules", "nothing", "at least one of each")
        for n in self.candidates:
            require_integer("candidates", n, 1, 65_536)
        require_integer("draws", self.draws, 8)
        for rule in self.rules:
            if rule not in RULES:
                raise InvalidQuantityError("rule", rule, f"one of {', '.join(RULES)}")
            if RULES[rule].noisy and not self.noise_scales:
                raise InvalidQuantityError("noise_scale", "missing", f"given for {rule}")
            if RULES[rule].regularized and not self.regularizations:
                raise InvalidQuantityError("regularization", "missing", f"given for {rule}")
        for scale in self.noise_scales:
            require_noise(require_positive("noise_scale", scale), 1.0)
        for beta in self.regularizations:
            require_positive("regularization", beta)
        if not 0.0 < self.threshold_share < 1.0:
            raise InvalidQuantityError("threshold_share", self.threshold_share, "between 0 and 1, both excluded")
        for cell in self.cells:
            self.mechanism(cell)

    @cached_property
    def alpha(self) -> float:
        """The ledger's order."""
        return common_order(self.budget) if self.order is None else self.order

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every rule with every combination of its own parameters, n fastest; `base` once."""
        found: list[Cell] = []
        for name in dict.fromkeys(self.rules):
            if name == "base":
                found.append(Cell("base", 1))
                continue
            rule = RULES[name]
            scales: Sequence[float | None] = self.noise_scales if rule.noisy else (None,)
            betas: Sequence[float | None] = self.regularizations if rule.regularized else (None,)
            for scale, beta, n in itertools.product(scales, betas, self.candidates):
                found.append(Cell(name, n, scale, beta))
        return tuple(dict.fromkeys(found))

    def mechanism(self, cell: Cell) -> PrivBoN | PrivBoNGaussian | PrivITP | None:
        """The cell's mechanism, which knows its charge; None for a rule without one."""
        lattice = RewardLattice(1.0, self.sensitivity)
        delta, n, sigma = lattice.sensitivity, cell.candidates, cell.noise_scale
        if sigma is None:
            return None
        if cell.rule == "privbon":
            return PrivBoN(1.0, delta, n, sigma)
        if cell.rule == "privbon_gaussian":
            return PrivBoNGaussian(1.0, delta, n, sigma, float(lattice.granule))
        L = default_truncation(n) if self.truncation is None else self.truncation
        sigma_X = self.threshold_share * sigma
        return PrivITP(1.0, delta, n, cell.regularization or 0.0, sigma_X, sigma - sigma_X, L, granule=0.0)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "draws": "distinct" if self.distinct else "bootstrap",
            "sensitivity": self.sensitivity,
            "truncation": self.truncation,
            "threshold_share": self.threshold_share,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "guarantee": self.budget.guarantee,
            "order": self.alpha,
            "certified_charges": self.certified,
            "sampled_sets": self.draws,
            "seed": self.seed,
        }
