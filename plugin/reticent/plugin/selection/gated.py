"""A private rule whose answers the gate judges by their noisy reward: its charge and the gate's, together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reticent.accounting.charges.gaussian import renyi_charge_rounded_up
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.selection.base import Rule, Selection, SelectionSession

__all__ = ["Gated", "gate_noise_of"]


class Gated:
    """`rule`, with αΔ²/(2σ_g²) on top of every selection, whatever the gate then says (privacy.md, section 5).

    Args:
        rule: a private rule.
        lattice: of the rewards: Δ with its granule.
        noise_scale: σ_g > 0, in reward units.
        order: α of the data set's ledger.

    Given everything that the rule released, the chosen text is the same under adjacent data sets, and its reward moves
    by at most Δ: a Gaussian step of its own, whose charge adds to the rule's.

    Raises:
        ValueError: the rule is not private; nothing bounds what its answers tell.
    """

    def __init__(self, rule: Rule, lattice: RewardLattice, *, noise_scale: float, order: float) -> None:
        if not rule.private:
            raise ValueError("only a private rule can be charged for the gate's noise")
        self._rule = rule
        self.noise_scale = noise_scale
        self.gate_charge = renyi_charge_rounded_up(order, lattice.sensitivity, noise_scale)
        """αΔ²/(2σ_g²) in 1e-9 nat, rounded up."""
        self.name = rule.name
        self.private: bool = True
        self.most_drawn = rule.most_drawn
        self.worst_case = rule.worst_case + self.gate_charge

    def facts(self) -> dict[str, Any]:
        """The rule's. The noise is a constant of the score, which stands in the fingerprint beside them."""
        return self._rule.facts()

    def charging(self) -> dict[str, str | float]:
        """The rule's, and the gate's noise."""
        return {**self._rule.charging(), "gate_noise": self.noise_scale}

    async def select(self, session: SelectionSession) -> Selection:
        """As the rule selects; charged for both."""
        selection = await self._rule.select(session)
        return replace(selection, charge=selection.charge + self.gate_charge)


def gate_noise_of(rule: Rule) -> float | None:
    """σ_g that a rule charges for; None where it charges for none.

    A rule without privacy, whose answers no charge bounds, has none either: its answers get no noisy score.
    """
    return rule.noise_scale if isinstance(rule, Gated) else None
