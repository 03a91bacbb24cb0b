"""The registered plan: everything that is decided before the first calibration record is seen.

The plan is frozen, and its digest stands in every release. What each site will be asked for in each round
(`Plan.slots`) follows from the plan alone, so site, batch size, noise scale and release are fixed before any record
of the round.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.documents import (
    InvalidDocumentError,
    read_fields,
    read_file,
    read_float,
    read_floats,
    read_int,
    read_list,
    read_object,
    read_text,
    write_atomically,
)
from reticent.accounting.calibration.kinds import LOSS_NONLOSS, RELEASE_KINDS, SERVING_RULES, ReleaseKind
from reticent.accounting.calibration.noise_scale import release_delta, release_scale
from reticent.accounting.calibration.recruitment import Recruitment
from reticent.accounting.calibration.subgroup import SUBGROUP_FACT, Subgroup
from reticent.accounting.fingerprint import Fingerprint, canonical_json, sha256_hex

__all__ = ["PLAN_FORMAT", "Plan", "Schedule", "Site", "share"]

PLAN_FORMAT = "reticent-plan/1"
MAX_EVENTS = 10**9
MAX_THRESHOLDS = 1000


@dataclass(frozen=True)
class Schedule:
    """When the rule looks. It affects power only, never validity.

    Args:
        first_look: slots in all, over the sites, at the first look.
        growth: each later look has at least this many times the slots of the one before; > 1.
        rounds: number of looks planned. The operator may stop at any of them.
    """

    first_look: int
    growth: float = 1.4
    rounds: int = 1

    def __post_init__(self) -> None:
        _as_floats(self, ("growth",))
        if self.first_look < 1 or self.rounds < 1:
            raise ValueError(f"first_look and rounds must be at least 1, got {self.first_look} and {self.rounds}")
        if not 1.0 < self.growth < math.inf:
            raise ValueError(f"growth must be finite and above 1, got {self.growth!r}")
        if self.looks()[-1] > MAX_EVENTS:
            raise ValueError(f"the schedule asks for more than {MAX_EVENTS} slots")

    def looks(self) -> tuple[int, ...]:
        """Slots in all by the end of each round, increasing; cut short once the limit of 1e9 is passed."""
        totals = [self.first_look]
        while len(totals) < self.rounds and totals[-1] <= MAX_EVENTS:
            totals.append(max(totals[-1] + 1, math.ceil(totals[-1] * self.growth)))
        return tuple(totals)


@dataclass(frozen=True)
class Site:
    """A calibration site.

    Args:
        name: unique in the plan.
        weight: w_k ≥ 0, its share of the declared deployment mixture.
        drift: γ_k in [0, 1], declared bound on the total variation distance between the law of the site's slots and
            the law of its answers in deployment. Declared by the operator, not established by the certificate.
    """

    name: str
    weight: float
    drift: float = 0.0

    def __post_init__(self) -> None:
        _as_floats(self, ("weight", "drift"))
        if not self.name or self.name != self.name.strip():
            raise ValueError(f"a site's name must not be empty or padded with spaces, got {self.name!r}")
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"the weight of {self.name!r} must lie in [0, 1], got {self.weight!r}")
        if not 0.0 <= self.drift <= 1.0:
            raise ValueError(f"the drift of {self.name!r} must lie in [0, 1], got {self.drift!r}")


@dataclass(frozen=True)
class Plan:
    """A registered calibration.

    Args:
        target_risk: r*, the expected declared loss of accepted answers that is to be certified.
        thresholds: λ_1 < … < λ_m in [0, 1], fixed beforehand or taken from a development split.
        sites: at least one; the weights sum to 1.
        epsilon, delta: of the privacy of one slot under zero-out adjacency: one slot enters one release.
        noise_scale: σ of the discrete Gaussian added to each of the 2(m+1) cells; checked here against (epsilon,
            delta) and the kind of release.
        schedule: see `Schedule`.
        loss, score: names of the declared loss and score.
        fingerprint: the configuration that is calibrated.
        min_acceptance, alpha_risk, alpha_acceptance: a_min, α_D, α_A.
        max_unfilled: largest fraction of a release's slots that may carry no record; see `SiteBatch`. Every unfilled
            slot costs power through `Aggregate.contrast_transfer`.
        rule: name of the rule that judges the transcript; one of `SERVING_RULES`. What is only for studies is refused.
        release: kind of release, see `kinds`; left out of the document when it is the default.
        recruitment: which sites a round asks; left out of the document when it is the default.
        subgroup: the plan's place in a family of subgroup plans; left out of the document when there is none.

    Raises:
        ValueError: any value outside its range, or noise too small for (epsilon, delta).
    """

    target_risk: float
    thresholds: tuple[float, ...]
    sites: tuple[Site, ...]
    epsilon: float
    delta: float
    noise_scale: float
    schedule: Schedule
    loss: str
    score: str
    fingerprint: Fingerprint = field(repr=False)
    min_acceptance: float = 0.05
    alpha_risk: float = 0.045
    alpha_acceptance: float = 0.005
    max_unfilled: float = 0.0
    rule: str = "eprocess"
    release: ReleaseKind = LOSS_NONLOSS
    recruitment: Recruitment = field(default_factory=Recruitment)
    subgroup: Subgroup | None = None

    def __post_init__(self) -> None:
        _as_floats(self, _NUMBERS)
        object.__setattr__(self, "thresholds", tuple(float(x) for x in self.thresholds))
        object.__setattr__(self, "sites", tuple(self.sites))
        _ = self.claim
        _check_thresholds(self.thresholds)
        _check_sites(self.sites)
        _check_rule(self.rule, self.release)
        _check_privacy(self.release, self.epsilon, self.delta, self.noise_scale)
        if not 0.0 <= self.max_unfilled < 1.0:
            raise ValueError(f"max_unfilled must lie in [0, 1), got {self.max_unfilled!r}")
        if not self.loss or not self.score:
            raise ValueError("loss and score need names")
        _check_subgroup(self.subgroup, self.fingerprint)

    @classmethod
    def calibrated(cls, *, epsilon: float, delta: float, release: ReleaseKind = LOSS_NONLOSS, **rest: object) -> Plan:
        """A plan with the smallest noise that gives (epsilon, delta); the other arguments are those of `Plan`."""
        scale = release_scale(release, epsilon, delta)
        return cls(epsilon=epsilon, delta=delta, noise_scale=scale, release=release, **rest)  # type: ignore[arg-type]

    @cached_property
    def claim(self) -> Claim:
        """What the certificate will state."""
        return Claim(self.target_risk, self.min_acceptance, self.alpha_risk, self.alpha_acceptance)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON. Register it before the first record."""
        return sha256_hex(self.to_json())

    @property
    def bins(self) -> int:
        """m + 1: bin 0 lies below the first threshold, bin b holds the scores in [λ_b, λ_{b+1})."""
        return len(self.thresholds) + 1

    def site_index(self, name: str) -> int:
        """Position of a site.

        Raises:
            ValueError: no site has this name.
        """
        for index, site in enumerate(self.sites):
            if site.name == name:
                return index
        raise ValueError(f"the plan has no site {name!r}")

    def slots(self, round_number: int, site: str) -> int:
        """Slots that `site` releases in `round_number` (from 1): public, and known when the plan is.

        A site's running total is its share of the look, rounded up, so realised weights follow the declared ones
        closely.

        Raises:
            ValueError: no such round or site.
        """
        if not 1 <= round_number <= self.schedule.rounds:
            raise ValueError(f"the plan has rounds 1 to {self.schedule.rounds}, not {round_number}")
        weight = self.sites[self.site_index(site)].weight
        looks = (0, *self.schedule.looks())
        before, after = (share(looks[index], weight) for index in (round_number - 1, round_number))
        return after - before

    def least_records(self, slots: int) -> int:
        """Fewest records of a release of so many slots; the others are empty."""
        return max(0, slots - math.floor(self.max_unfilled * slots))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan, replacing the file as a whole."""
        write_atomically(path, canonical_json(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan.

        Raises:
            OSError: the file cannot be read.
            InvalidDocumentError: as `from_json`.
        """
        return cls.from_json(read_file(path, "plan"))

    def to_json(self) -> dict[str, object]:
        """The plan as JSON values."""
        return {
            "format": PLAN_FORMAT,
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*_NESTED, *_OPTIONAL)},
            **({} if self.recruitment == Recruitment() else {"recruitment": self.recruitment.to_json()}),
            **({} if self.release == LOSS_NONLOSS else {"release": self.release}),
            **({} if self.subgroup is None else {"subgroup": self.subgroup.to_json()}),
            "thresholds": list(self.thresholds),
            "sites": [{"name": s.name, "weight": s.weight, "drift": s.drift} for s in self.sites],
            "schedule": {f.name: getattr(self.schedule, f.name) for f in fields(self.schedule)},
            "fingerprint": self.fingerprint.facts,
        }

    @classmethod
    def from_json(cls, value: object) -> Plan:
        """Read a plan strictly: every field present, none besides, each of its own type.

        Raises:
            InvalidDocumentError: not a plan, or a plan that `Plan` refuses.
        """
        try:
            required = ("format", *(f.name for f in fields(cls) if f.name not in _OPTIONAL))
            present = [name for name in _OPTIONAL if name in read_object(value, "plan")]
            return cls._from_fields(read_fields(value, "plan", (*required, *present)))
        except (ValueError, TypeError) as error:
            if isinstance(error, InvalidDocumentError):
                raise
            raise InvalidDocumentError("plan", str(error)) from error

    @classmethod
    def _from_fields(cls, doc: Mapping[str, object]) -> Plan:
        if doc["format"] != PLAN_FORMAT:
            raise InvalidDocumentError("plan.format", f"is {doc['format']!r}, not {PLAN_FORMAT!r}")
        return cls(
            thresholds=read_floats(doc["thresholds"], "plan.thresholds"),
            sites=tuple(_site(item, f"plan.sites.{i}") for i, item in enumerate(read_list(doc["sites"], "plan.sites"))),
            schedule=_schedule(doc["schedule"]),
            fingerprint=Fingerprint(read_object(doc["fingerprint"], "plan.fingerprint")),
            loss=read_text(doc["loss"], "plan.loss"),
            score=read_text(doc["score"], "plan.score"),
            rule=read_text(doc["rule"], "plan.rule"),
            release=read_text(doc["release"], "plan.release") if "release" in doc else LOSS_NONLOSS,
            recruitment=Recruitment.from_json(doc["recruitment"]) if "recruitment" in doc else Recruitment(),
            subgroup=Subgroup.from_json(doc["subgroup"]) if "subgroup" in doc else None,
            **{name: read_float(doc[name], f"plan.{name}") for name in _NUMBERS},
        )


