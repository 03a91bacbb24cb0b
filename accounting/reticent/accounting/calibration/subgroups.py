"""A family of subgroup plans from one base plan, with the error and the privacy budget split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from reticent.accounting.calibration.noise_scale import release_scale
from reticent.accounting.calibration.plan import Plan, Site
from reticent.accounting.calibration.subgroup import SUBGROUP_FACT, Subgroup
from reticent.accounting.fingerprint import Fingerprint

__all__ = ["subgroup_plans"]


def subgroup_plans(
    base: Plan,
    names: Iterable[str],
    *,
    overlap: int = 1,
    weights: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[Plan, ...]:
    """One plan a subgroup, sorted by name. The certificates of all of them together hold with the base plan's α's,
    and all their releases together are (ε, δ)-private with the base plan's ε and δ.

    Each member gets α_D/G and α_A/G for G names, and noise for (ε/overlap, δ/overlap): with disjoint subgroups the
    base plan's noise. Grid, schedule, drift and everything else are the base plan's.

    Args:
        base: a plan without a subgroup.
        names: of the subgroups.
        overlap: most subgroups that one record can belong to. A record that enters only one may be treated as if it
            entered more; the other way round the privacy statement is wrong.
        weights: by subgroup and site, the sites' shares of the subgroup's own deployment mixture. Those of a subgroup
            that is not named, or of all when left out, are the base plan's.

    Raises:
        ValueError: the base plan has a subgroup, a name or weight is wrong, or names a subgroup or site that is none.
    """
    if base.subgroup is not None:
        raise ValueError(f"the base plan is already of subgroup {base.subgroup.name!r}")
    family = tuple(sorted(names))
    given = dict(weights or {})
    if strangers := sorted(set(given) - set(family)):
        raise ValueError(f"weights are given for {strangers}, which are no subgroups")
    if not family:
        raise ValueError("a family needs at least one subgroup")
    epsilon, delta = base.epsilon / overlap, base.delta / overlap
    scale = base.noise_scale if overlap == 1 else release_scale(base.release, epsilon, delta)
    return tuple(
        replace(
            base,
            epsilon=epsilon,
            delta=delta,
            noise_scale=scale,
            alpha_risk=base.alpha_risk / len(family),
            alpha_acceptance=base.alpha_acceptance / len(family),
            sites=_sites(base, given.get(name)),
            subgroup=Subgroup(name, family, overlap),
            fingerprint=Fingerprint({**base.fingerprint.facts, SUBGROUP_FACT: name}),
        )
        for name in family
    )


def _sites(base: Plan, weights: Mapping[str, float] | None) -> tuple[Site, ...]:
    if weights is None:
        return base.sites
    if weights.keys() != {site.name for site in base.sites}:
        raise ValueError(f"weights must name the plan's sites, not {sorted(weights)}")
    return tuple(replace(site, weight=weights[site.name]) for site in base.sites)
