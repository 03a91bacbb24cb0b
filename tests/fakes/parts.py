"""Fakes of the two parts that need a model (candidates, rewards), and a real ledger that tells what was asked of it.

Everything that they do is appended to one list of events, so that a test can say what came before what.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from reticent.accounting.ledger import ClaimRequest, Details, Reservation
from reticent.accounting.store.sqlite import SqliteLedger
from reticent.plugin.candidates.positions import position
from reticent.plugin.ports import Candidate, Prompt, SamplingParameters
from reticent.plugin.tools import ToolCall
from reticent.rewards import Subject

__all__ = ["AGREEING", "FakeRewards", "FakeSource", "RecordingLedger"]


def AGREEING(index: int) -> str:  # noqa: N802 - a constant that happens to be a function
    """Candidates with the same content words (self-consistency 1), told apart by their marks."""
    return "copper lantern" + "!" * (index + 1)


class FakeSource:
    """A `CandidateSource` that writes candidate number i of a request as `text(i)`.

    Args:
        events: where draws are told, as `draw COUNT`.
        text: the text of the i-th candidate drawn for a request.
        fail: by number of the draw (from 1, over all requests), what to raise instead.
        finish: the finish reason of every candidate.
    """

    def __init__(
        self,
        events: list[str] | None = None,
        text: Callable[[int], str] = AGREEING,
        fail: dict[int, BaseException] | None = None,
        finish: str = "stop",
    ) -> None:
        self.events = events if events is not None else []
        self.text = text
        self.fail = fail or {}
        self.finish = finish
        self.hold: asyncio.Event | None = None
        self.draws: list[tuple[int, str, int]] = []
        self.prompts: list[Prompt] = []
        self.sampled: list[SamplingParameters] = []
        self.bare: tuple[float, ...] = (-2.0, -2.0)
        self.told: tuple[float, ...] = (-0.5, -0.25)
        self.problem: BaseException | None = None
        self.closed = False
        self.tells = True
        self.calls: Callable[[int], tuple[ToolCall, ...]] = lambda index: ()

    async def draw(
        self, prompt: Prompt, sampling: SamplingParameters, count: int, *, salt: str, offset: int
    ) -> list[Candidate]:
        self.draws.append((count, salt, offset))
        number = len(self.draws)
        self.prompts.append(prompt)
        self.sampled.append(sampling)
        self.events.append(f"draw {count}")
        if self.hold is not None:
            await self.hold.wait()
        await asyncio.sleep(0)
        if number in self.fail:
            raise self.fail[number]
        return [self._candidate(offset + i, sampling) for i in range(count)]

    def _candidate(self, index: int, sampling: SamplingParameters) -> Candidate:
        text = self.text(index)
        top = sampling.top_log_probabilities
        largest = (tuple(-0.5 - k for k in range(top)),) * 2 if top else ()
        found = Candidate(text, self.finish, len(text.split()), 7, (-0.5, -0.25), (index, index + 1), largest)
        if sampling.tools is not None:
            found = replace(found, tool_calls=self.calls(index), text="" if self.calls(index) else text)
        if sampling.shown is None or not self.tells:
            return found
        # Pieces of three characters, across words; each with its length as its improbability.
        pieces = [text[i : i + 3] for i in range(0, len(text), 3)]
        others = [("one", -1.0), ("two", -2.0), ("six", -math.inf)]
        shown = [position((piece, -float(len(piece))), others, sampling.shown) for piece in pieces]
        return replace(found, positions=tuple(shown))

    async def score_without_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        self.events.append("bare pass")
        return self.bare if prompt.bare_messages is not None else ()

    async def score_with_evidence(self, prompt: Prompt, answer: Candidate, *, salt: str) -> tuple[float, ...]:
        self.events.append("forced pass")
        return self.told

    async def check(self) -> None:
        if self.problem is not None:
            raise self.problem

    async def close(self) -> None:
        self.closed = True


class FakeRewards:
    """A `RewardSource`.

    Args:
        events: where calls are told, as `rewards COUNT`.
        reward: the reward of a text.
        fail: by number of the call (from 1), what to raise instead.
    """

    def __init__(
        self,
        events: list[str] | None = None,
        reward: Callable[[str], float] = lambda text: 0.5,
        fail: dict[int, BaseException] | None = None,
    ) -> None:
        self.events = events if events is not None else []
        self.reward = reward
        self.fail = fail or {}
        self.hold: asyncio.Event | None = None
        self.calls: list[tuple[str, ...]] = []
        self.patience: list[bool] = []
        self.subjects: list[Subject] = []
        self.healthy = True
        self.closed = False

    async def score(self, subject: Subject, candidates: Sequence[str], *, patient: bool) -> list[float]:
        self.calls.append(tuple(candidates))
        number = len(self.calls)
        self.patience.append(patient)
        self.subjects.append(subject)
        self.events.append(f"rewards {len(candidates)}")
        if self.hold is not None:
            await self.hold.wait()
        if number in self.fail:
            raise self.fail[number]
        return [self.reward(text) for text in candidates]

    async def is_healthy(self) -> bool:
        return self.healthy

    async def close(self) -> None:
        self.closed = True


class RecordingLedger(SqliteLedger):
    """The real SQLite ledger; `broken` names operations that raise what stands there, before or `after` they write."""

    def __init__(self, path: Path, events: list[str]) -> None:
        super().__init__(path, create=True, busy_seconds=5.0)
        self.events = events
        self.broken: dict[str, Exception] = {}
        self.after: dict[str, Exception] = {}
        self.again: dict[str, Exception] = {}
        self.slow: Callable[[str], None] = lambda operation: None

    def _tell(self, operation: str) -> None:
        self.slow(operation)
        if operation in self.broken:
            raise self.broken[operation]
        self.events.append(operation)

    def _told(self, operation: str) -> None:
        if operation in self.again:
            self.broken[operation] = self.again[operation]
        if operation in self.after:
            raise self.after[operation]

    def reserve(
        self,
        reservation_id: str,
        scope_id: str,
        worst_case: int,
        *,
        lease_seconds: float,
        owner: str,
        details: Details | None = None,
        scored: bool = False,
        claim: ClaimRequest | None = None,
    ) -> Reservation:
        self._tell("reserve")
        return super().reserve(
            reservation_id,
            scope_id,
            worst_case,
            lease_seconds=lease_seconds,
            owner=owner,
            details=details,
            scored=scored,
            claim=claim,
        )

    def settle(
        self,
        reservation_id: str,
        charge: int,
        *,
        details: Details | None = None,
        unprotected: bool = False,
        answer: bytes | None = None,
    ) -> Reservation:
        self._tell("settle")
        settled = super().settle(reservation_id, charge, details=details, unprotected=unprotected, answer=answer)
        self._told("settle")
        return settled

    def release(self, reservation_id: str, *, owner: str, reason: str) -> Reservation:
        self._tell("release")
        return super().release(reservation_id, owner=owner, reason=reason)

    def forfeit(self, reservation_id: str, *, reason: str) -> Reservation:
        self._tell("forfeit")
        return super().forfeit(reservation_id, reason=reason)
