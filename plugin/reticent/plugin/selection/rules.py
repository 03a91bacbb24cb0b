"""From configuration to rules, made once per (rule, number of candidates) and kept."""

from __future__ import annotations

from functools import lru_cache
from typing import get_args

from reticent.accounting.charges.privitp import PrivITP as Mechanism
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.base import Rule
from reticent.plugin.selection.gated import Gated
from reticent.plugin.selection.nonprivate import ITP, BoN
from reticent.plugin.selection.privbon import PrivBoN
from reticent.plugin.selection.privitp import PrivITP
from reticent.plugin.settings import RuleName, SelectionSettings

__all__ = ["NONPRIVATE", "RuleBook"]

NONPRIVATE: frozenset[str] = frozenset({"bon", "itp"})
_KEPT = 256


class RuleBook:
    """Every rule that the configuration allows.

    Args:
        settings: parameters.
        lattice: reward scale and sensitivity.
        order: α of the data set's ledger.
        gate_noise: σ_g where the gate judges by a noisy reward: every private rule then charges for it too.
    """

    def __init__(
        self, settings: SelectionSettings, lattice: RewardLattice, order: float, gate_noise: float | None = None
    ) -> None:
        self.gate_noise = gate_noise
        self._settings = settings
        self._lattice = lattice
        self._order = order
        self._kept = lru_cache(maxsize=_KEPT)(self._build)

    def rule(self, name: RuleName, candidates: int) -> Rule:
        """The rule called `name` with n = `candidates`."""
        return self._kept(name, candidates)

    def check(self) -> None:
        """Build every rule once, so that parameters out of range stop the start and not the first request.

        Raises:
            InvalidQuantityError: one that a mechanism refuses.
        """
        for name in get_args(RuleName):
            self.rule(name, self._settings.candidates)

    def _build(self, name: RuleName, candidates: int) -> Rule:
        rule = self._bare(name, candidates)
        if self.gate_noise is None or not rule.private:
            return rule
        return Gated(rule, self._lattice, noise_scale=self.gate_noise, order=self._order)

    def _bare(self, name: RuleName, candidates: int) -> Rule:
        match name:
            case "privbon":
                return PrivBoN(
                    self._lattice, candidates=candidates, noise_scale=self._settings.noise_scale, order=self._order
                )
            case "privitp":
                mechanism = self._mechanism(candidates)
                parameters = self._settings.privitp
                return PrivITP(
                    self._lattice,
                    mechanism,
                    chunk=parameters.chunk,
                    order=self._order,
                    accounting=parameters.accounting,
                )
            case "bon":
                return BoN(candidates=candidates)
            case "itp":
                return ITP(self._lattice, self._mechanism(candidates))

    def _mechanism(self, candidates: int) -> Mechanism:
        parameters = self._settings.privitp
        return Mechanism(
            reward_max=self._lattice.reward_max,
            sensitivity=self._lattice.sensitivity,
            candidates=candidates,
            regularization=parameters.regularization,
            threshold_noise=parameters.threshold_noise,
            reward_noise=parameters.reward_noise,
            truncation=parameters.truncation,
            granule=float(self._lattice.granule),
        )
