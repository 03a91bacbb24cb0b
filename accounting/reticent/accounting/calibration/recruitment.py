"""Which sites a round asks, as a plan declares it."""

from __future__ import annotations

from dataclasses import dataclass

from reticent.accounting.calibration.documents import InvalidDocumentError, read_fields, read_int, read_text

__all__ = ["FIXED", "LARGEST_DEFICIT", "Recruitment"]

FIXED = "fixed"
LARGEST_DEFICIT = "largest_deficit"


@dataclass(frozen=True)
class Recruitment:
    """How a plan chooses the sites of a round. What follows from it is computed in `controller.asked_slots`.

    Args:
        controller: "fixed": every round asks every site for its share, and what a dropout leaves out stays out.
            "largest_deficit": a round asks the sites that lack most, each for all that it lacks at this look, so a
            dropout is made up for later.
        sites_per_round: for "largest_deficit", how many sites a round asks at most; 0 means all that lack
            something. Fewer, larger releases put less noise in.

    Raises:
        ValueError: another controller, or a number of sites where it has no meaning.
    """

    controller: str = FIXED
    sites_per_round: int = 0

    def __post_init__(self) -> None:
        if self.controller not in (FIXED, LARGEST_DEFICIT):
            raise ValueError(f"the controller must be {FIXED!r} or {LARGEST_DEFICIT!r}, got {self.controller!r}")
        if isinstance(self.sites_per_round, bool) or self.sites_per_round < 0:
            raise ValueError(f"sites_per_round must be at least 0, got {self.sites_per_round!r}")
        if self.controller == FIXED and self.sites_per_round:
            raise ValueError("a fixed plan asks every site in every round; sites_per_round is of largest_deficit")

    @property
    def is_fixed(self) -> bool:
        """True when the slots of every round follow from the plan alone."""
        return self.controller == FIXED

    def to_json(self) -> dict[str, object]:
        """The recruitment as JSON values."""
        return {"controller": self.controller, "sites_per_round": self.sites_per_round}

    @classmethod
    def from_json(cls, value: object, where: str = "plan.recruitment") -> Recruitment:
        """Read a recruitment strictly; the default one must be left out, so that a plan has one digest.

        Raises:
            InvalidDocumentError: a missing, unknown or ill-typed field, or the default.
        """
        doc = read_fields(value, where, ("controller", "sites_per_round"))
        found = cls(
            read_text(doc["controller"], f"{where}.controller"),
            read_int(doc["sites_per_round"], f"{where}.sites_per_round"),
        )
        if found == cls():
            raise InvalidDocumentError(where, "is the default, which is left out")
        return found
