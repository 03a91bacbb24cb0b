"""One request, from a plan to an answer: reserve, draw, score, select, judge, settle.

Nothing that depends on a reward leaves this module before the charge is durably settled, and a failure after rewards
were asked for costs the worst case. The whole of `answer` runs in a task of its own: a client that goes away changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reticent.accounting.lattice import RewardLattice
from reticent.accounting.ledger import Statement
from reticent.accounting.ledger_errors import LedgerError
from reticent.plugin.accounts import Accounts, Exhausted
from reticent.plugin.errors import ApiError, BudgetRefused, Unavailable
from reticent.plugin.facts import request_facts
from reticent.plugin.gate import Gate, GateVerdict
from reticent.plugin.metrics import Metrics
from reticent.plugin.ports import Candidate, CandidateSource, RewardSource
from reticent.plugin.resolve import Plan
from reticent.plugin.scoring import Scoring
from reticent.plugin.selection.base import Selection
from reticent.rewards.errors import WorkerError, WorkerUnavailable

__all__ = ["Answer", "Handler", "Session"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What a request came to.

    Attributes:
        plan: what was decided before.
        chosen: the candidate that was selected, or a base sample.
        outcome: `selected`, `base` or `abstained`.
        verdict: the gate's.
        score: the gate's score, None for a base answer.
        selection: the rule's result, None for a base answer.
        statements: the accounts after settlement, leaf first.
        created: when it was made, seconds since 1970.
    """

    plan: Plan
    chosen: Candidate
    outcome: str
    verdict: GateVerdict
    score: float | None
    selection: Selection | None
    statements: tuple[Statement, ...]
    created: int = field(default_factory=lambda: int(time.time()))


class Session:
    """What a rule may do: draw, and ask for rewards as integers. Remembers whether it asked."""

    def __init__(
        self,
        plan: Plan,
        source: CandidateSource,
        rewards: RewardSource,
        lattice: RewardLattice,
        m: Metrics,
        top_log_probabilities: int = 0,
    ) -> None:
        self._plan = plan
        self._sampling = replace(plan.sampling, top_log_probabilities=top_log_probabilities)
        self._known: dict[int, tuple[Candidate, int]] = {}
        self._source = source
        self._rewards = rewards
        self._lattice = lattice
        self._metrics = m
        self._drawn = 0
        self.rewards_asked = False

    async def draw(self, count: int) -> list[Candidate]:
        """Fresh candidates; the seed's offset moves on, so that chunks differ."""
        with self._metrics.phase_seconds.labels(phase="draw").time():
            found = await self._source.draw(
                self._plan.prompt, self._sampling, count, salt=self._plan.caller.tenant.id, offset=self._drawn
            )
        self._drawn += count
        self._metrics.candidates.inc(count)
        return found

    async def rewards(self, candidates: Sequence[Candidate]) -> list[int]:
        """Integer rewards, one a candidate, in one batch. A failed or empty candidate has reward 0, by rule."""
        texts = [candidate.text for candidate in candidates]
        asked_before, self.rewards_asked = self.rewards_asked, True
        try:
            with self._metrics.phase_seconds.labels(phase="score").time():
                raw = await self._rewards.score(self._plan.prompt.subject, texts, patient=asked_before)
        except WorkerUnavailable:
            # Nothing was sent, so this call computed nothing; an earlier one may have.
            self.rewards_asked = asked_before
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


