"""Everything that one server process holds, put together in one place from the configuration."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from reticent.accounting.errors import AccountingError
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.ledger import Ledger
from reticent.accounting.ledger_errors import LedgerError, LedgerMissing
from reticent.accounting.store.locate import open_ledger
from reticent.plugin.accounts import Accounts
from reticent.plugin.certificate_files import CertificateFiles
from reticent.plugin.errors import Overloaded, Unavailable
from reticent.plugin.facts import server_facts
from reticent.plugin.gate import Gate
from reticent.plugin.handler import Answer, Handler
from reticent.plugin.idempotency import record
from reticent.plugin.metrics import Metrics
from reticent.plugin.ports import CandidateSource, RewardSource
from reticent.plugin.renewal import Renewal
from reticent.plugin.resolve import Plan
from reticent.plugin.rewards_source import load_reward_model, open_rewards
from reticent.plugin.scoring import Scoring
from reticent.plugin.selection.rules import RuleBook
from reticent.plugin.settings import ConfigurationError, RewardSettings, Settings
from reticent.plugin.tenants import TenantDirectory
from reticent.plugin.verifier import HttpVerifier
from reticent.rewards.errors import RewardsError
from reticent.rewards.ports import RewardDescription
from reticent.rewards.scores import NoisyReward, Score, build_score

__all__ = ["Configured", "Core", "build_core", "configured_parts", "gate_noise_for", "sensitivity_of"]

log = logging.getLogger(__name__)
_DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Configured:
    """What the configuration and the reward head alone decide, with nothing running: also for `calibrate facts`.

    Attributes:
        lattice: integer rewards, and their sensitivity.
        score: the gate's.
        rules: by name and number of candidates.
        facts: those of a fingerprint that no request changes.
    """

    lattice: RewardLattice
    score: Score
    rules: RuleBook
    facts: dict[str, Any]


def configured_parts(settings: Settings, head: RewardDescription) -> Configured:
    """Make them.

    Raises:
        AccountingError, RewardsError, ValueError: a parameter out of range, or a score that cannot be built.
    """
    lattice = RewardLattice(head.reward_max, sensitivity_of(settings.rewards, head))
    score = build_score(settings.gate.score, settings.gate.score_constants, settings.gate.score_models.folders)
    rules = RuleBook(settings.selection, lattice, settings.dataset.order, gate_noise_for(score))
    return Configured(lattice, score, rules, server_facts(settings, head, lattice, score))


class Core:
    """The parts of a running server, and its open requests.

    Args:
        settings: the configuration.
        source: candidates.
        rewards: the worker's client.
        ledger: the budgets.
        head: the reward model's public description.
        certificates: those that the gate may rely on, read at least once.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        source: CandidateSource,
        rewards: RewardSource,
        ledger: Ledger,
        head: RewardDescription,
        certificates: CertificateFiles,
    ) -> None:
        self.settings = settings
        self.started_at = int(time.time())
        self.metrics = Metrics()
        self.tenants = TenantDirectory(settings.tenants, settings.dataset.id, settings.operator_key_sha256)
        configured = configured_parts(settings, head)
        lattice, score = configured.lattice, configured.score
        self.rules, self.facts = configured.rules, configured.facts
        self.rules.check()
        self.accounts = Accounts(ledger, settings, self.metrics, lattice)
        self.gate = Gate(score, (), charged_noise=self.rules.gate_noise)
        self._verifier = _open_verifier(settings, score)
        self.renewal = Renewal(certificates, self.gate, self.metrics, settings.gate.reload_seconds)
        self._source = source
        self._rewards = rewards
        self._handler = Handler(
            source=source,
            rewards=rewards,
            accounts=self.accounts,
            gate=self.gate,
            scoring=Scoring(self.gate, source, lattice, self._verifier),
            lattice=lattice,
            facts=self.facts,
            metrics=self.metrics,
            seconds=settings.server.request_seconds,
            record=partial(record, model=settings.model.name),
        )
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._open: Counter[str] = Counter()

    async def start(self) -> None:
        """Open the ledger's scopes, and begin to watch leases and certificates."""
        await self.accounts.start()
        self.renewal.start()

    def submit(self, plan: Plan, request_id: str) -> asyncio.Task[Answer]:
        """Answer a request in a task that outlives its connection.

        Raises:
            Overloaded: as many requests as the configuration allows are open, in all or of this tenant.
        """
        limits, tenant = self.settings.server, plan.caller.tenant.id
        if len(self._tasks) >= limits.max_concurrent or self._open[tenant] >= limits.most_of_one_tenant:
            raise Overloaded("The server is at its limit of open requests. Try again shortly.")
        task = asyncio.create_task(self._handler.answer(plan, request_id))
        self._tasks.add(task)
        self._open[tenant] += 1
        task.add_done_callback(partial(self._finished, tenant))
        return task

    async def check(self) -> None:
        """Raise unless ledger, engine and worker all answer."""
        await self.accounts.check()
        await self._source.check()
        if not await self._rewards.is_healthy():
            raise Unavailable("The reward worker is not available.")

    async def close(self) -> None:
        """Let open requests end, then close every part."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_DRAIN_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_DRAIN_SECONDS)
        await self.renewal.close()
        await self._source.close()
        await self._rewards.close()
        if self._verifier is not None:
            await self._verifier.close()
        await self.accounts.close()

    def _finished(self, tenant: str, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        self._open[tenant] -= 1
        if not task.cancelled():
            task.exception()  # Seen here, since a client that left never asks for it.


def sensitivity_of(settings: RewardSettings, head: RewardDescription) -> float:
    """Δ by the configured rule: R, the head's certified bound, or the operator's declared number."""
    match settings.sensitivity:
        case "range":
            return head.reward_max
        case "declared":
            declared = settings.declared_sensitivity or head.reward_max
            log.warning("sensitivity %g is declared, not proved: %s", declared, settings.declared_reason)
            return min(declared, head.reward_max)
        case "certified":
            return head.sensitivity


def gate_noise_for(score: Score) -> float | None:
    """σ_g that rules must charge for because the gate's score is a noisy reward; None for every other score."""
    return score.noise_scale if isinstance(score, NoisyReward) else None


