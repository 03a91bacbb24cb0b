"""How many slots each site is asked for in a round: a function of the plan and of the releases before, nothing else.

This is what makes recruitment predictable (SRC, section 3.2): the request stands before any record of the round is
seen. A replayed transcript computes every request again and compares.
"""

from __future__ import annotations

from collections.abc import Sequence

from reticent.accounting.calibration.plan import Plan, share

__all__ = ["asked_slots"]


def asked_slots(plan: Plan, round_number: int, events_by_site: Sequence[int]) -> tuple[int, ...]:
    """Slots asked of each site in a round, in the plan's order; 0 where a site is not asked.

    Under "fixed" this is `Plan.slots`. Under "largest_deficit" let T be the slots planned by the end of the round and
    N_k those that site k has released; site k lacks ⌈w_k T⌉ - N_k. The `sites_per_round` sites that lack most are
    asked, each for all that it lacks; of sites that lack equally much the earlier in the plan comes first. Without
    dropouts and with every site asked, the two are the same.

    Args:
        round_number: from 1.
        events_by_site: N_k over the rounds before, in the plan's order.

    Raises:
        ValueError: no such round, or not one number for each site.
    """
    if len(events_by_site) != len(plan.sites):
        raise ValueError(f"the plan has {len(plan.sites)} sites, got {len(events_by_site)} numbers of events")
    if plan.recruitment.is_fixed:
        return tuple(plan.slots(round_number, site.name) for site in plan.sites)
    if not 1 <= round_number <= plan.schedule.rounds:
        raise ValueError(f"the plan has rounds 1 to {plan.schedule.rounds}, not {round_number}")
    look = plan.schedule.looks()[round_number - 1]
    lacking = [max(0, share(look, site.weight) - count) for site, count in zip(plan.sites, events_by_site, strict=True)]
    order = sorted(range(len(lacking)), key=lambda k: (-lacking[k], k))
    chosen = order[: plan.recruitment.sites_per_round or len(order)]
    return tuple(count if k in chosen else 0 for k, count in enumerate(lacking))