class Handler:
    """Answers requests. Holds no state between them.

    Args:
        source, rewards, accounts, gate, scoring: the parts.
        lattice: reward scale.
        facts: the public facts of the running configuration that no request changes (models, score).
        seconds: how long a request may take before it is given up.
        record: what is kept of an answer (its second argument is the request's id) for who sends the request again.
    """

    def __init__(
        self,
        *,
        source: CandidateSource,
        rewards: RewardSource,
        accounts: Accounts,
        gate: Gate,
        scoring: Scoring,
        lattice: RewardLattice,
        facts: Mapping[str, Any],
        metrics: Metrics,
        seconds: float,
        record: Callable[[Answer, str], bytes | None],
    ) -> None:
        self._source = source
        self._rewards = rewards
        self._accounts = accounts
        self._gate = gate
        self._scoring = scoring
        self._lattice = lattice
        self._facts = dict(facts)
        self._metrics = metrics
        self._seconds = seconds
        self._record = record

    async def answer(self, plan: Plan, request_id: str) -> Answer:
        """Answer one request under its plan.

        Raises:
            ApiError: refused or failed; the reservation was released, or forfeited if rewards had been asked for.
        """
        start = time.perf_counter()
        outcome, answer = "error", None
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._answer(plan, request_id)
            outcome = answer.outcome
            return answer
        except TimeoutError:
            raise Unavailable("The request took too long and was given up.", retry=False) from None
        except BudgetRefused:
            outcome = "refused"
            raise
        finally:
            self._tell(plan, request_id, outcome, answer, time.perf_counter() - start)

    async def _answer(self, plan: Plan, request_id: str) -> Answer:
        top = self._scoring.top_log_probabilities
        session = Session(plan, self._source, self._rewards, self._lattice, self._metrics, top)
        try:
            with self._metrics.phase_seconds.labels(phase="reserve").time():
                reservation = await self._accounts.reserve(plan, request_id)
        except Exhausted as exhausted:
            return await self._exhausted(plan, session, exhausted.kind)
        try:
            selection = await plan.rule.select(session)
            with self._metrics.phase_seconds.labels(phase="gate").time():
                score = await self._scoring.score(plan, selection, session.reward_of)
            verdict = self._gate.judge(request_facts(self._facts, plan), score)
            outcome = "selected" if verdict.accepted or plan.gate == "observe" else "abstained"
            answer = Answer(plan, selection.chosen, outcome, verdict, score, selection, ())
            recording = None if plan.claim is None else self._record(answer, request_id)
            with self._metrics.phase_seconds.labels(phase="settle").time():
                statements = await self._accounts.settle(reservation, plan, selection, outcome, recording)
        except BaseException as error:  # noqa: BLE001 - also when cancelled, the reservation must end
            given_up = self._accounts.abandon(
                reservation, rewards_asked=session.rewards_asked, reason=type(error).__name__
            )
            await asyncio.shield(given_up)
            raise self._as_told(error, retry=not session.rewards_asked) from None
        return replace(answer, statements=statements)

    def _as_told(self, error: BaseException, *, retry: bool) -> BaseException:
        """What a client is told of a failure. Where it has cost the worst case, that it must not be repeated."""
        if isinstance(error, WorkerError):
            self._metrics.worker_errors.inc()
            return Unavailable("The reward worker is not available.", retry=retry)
        if isinstance(error, LedgerError):
            log.error("a settlement failed: %s", error)
            return Unavailable("The privacy ledger did not take the settlement.", retry=retry)
        if isinstance(error, ApiError):
            error.retry = error.retry and retry
        elif isinstance(error, Exception) and not retry:
            # Its text could carry anything, so only its type is logged.
            log.error("a request failed: %s", type(error).__name__)
            return ApiError("The server had an error while processing your request.", retry=False)
        return error

    async def _exhausted(self, plan: Plan, session: Session, kind: str) -> Answer:
        """A budget is spent: refuse, or give one base sample, for which no reward is read and nothing is charged."""
        if plan.on_exhausted == "refuse":
            raise BudgetRefused(f"The privacy budget of this {_SCOPE_WORDS[kind]} is spent.")
        (sample,) = await session.draw(1)
        verdict = GateVerdict(False, "not_selected", "A base-model answer is covered by no certificate.", None)
        statements = await self._accounts.statements(plan.scope)
        return Answer(plan, sample, "base", verdict, None, None, statements)

    def _tell(self, plan: Plan, request_id: str, outcome: str, answer: Answer | None, seconds: float) -> None:
        """Metrics and one log line, of nothing but what was released or is public."""
        rule, tenant = plan.rule.name, plan.caller.tenant.id
        self._metrics.requests.labels(outcome=outcome, rule=rule).inc()
        self._metrics.request_seconds.labels(rule=rule).observe(seconds)
        fields: dict[str, Any] = {
            "request_id": request_id,
            "tenant": tenant,
            "rule": rule,
            "outcome": outcome,
            "seconds": round(seconds, 4),
        }
        if answer is not None:
            fields["gate"] = answer.verdict.reason or "accepted"
        selection = answer.selection if answer is not None else None
        if selection is not None:
            self._metrics.charged.labels(rule=rule).inc(selection.charge / 1e9)
            fields["charge_nats"] = selection.charge / 1e9
            if selection.halting_time is not None:
                self._metrics.halting_time.observe(selection.halting_time)
                fields["halting_time"] = selection.halting_time
            if not plan.rule.private:
                log.warning("tenant %s got an answer without privacy (rule %s)", tenant, rule)
        log.info("request", extra=fields)


_SCOPE_WORDS = {"dataset": "data set", "tenant": "tenant", "user": "user"}