_NESTED = ("thresholds", "sites", "schedule", "fingerprint")
# Left out of a document when they have their default, so that old digests stay.
_OPTIONAL = ("recruitment", "release", "subgroup")
_NUMBERS = (
    "target_risk",
    "epsilon",
    "delta",
    "noise_scale",
    "min_acceptance",
    "alpha_risk",
    "alpha_acceptance",
    "max_unfilled",
)


def _as_floats(value: object, names: tuple[str, ...]) -> None:
    # An int or a numpy float would be written differently, and a plan has one digest.
    for name in names:
        object.__setattr__(value, name, float(getattr(value, name)))


def share(total: int, weight: float) -> int:
    """Slots of a site of this weight among `total`, rounded up."""
    # 0.07 * 100 is a little above 7 in floating point; that must not ask for an eighth slot.
    return math.ceil(total * weight - 1e-6)


def _site(value: object, where: str) -> Site:
    doc = read_fields(value, where, ("name", "weight", "drift"))
    return Site(
        read_text(doc["name"], f"{where}.name"),
        read_float(doc["weight"], f"{where}.weight"),
        read_float(doc["drift"], f"{where}.drift"),
    )


def _schedule(value: object) -> Schedule:
    doc = read_fields(value, "plan.schedule", ("first_look", "growth", "rounds"))
    return Schedule(
        read_int(doc["first_look"], "plan.schedule.first_look"),
        read_float(doc["growth"], "plan.schedule.growth"),
        read_int(doc["rounds"], "plan.schedule.rounds"),
    )


