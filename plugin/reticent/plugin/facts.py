"""The public facts that an answer depends on: what a certificate is bound to by its fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reticent.accounting.calibration.subgroup import SUBGROUP_FACT
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.resolve import Plan
from reticent.plugin.settings import Settings
from reticent.rewards.ports import RewardDescription
from reticent.rewards.scores import Score, score_facts

__all__ = ["request_facts", "server_facts"]


def server_facts(settings: Settings, head: RewardDescription, lattice: RewardLattice, score: Score) -> dict[str, Any]:
    """What no request changes: base model, reward model, score.

    Of the reward model only public facts: never a hash of its weights or of its data, which would confirm a guess.
    """
    return {
        "base_model": {"name": settings.model.name, "revision": settings.model.revision},
        "reward_model": {**head.public_facts(), "sensitivity": lattice.sensitivity, "lattice_bits": lattice.bits},
        "score": score_facts(score),
    }


def request_facts(server: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The server's facts and those of one request: rule and its parameters, sampling, form of the prompt, and its
    subgroup if it has one.

    What only some requests ask for stands there only for those, so that it changes no other request's fingerprint, and
    is covered by no certificate that was made without it. More than one choice is such a thing: each of them obeys the
    same law, but whoever reads several has a better chance that a wrong one is among the accepted.
    """
    return {
        **server,
        "selection": plan.rule.facts(),
        "sampling": plan.sampling.facts(),
        "prompt": {"form": plan.prompt.form, "template": plan.prompt.template},
        **({} if plan.subgroup is None else {SUBGROUP_FACT: plan.subgroup}),
        **({} if plan.choices == 1 else {"choices": plan.choices}),
    }
