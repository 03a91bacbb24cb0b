"""What a selection rule may do while it selects: draw, and ask for rewards as integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reticent.accounting.lattice import RewardLattice
from reticent.plugin.metrics import Metrics
from reticent.plugin.ports import Candidate, CandidateSource, RewardSource
from reticent.plugin.resolve import Plan
from reticent.rewards.errors import WorkerUnavailable

__all__ = ["Asked", "Session"]


@dataclass
class Asked:
    """Whether the worker may have computed a reward for a request: `calls` that it may have received.

    All selections of one request share it. A number and not a mark: of two calls under way, one that reached nobody
    must not wipe out the other.
    """

    calls: int = 0


class Session:
    """A `SelectionSession` over the real parts. One for each selection of a request.

    Args:
        plan: of the request.
        source, rewards, lattice, m: the parts.
        top_log_probabilities: how many of the largest log-probabilities candidates must come with.
        asked: shared by the selections of one request.
        begin: offset of the first candidate; no two selections of a request may draw at the same offset, because a
            seed would give both the same candidates.
    """

    def __init__(
        self,
        plan: Plan,
        source: CandidateSource,
        rewards: RewardSource,
        lattice: RewardLattice,
        m: Metrics,
        top_log_probabilities: int = 0,
        *,
        asked: Asked | None = None,
        begin: int = 0,
    ) -> None:
        self._plan = plan
        self._sampling = replace(plan.sampling, top_log_probabilities=top_log_probabilities)
        self._known: dict[int, tuple[Candidate, int]] = {}
        self._source = source
        self._rewards = rewards
        self._lattice = lattice
        self._metrics = m
        self._asked = asked if asked is not None else Asked()
        self._offset = begin

    @property
    def rewards_asked(self) -> bool:
        """Whether a reward may have been computed for this request: its reservation cannot be released then."""
        return self._asked.calls > 0

    async def draw(self, count: int) -> list[Candidate]:
        """Fresh candidates; the seed's offset moves on, so that chunks differ. Each is told whether it is `fit`."""
        offset, self._offset = self._offset, self._offset + count
        with self._metrics.phase_seconds.labels(phase="draw").time():
            found = await self._source.draw(
                self._plan.prompt, self._sampling, count, salt=self._plan.caller.tenant.id, offset=offset
            )
        self._metrics.candidates.inc(count)
        return [c if self._sampling.fits(c) else replace(c, fit=False) for c in found]

    async def rewards(self, candidates: Sequence[Candidate]) -> list[int]:
        """Integer rewards, one a candidate, in one batch. A failed or empty candidate has reward 0, by rule."""
        texts = [candidate.judged for candidate in candidates]
        patient = self.rewards_asked
        self._asked.calls += 1
        try:
            with self._metrics.phase_seconds.labels(phase="score").time():
                raw = await self._rewards.score(self._plan.prompt.subject, texts, patient=patient)
        except WorkerUnavailable:
            # Nothing was sent, so this call computed nothing; another one may have.
            self._asked.calls -= 1
            raise
        found = [self._lattice.quantise(reward) if text else 0 for reward, text in zip(raw, texts, strict=True)]
        # By identity: two candidates with the same text are two candidates. The entry keeps its candidate alive.
        self._known |= {id(c): (c, reward) for c, reward in zip(candidates, found, strict=True)}
        return found

    async def reward_of(self, candidate: Candidate) -> int:
        """Integer reward of one candidate: known, or asked for now (a fallback sample has none yet)."""
        if id(candidate) not in self._known:
            await self.rewards([candidate])
        return self._known[id(candidate)][1]
