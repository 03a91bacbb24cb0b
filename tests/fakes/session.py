"""A session for selection rules alone: candidates numbered in draw order, rewards by a rule of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from scipy.stats import chi2

from reticent.accounting.lattice import RewardLattice
from reticent.plugin.ports import Candidate
from reticent.plugin.selection.base import Rule, Selection
from tests.fakes.build import run

__all__ = ["FALSE_ALARM", "FakeSession", "counts_of", "rejected", "selections"]

FALSE_ALARM = 1e-6
"""The operating system's generator has no seed; so each test may fail by chance once in a million runs."""


class FakeSession:
    """A `SelectionSession`; candidate i is called `i`.

    Args:
        lattice: quantises, as the handler's session does.
        reward: reward of the i-th candidate drawn.
    """

    def __init__(self, lattice: RewardLattice, reward: Callable[[int], float]) -> None:
        self._lattice = lattice
        self._reward = reward
        self.drawn: list[int] = []
        self.scored: list[int] = []
        self.order: list[str] = []

    async def draw(self, count: int) -> list[Candidate]:
        begun = sum(self.drawn)
        self.drawn.append(count)
        self.order.append("draw")
        return [Candidate(str(begun + i), "stop", 1, 1) for i in range(count)]

    async def rewards(self, candidates: Sequence[Candidate]) -> list[int]:
        self.scored.append(len(candidates))
        self.order.append("rewards")
        return [self._lattice.quantise(self._reward(int(c.text))) for c in candidates]


def selections(
    rule: Rule, lattice: RewardLattice, reward: Callable[[int], float], trials: int
) -> list[tuple[Selection, FakeSession]]:
    """Independent runs of a rule."""

    async def many() -> list[tuple[Selection, FakeSession]]:
        found = []
        for _ in range(trials):
            session = FakeSession(lattice, reward)
            found.append((await rule.select(session), session))
        return found

    return run(many())


def counts_of(chosen: Sequence[object], outcomes: Sequence[object]) -> list[int]:
    """How often each outcome occurred; nothing else may have."""
    seen = Counter(chosen)
    unexpected = set(seen) - set(outcomes)
    if unexpected:
        raise AssertionError(f"outcomes that the law does not have: {unexpected}")
    return [seen[outcome] for outcome in outcomes]


def rejected(counts: Sequence[int], law: Sequence[float]) -> bool:
    """Whether Pearson's test rejects the law at `FALSE_ALARM`. Outcomes expected less than 8 times are put together."""
    total = sum(counts)
    pairs = sorted(zip(law, counts, strict=True))
    cells: list[tuple[float, int]] = []
    rare, rare_count = 0.0, 0
    for p, c in pairs:
        if total * p < 8 or (rare and total * rare < 8):
            rare, rare_count = rare + p, rare_count + c
        else:
            cells.append((p, c))
    if rare:
        cells.append((rare, rare_count))
    if any(c and not p for p, c in cells):
        return True
    statistic = sum((c - total * p) ** 2 / (total * p) for p, c in cells if p)
    return statistic > float(chi2.ppf(1 - FALSE_ALARM, max(1, len([p for p, _ in cells if p]) - 1)))
