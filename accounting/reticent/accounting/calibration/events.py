"""What a transcript may hold beside releases: rounds that were opened and closed.

Both follow from the plan, from what came before and from the clock. They are written down so that a replay can check
that a request stood before its answers, and that a site was counted as absent before its release was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from reticent.accounting.calibration.documents import (
    InvalidDocumentError,
    read_fields,
    read_int,
    read_object,
    read_texts,
    read_time,
)

__all__ = ["RoundClosed", "RoundEvent", "RoundOpened"]


@dataclass(frozen=True)
class RoundOpened:
    """A round that has begun.

    Attributes:
        round_number: from 1.
        asked: (site, slots) for every site that is asked, in the plan's order; slots ≥ 1.
        closes_at: UTC; a release that arrives at this time or later is refused.
    """

    round_number: int
    asked: tuple[tuple[str, int], ...]
    closes_at: datetime

    def slots(self, site: str) -> int:
        """Slots asked of a site; 0 when it is not asked."""
        return dict(self.asked).get(site, 0)

    def to_json(self) -> dict[str, object]:
        """The event as JSON values."""
        content = {"round": self.round_number, "asked": dict(self.asked), "closes_at": self.closes_at.isoformat()}
        return {"opened": content}


@dataclass(frozen=True)
class RoundClosed:
    """A round that is over.

    Attributes:
        round_number: from 1.
        dropped: sites that were asked and had not released by then, in the plan's order.
    """

    round_number: int
    dropped: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The event as JSON values."""
        return {"closed": {"round": self.round_number, "dropped": list(self.dropped)}}


RoundEvent = RoundOpened | RoundClosed


def read_event(kind: str, value: object, where: str) -> RoundEvent:
    """The event named `kind` ("opened" or "closed").

    `asked` comes in the order of the document, which canonical JSON sorts; compare it as a mapping.
    """
    if kind == "opened":
        doc = read_fields(value, where, ("round", "asked", "closes_at"))
        asked = read_object(doc["asked"], f"{where}.asked")
        return RoundOpened(
            read_int(doc["round"], f"{where}.round"),
            tuple((site, read_int(slots, f"{where}.asked.{site}")) for site, slots in asked.items()),
            read_time(doc["closes_at"], f"{where}.closes_at"),
        )
    if kind == "closed":
        doc = read_fields(value, where, ("round", "dropped"))
        return RoundClosed(read_int(doc["round"], f"{where}.round"), read_texts(doc["dropped"], f"{where}.dropped"))
    raise InvalidDocumentError(where, f"{kind!r} is no kind of event")
