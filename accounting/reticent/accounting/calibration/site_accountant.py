"""A site's own accountant: what its releases have cost every record and every person.

A release with scale σ and sensitivity Δ in one record costs a record μ² = Δ²/σ². The costs of several releases add up
(Gaussian differential privacy: μ² is additive; ρ = μ²/2 of zero-concentrated differential privacy is, too, and holds
for the discrete Gaussian). A person with c records in one release moves it by up to cΔ, which costs c²Δ²/σ²: not c
times, but c² times as much.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from reticent.accounting.calibration.site_errors import CapExceeded
from reticent.accounting.calibration.site_state import StoredRelease
from reticent.accounting.errors import require_positive

__all__ = ["SiteAccountant"]


class SiteAccountant:
    """Losses Σ μ² by record and by person, over all releases of a site.

    Args:
        releases: all of them, under whatever plan.
        record_cap, person_cap: largest Σ μ² of a record and of a person; > 0.
    """

    def __init__(self, releases: Iterable[StoredRelease], record_cap: float, person_cap: float) -> None:
        self._record_cap = require_positive("record_cap", record_cap)
        self._person_cap = require_positive("person_cap", person_cap)
        self._records: defaultdict[str, list[float]] = defaultdict(list)
        self._persons: defaultdict[str, list[float]] = defaultdict(list)
        for stored in releases:
            self._add(stored)

    def record_loss(self, key: str) -> float:
        """Σ μ² of a record."""
        return math.fsum(self._records.get(key, ()))

    def person_loss(self, key: str) -> float:
        """Σ μ² of a person."""
        return math.fsum(self._persons.get(key, ()))

    @property
    def largest_record_loss(self) -> float:
        """The most that a record has lost."""
        return max((math.fsum(losses) for losses in self._records.values()), default=0.0)

    @property
    def largest_person_loss(self) -> float:
        """The most that a person has lost."""
        return max((math.fsum(losses) for losses in self._persons.values()), default=0.0)

    def admits(self, record: str, person: str, together: int, unit_loss: float) -> bool:
        """True when the record may enter a release in which its person has `together` records, itself counted."""
        return (
            self.record_loss(record) + unit_loss <= self._record_cap
            and self.person_loss(person) + together**2 * unit_loss <= self._person_cap
        )

    def charge(self, stored: StoredRelease) -> None:
        """Book a release, or refuse it and book nothing.

        Raises:
            CapExceeded: a record or a person would come above its cap.
        """
        for unit, losses, cap in (
            ("record", [self.record_loss(key) + cost for key, cost in _record_costs(stored).items()], self._record_cap),
            ("person", [self.person_loss(key) + cost for key, cost in _person_costs(stored).items()], self._person_cap),
        ):
            worst = max(losses, default=0.0)
            if not worst <= cap:
                raise CapExceeded(unit, worst, cap)
        self._add(stored)

    def _add(self, stored: StoredRelease) -> None:
        for key, cost in _record_costs(stored).items():
            self._records[key].append(cost)
        for key, cost in _person_costs(stored).items():
            self._persons[key].append(cost)


def _record_costs(stored: StoredRelease) -> dict[str, float]:
    # A record that stood twice in one release would move it twice as far.
    return {key: count**2 * stored.unit_loss for key, count in Counter(stored.records).items()}


def _person_costs(stored: StoredRelease) -> dict[str, float]:
    return {key: count**2 * stored.unit_loss for key, count in Counter(stored.persons).items()}
