"""A plan's place in a family of subgroup plans: one public attribute of requests, one plan for each of its values.

Every plan of a family has its own slots, histograms, transcript, verdict and threshold, and answers only for requests
of its subgroup: the name is a fact of its fingerprint. What the family costs together follows from each member alone:

* Error. The members' failure probabilities add up (a union over the family), so one certificate of a family of G is
  issued at α/G. `Plan.alpha_risk` and `alpha_acceptance` are those of the one plan.
* Privacy, adjacency zero-out of one slot whose subgroup is public: a slot is a slot of one plan, and its record enters
  the releases of the subgroups that it belongs to, `overlap` at most. Disjoint subgroups (`overlap` 1) touch different
  records, so the family is as private as one member (parallel composition). With an overlap of k a record enters k
  releases at most, and the family is (k ε, k δ)-private by basic composition. `Plan.epsilon` and `delta` are those of
  one release.

The subgroup must be fixed before a record is scored, by the attribute alone: never by score, loss or answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reticent.accounting.calibration.documents import read_fields, read_int, read_text, read_texts

__all__ = ["SUBGROUP_FACT", "Subgroup"]

SUBGROUP_FACT = "subgroup"
"""Name of the fact in a fingerprint, absent for requests that belong to no subgroup."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST = 1000


@dataclass(frozen=True)
class Subgroup:
    """One member of a registered family.

    Args:
        name: this plan's subgroup, one of `family`.
        family: names of all subgroups that are calibrated together, sorted, each once; 1 to 1000.
        overlap: most subgroups that one record can belong to; 1 where they are disjoint.

    Raises:
        ValueError: a value outside its range.
    """

    name: str
    family: tuple[str, ...]
    overlap: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", tuple(self.family))
        if not 1 <= len(self.family) <= _MOST:
            raise ValueError(f"a family has 1 to {_MOST} subgroups, got {len(self.family)}")
        for name in self.family:
            if not _NAME.fullmatch(name):
                raise ValueError(f"a subgroup's name has 1 to 64 letters, digits, '.', '_' or '-', got {name!r}")
        if list(self.family) != sorted(set(self.family)):
            raise ValueError(f"a family's names must be sorted and stand once, got {list(self.family)}")
        if self.name not in self.family:
            raise ValueError(f"{self.name!r} is no subgroup of {list(self.family)}")
        if isinstance(self.overlap, bool) or not 1 <= self.overlap <= len(self.family):
            raise ValueError(f"overlap must lie between 1 and the number of subgroups, got {self.overlap!r}")

    def to_json(self) -> dict[str, object]:
        """The subgroup as JSON values."""
        return {"name": self.name, "family": list(self.family), "overlap": self.overlap}

    @classmethod
    def from_json(cls, value: object, where: str = "plan.subgroup") -> Subgroup:
        """Read a subgroup strictly.

        Raises:
            InvalidDocumentError: a missing, unknown or ill-typed field.
            ValueError: as the constructor.
        """
        doc = read_fields(value, where, ("name", "family", "overlap"))
        return cls(
            read_text(doc["name"], f"{where}.name"),
            read_texts(doc["family"], f"{where}.family"),
            read_int(doc["overlap"], f"{where}.overlap"),
        )
