"""One request, from a plan to an answer: reserve, draw, score, select, judge, settle.

Nothing that depends on a reward leaves this module before the charge is durably settled, and a failure after rewards
were asked for costs the worst case. The whole of `answer` runs in a task of its own: a client that goes away changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
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
from reticent.plugin.session import Asked, Session
from reticent.plugin.together import together
from reticent.rewards.errors import WorkerError

__all__ = ["Answer", "Choice", "Handler"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """One released answer of a request.

    Attributes:
        chosen: the candidate that was selected, or a base sample.
        outcome: `selected`, `base` or `abstained`.
        verdict: the gate's.
        score: the gate's score, None for a base answer.
        selection: the rule's result, None for a base answer.
    """

    chosen: Candidate
    outcome: str
    verdict: GateVerdict
    score: float | None
    selection: Selection | None


@dataclass(frozen=True)
class Answer:
    """What a request came to.

    Attributes:
        plan: what was decided before.
        choices: as many as the plan asks for, selected independently of each other; at least one.
        statements: the accounts after settlement, leaf first.
        created: when it was made, seconds since 1970.
    """

    plan: Plan
    choices: tuple[Choice, ...]
    statements: tuple[Statement, ...]
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def outcome(self) -> str:
        """`selected` where any choice is, else `abstained` or `base`, which all of them are then."""
        outcomes = {choice.outcome for choice in self.choices}
        return "selected" if "selected" in outcomes else self.choices[0].outcome

    @property
    def selections(self) -> tuple[Selection, ...]:
        """What the rule released, none for base answers."""
        return tuple(choice.selection for choice in self.choices if choice.selection is not None)

    @property
    def charge(self) -> int:
        """Realised charge of all choices together, in 1e-9 nat."""
        return sum(selection.charge for selection in self.selections)


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
        asked = Asked()
        try:
            with self._metrics.phase_seconds.labels(phase="reserve").time():
                reservation = await self._accounts.reserve(plan, request_id)
        except Exhausted as exhausted:
            return await self._exhausted(plan, exhausted.kind)
        try:
            sessions = [self._session(plan, asked, index) for index in range(plan.choices)]
            choices = await together([self._choose(plan, session) for session in sessions])
            answer = Answer(plan, tuple(choices), ())
            recording = None if plan.claim is None else self._record(answer, request_id)
            with self._metrics.phase_seconds.labels(phase="settle").time():
                statements = await self._accounts.settle(
                    reservation, plan, answer.selections, answer.outcome, recording
                )
        except BaseException as error:  # noqa: BLE001 - also when cancelled, the reservation must end
            rewards_asked = asked.calls > 0
            given_up = self._accounts.abandon(reservation, rewards_asked=rewards_asked, reason=type(error).__name__)
            await asyncio.shield(given_up)
            raise self._as_told(error, retry=not rewards_asked) from None
        return replace(answer, statements=statements)

    def _session(self, plan: Plan, asked: Asked, index: int) -> Session:
        """The session of one of a request's selections. They share no candidate, and no offset."""
        return Session(
            plan,
            self._source,
            self._rewards,
            self._lattice,
            self._metrics,
            self._scoring.top_log_probabilities,
            asked=asked,
            begin=index * plan.rule.most_drawn,
        )

    async def _choose(self, plan: Plan, session: Session) -> Choice:
        """One selection, and the gate's word on it."""
        selection = await plan.rule.select(session)
        if not selection.chosen.fit:
            return Choice(selection.chosen, "abstained", _none_fit(), None, selection)
        with self._metrics.phase_seconds.labels(phase="gate").time():
            score = await self._scoring.score(plan, selection, session.reward_of)
        verdict = self._gate.judge(request_facts(self._facts, plan), score)
        outcome = "selected" if verdict.accepted or plan.gate == "observe" else "abstained"
        return Choice(selection.chosen, outcome, verdict, score, selection)

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

    async def _exhausted(self, plan: Plan, kind: str) -> Answer:
        """A budget is spent: refuse, or give base samples, for which no reward is read and nothing is charged."""
        if plan.on_exhausted == "refuse":
            raise BudgetRefused(f"The privacy budget of this {_SCOPE_WORDS[kind]} is spent.")
        samples = await self._session(plan, Asked(), 0).draw(plan.choices)
        verdict = GateVerdict(False, "not_selected", "A base-model answer is covered by no certificate.", None)
        statements = await self._accounts.statements(plan.scope)
        verdicts = [verdict if sample.fit else _none_fit() for sample in samples]
        choices = [Choice(sample, "base", told, None, None) for sample, told in zip(samples, verdicts, strict=True)]
        return Answer(plan, tuple(choices), statements)

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
            fields["gate"] = ", ".join(sorted({c.verdict.reason or "accepted" for c in answer.choices}))
        if answer is not None and answer.selections:
            self._metrics.charged.labels(rule=rule).inc(answer.charge / 1e9)
            fields["charge_nats"] = answer.charge / 1e9
            halted = [s.halting_time for s in answer.selections if s.halting_time is not None]
            for halting_time in halted:
                self._metrics.halting_time.observe(halting_time)
            if halted:
                fields["halting_time"] = halted[0] if len(halted) == 1 else halted
            if not plan.rule.private:
                log.warning("tenant %s got an answer without privacy (rule %s)", tenant, rule)
        log.info("request", extra=fields)


_SCOPE_WORDS = {"dataset": "data set", "tenant": "tenant", "user": "user"}


def _none_fit() -> GateVerdict:
    """Nothing that was drawn has the form that the request asks for: for every tenant there is no answer then."""
    return GateVerdict(False, "no_valid_candidate", "No candidate had the form that the request asks for.", None)