def _open_verifier(settings: Settings, score: Score) -> HttpVerifier | None:
    """The configured verifier.

    Raises:
        ConfigurationError: the score asks for one and none is configured.
    """
    verifier = settings.gate.verifier
    if verifier is None:
        if "verifier" in score.needs:
            raise ConfigurationError(f"gate.score {score.name} needs gate.verifier")
        return None
    return HttpVerifier(verifier.url, verifier.timeout_seconds)


def build_core(settings: Settings, source: CandidateSource) -> Core:
    """Open the configured ledger, reward head, worker and certificates.

    Raises:
        ConfigurationError: one of them, or the score, cannot be used, or the lease is shorter than a request may take.
    """
    if settings.ledger.lease_seconds <= settings.server.request_seconds + _DRAIN_SECONDS:
        raise ConfigurationError("ledger.lease_seconds must exceed server.request_seconds by more than 30 s")
    head = load_reward_model(settings.rewards)
    rewards = open_rewards(settings.rewards, head)
    certificates = CertificateFiles(settings.gate.certificates)
    certificates.refresh()
    try:
        # Never made here: a mistyped path or an unmounted volume would give everybody a fresh budget.
        ledger = open_ledger(settings.ledger.location)
    except LedgerMissing:
        raise ConfigurationError(
            f"there is no ledger at {settings.ledger.name}. For a new installation make one: "
            f"reticent ledger create {settings.ledger.name}"
        ) from None
    except (LedgerError, OSError) as error:
        raise ConfigurationError(f"the ledger {settings.ledger.name} cannot be used: {error}") from None
    try:
        return Core(
            settings,
            source=source,
            rewards=rewards,
            ledger=ledger,
            head=head,
            certificates=certificates,
        )
    except (AccountingError, RewardsError, ValueError) as error:
        ledger.close()
        raise ConfigurationError(str(error)) from None
