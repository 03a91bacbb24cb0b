"""What every selection rule is: parameters, a worst case, and a way from candidates to the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reticent.plugin.ports import Candidate

__all__ = ["Rule", "Selection", "SelectionSession", "fit_of", "one_more"]


class SelectionSession(Protocol):
    """What a rule may do while it selects. It sees candidates and integer rewards, and nothing else.

    A candidate that is not `fit` is set aside before rewards are asked for: that does not depend on them.
    """

    async def draw(self, count: int) -> list[Candidate]:
        """Fresh candidates from the base model."""

    async def rewards(self, candidates: Sequence[Candidate]) -> list[int]:
        """Their rewards in granules of the lattice. From the first call on, the reservation cannot be released."""


@dataclass(frozen=True)
class Selection:
    """What a rule released, and what that costs.

    Attributes:
        chosen: the answer; one that is not `fit` where no candidate is, which is not to be released.
        peers: other candidates whose number and choice do not depend on rewards; scores may compare with them.
        charge: realised charge in 1e-9 nat; 0 for rules that are not private, which have no charge.
        halting_time: PrivITP's t (candidates looked at in phase 2), None for other rules. Released: it is paid for.
        fallback: True where no candidate was accepted and one more base sample is the answer.
    """

    chosen: Candidate
    peers: tuple[Candidate, ...]
    charge: int
    halting_time: int | None = None
    fallback: bool = False


class Rule(Protocol):
    """A selection rule with its parameters fixed.

    What the caller must guarantee: a reservation of at least `worst_case` is held before `select` asks for rewards,
    and the charge of the selection is settled before anything of it leaves.
    """

    name: str
    private: bool
    worst_case: int
    """Largest possible charge in 1e-9 nat."""
    most_drawn: int
    """Most candidates that one selection draws."""

    def facts(self) -> dict[str, Any]:
        """Name and every parameter: the part of the fingerprint that this rule is."""

    def charging(self) -> dict[str, str | float]:
        """How it is charged: what an auditor needs beside `facts` to compute the worst case again."""

    async def select(self, session: SelectionSession) -> Selection:
        """Draw, score and choose."""


def fit_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that have the form that the request asks for; all where it asks for none."""
    return [candidate for candidate in candidates if candidate.fit]


async def one_more(session: SelectionSession, again: int) -> Candidate:
    """A fresh base sample; where it is not fit, the first of `again` more that is, if there is one."""
    (sample,) = await session.draw(1)
    if sample.fit:
        return sample
    return next(iter(fit_of(await session.draw(again))), sample)
