"""Why a calibration site refuses. Messages never repeat a score, a loss, an id or a person's name."""

from __future__ import annotations

from reticent.accounting.errors import AccountingError

# ruff: noqa: N818  -- the names state what happened; all are SiteError.

__all__ = [
    "CapExceeded",
    "IdsNeeded",
    "RecordLineInvalid",
    "RequestRefused",
    "SiteError",
    "StateDamaged",
    "StateInUse",
    "StateReadable",
    "TooFewRecords",
]


class SiteError(AccountingError):
    """Base of what a site refuses."""


class RecordLineInvalid(SiteError, ValueError):
    """A line of the records file cannot be used.

    Attributes:
        line: its number, from 1.
        problem: what is wrong with it.
    """

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


class TooFewRecords(SiteError, ValueError):
    """Not enough records are left for what a round asks: the site sends nothing and drops out of the round.

    Attributes:
        usable: records that may still enter a release.
        least, slots: how many the round needs, and asks for.
        used: records of the file that this plan has used.
        withheld: records that a cap keeps out.
    """

    def __init__(self, usable: int, least: int, slots: int, used: int, withheld: int) -> None:
        super().__init__(
            f"the round asks for {slots} records (at least {least}), {usable} can still be used: {used} were used "
            f"before, {withheld} are withheld by a cap"
        )
        self.usable = usable
        self.least = least
        self.slots = slots
        self.used = used
        self.withheld = withheld


class CapExceeded(SiteError, ValueError):
    """A release would take a record or a person beyond its cap.

    Attributes:
        unit: "record" or "person".
        loss: Σ 1/σ² that it would reach.
        cap: what is allowed.
    """

    def __init__(self, unit: str, loss: float, cap: float) -> None:
        super().__init__(f"a {unit} would reach {loss:.6g} (sum of 1/σ²), above the cap of {cap:.6g}")
        self.unit = unit
        self.loss = loss
        self.cap = cap


class IdsNeeded(SiteError, ValueError):
    """Records without ids under a second plan: the accountant could not tell which of them were released before."""

    def __init__(self) -> None:
        super().__init__("this site has released under another plan: its records need ids, so that they can be counted")


class RequestRefused(SiteError, ValueError):
    """The server asks for something that the site must not answer.

    Attributes:
        reason: "wrong_plan", "wrong_slots", "wrong_round" or "changed_request".
        detail: in words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class StateInUse(SiteError, RuntimeError):
    """Another process holds this site's state."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"another process uses {folder}")
        self.folder = folder


class StateReadable(SiteError, RuntimeError):
    """Other users could read the site's state, which names the records that were used."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"{folder} can be read by others; give it mode 700")
        self.folder = folder


class StateDamaged(SiteError, ValueError):
    """The site's state cannot be read. Without it the site cannot know what it has released, so it releases nothing."""