def _check_thresholds(thresholds: tuple[float, ...]) -> None:
    if not 1 <= len(thresholds) <= MAX_THRESHOLDS:
        raise ValueError(f"a plan has 1 to {MAX_THRESHOLDS} thresholds, got {len(thresholds)}")
    for threshold in thresholds:
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"thresholds must lie in [0, 1], got {threshold!r}")
    for low, high in pairwise(thresholds):
        if not low < high:
            raise ValueError(f"thresholds must increase, but {high!r} follows {low!r}")


def _check_sites(sites: tuple[Site, ...]) -> None:
    if not sites:
        raise ValueError("a plan needs at least one site")
    names = [site.name for site in sites]
    if len(set(names)) != len(names):
        raise ValueError(f"site names must be unique, got {names}")
    total = math.fsum(site.weight for site in sites)
    if abs(total - 1.0) > 1e-12:
        raise ValueError(f"the sites' weights must sum to 1, they sum to {total!r}")


def _check_subgroup(subgroup: Subgroup | None, fingerprint: Fingerprint) -> None:
    # The gate finds a certificate by its fingerprint, so what the plan says of its subgroup must stand there.
    stated = fingerprint.facts.get(SUBGROUP_FACT)
    if stated != (None if subgroup is None else subgroup.name):
        raise ValueError(f"the fingerprint says subgroup {stated!r}, the plan {subgroup and subgroup.name!r}")


def _check_rule(rule: str, release: ReleaseKind) -> None:
    if rule not in SERVING_RULES:
        raise ValueError(f"the rule must be one of {sorted(SERVING_RULES)}, got {rule!r}")
    if release not in RELEASE_KINDS or release not in SERVING_RULES[rule]:
        raise ValueError(f"rule {rule!r} reads the releases {sorted(SERVING_RULES[rule])}, got {release!r}")


def _check_privacy(release: ReleaseKind, epsilon: float, delta: float, noise_scale: float) -> None:
    if not (0.0 < epsilon < math.inf and 0.0 < delta < 1.0 and 0.0 < noise_scale < math.inf):
        raise ValueError(
            f"need epsilon > 0, 0 < delta < 1, noise_scale > 0; got {epsilon!r}, {delta!r}, {noise_scale!r}"
        )
    reached = release_delta(release, epsilon, noise_scale) * (1.0 + 1e-9)  # its relative error is below that
    if not reached <= delta:
        raise ValueError(f"noise_scale {noise_scale!r} gives delta {reached!r} at epsilon {epsilon!r}, above {delta!r}")
