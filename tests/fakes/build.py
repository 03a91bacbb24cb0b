"""Builders: settings, a head, certificates made by the real accounting, and a whole core with fakes in two places."""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import apsw
import httpx
from fastapi import FastAPI

from reticent.accounting.calibration import Plan as CalibrationPlan
from reticent.accounting.calibration import Schedule, Site, SiteBatch, Transcript, make_release
from reticent.accounting.calibration.subgroup import SUBGROUP_FACT, Subgroup
from reticent.accounting.certificates import Certificate, issue
from reticent.accounting.fingerprint import Fingerprint
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.ledger import Statement, user_scope
from reticent.plugin.app import create_app
from reticent.plugin.certificate_files import CertificateFiles
from reticent.plugin.core import Core, sensitivity_of
from reticent.plugin.facts import request_facts, server_facts
from reticent.plugin.handler import Answer
from reticent.plugin.resolve import Plan, resolve
from reticent.plugin.selection.rules import RuleBook
from reticent.plugin.settings import Settings
from reticent.plugin.tenants import TenantDirectory, hash_key
from reticent.plugin.wire import parse_chat_request
from reticent.rewards import HeadFacts, LinearHead, SensitivityCertificate
from reticent.rewards.scores import build_score
from tests.fakes.parts import FakeRewards, FakeSource, RecordingLedger

__all__ = [
    "KEYS",
    "MODEL",
    "OPERATOR",
    "QUESTION",
    "World",
    "certificate",
    "chat_body",
    "error_of",
    "make_head",
    "make_settings",
    "plan_for",
    "run",
    "settings_document",
    "until",
    "world",
]

T = TypeVar("T")
MODEL = "small"
QUESTION = "What hangs in the hall?"
KEYS = {name: f"rk-{name}-key-of-a-test" for name in ("strict", "lenient", "open")}
"""Three tenants: `strict` refuses when spent and abstains; `lenient` gives base answers and observes; `open` may use
rules without privacy."""
OPERATOR = "rk-operator-key-of-a-test"


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; nothing may hang for longer than a minute."""
    return asyncio.run(asyncio.wait_for(coroutine, 60.0))


async def until(condition: Callable[[], bool]) -> None:
    """Wait, for a few seconds at most, until something has happened."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never came to that")


def settings_document(folder: Path) -> dict[str, Any]:
    """A configuration as it would stand in YAML."""

    def tenant(name: str, **policy: Any) -> dict[str, Any]:
        return {
            "id": name,
            "key_sha256": [hash_key(KEYS[name])],
            "budget": {"epsilon": 30.0},
            "user_budget": {"epsilon": 20.0},
            "policy": policy,
        }

    return {
        "model": {"name": MODEL, "revision": "1"},
        "dataset": {"id": "notes", "epsilon": 50.0, "delta": 1e-6, "order": 20.0},
        "ledger": {"path": str(folder / "ledger.db"), "lease_seconds": 300.0},
        "rewards": {
            "head": str(folder / "head.json"),
            "socket": str(folder / "worker.sock"),
            "secret_file": str(folder / "worker.secret"),
        },
        "selection": {
            "candidates": 4,
            "noise_scale": 0.2,
            "privitp": {
                "regularization": 0.5,
                "threshold_noise": 0.25,
                "reward_noise": 0.25,
                "truncation": 2.0,
                "chunk": 2,
            },
        },
        "sampling": {"max_tokens": 48},
        "operator_key_sha256": hash_key(OPERATOR),
        "tenants": [
            tenant("strict"),
            tenant("lenient", on_exhausted="base", gate="observe"),
            tenant("open", allow_nonprivate=True, gate="observe"),
        ],
    }


def make_settings(folder: Path, changes: dict[str, Any] | None = None) -> Settings:
    """The configuration with changes by dotted path: `{"tenants.0.budget.epsilon": 1.0}`."""
    document = settings_document(folder)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        place: Any = document
        for step in parents:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    return Settings(**copy.deepcopy(document))


def make_head(reward_max: float = 1.0) -> LinearHead:
    """A head with Δ near 0.02 R. Its weights are never used: rewards come from a fake."""
    facts = HeadFacts(5000, 1, 0.01, 2.0, 1e-6, 1.0, reward_max)
    return LinearHead((0.5, -0.5), "lexical", "0" * 64, SensitivityCertificate.of(facts, "1" * 64), "head-of-a-test")


def chat_body(text: str = QUESTION, **more: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def plan_for(settings: Settings, tenant: str = "strict", head: LinearHead | None = None, **more: Any) -> Plan:
    """The plan of a request."""
    head = head or make_head()
    lattice = RewardLattice(head.reward_max, sensitivity_of(settings.rewards, head))
    caller = TenantDirectory(settings.tenants, settings.dataset.id).authenticate(f"Bearer {KEYS[tenant]}")
    request = parse_chat_request(json.dumps(chat_body(**more)).encode(), max_messages=100)
    return resolve(request, caller, settings, RuleBook(settings.selection, lattice, settings.dataset.order))


def facts_for(settings: Settings, **more: Any) -> dict[str, Any]:
    """The public facts of the running configuration for a request."""
    head = make_head()
    lattice = RewardLattice(head.reward_max, sensitivity_of(settings.rewards, head))
    score = build_score(settings.gate.score, settings.gate.score_constants)
    return request_facts(server_facts(settings, head, lattice, score), plan_for(settings, **more))


def certificate(
    facts: dict[str, Any],
    *,
    thresholds: tuple[float, ...] = (0.2, 0.5, 0.8),
    age: timedelta = timedelta(days=1),
    lifetime: timedelta = timedelta(days=30),
) -> Certificate:
    """A real certificate for these facts that certifies the second threshold. Zeros stand in for the noise."""
    start = datetime.now(UTC) - age
    plan = CalibrationPlan.calibrated(
        target_risk=0.3,
        thresholds=thresholds,
        sites=(Site("north", 0.5), Site("south", 0.5)),
        epsilon=4.0,
        delta=1e-6,
        schedule=Schedule(900),
        loss="wrong answer",
        score="self_consistency",
        fingerprint=Fingerprint(facts),
        subgroup=Subgroup(facts[SUBGROUP_FACT], (facts[SUBGROUP_FACT],)) if SUBGROUP_FACT in facts else None,
    )
    transcript = Transcript(plan)
    for site in ("north", "south"):
        slots = plan.slots(1, site)
        scores = [(i + 0.5) / slots for i in range(slots)]
        losses = [float((i * 37) % 100 < (5 if s >= thresholds[1] else 90)) for i, s in enumerate(scores)]
        batch = SiteBatch.from_records(plan, 1, site, list(zip(scores, losses, strict=True)))
        transcript.append(make_release(plan, batch, noise=lambda: 0), start)
    return issue(transcript, start, lifetime)


@dataclass
class World:
    """A running core and its parts."""

    settings: Settings
    core: Core
    app: FastAPI
    source: FakeSource
    rewards: FakeRewards
    ledger: RecordingLedger
    events: list[str]

    async def answer(self, tenant: str = "strict", **more: Any) -> Answer:
        """Submit a request to the core."""
        return await self.core.submit(self.plan(tenant, **more), f"request-{uuid.uuid4().hex}")

    def plan(self, tenant: str = "strict", **more: Any) -> Plan:
        """The plan that the core would make."""
        caller = self.core.tenants.authenticate(f"Bearer {KEYS[tenant]}")
        request = parse_chat_request(json.dumps(chat_body(**more)).encode(), max_messages=100)
        return resolve(request, caller, self.settings, self.core.rules)

    def client(self, tenant: str | None = "strict") -> httpx.AsyncClient:
        """An HTTP client of the application, in this process: a tenant's, the `operator`'s, or one without a key."""
        key = None if tenant is None else {**KEYS, "operator": OPERATOR}[tenant]
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers, timeout=30.0)

    def scopes(self, tenant: str = "strict", user: str = "anonymous") -> dict[str, Statement]:
        """Statements by kind."""
        return {s.kind: s for s in self.ledger.statements(user_scope("notes", tenant, user))}

    def scopes_of(self, scope: str) -> Statement:
        """One scope's statement."""
        return self.ledger.statement(scope)

    def spent(self) -> dict[str, tuple[int, int]]:
        """(spent, reserved) of every scope that was ever opened."""
        return {s.scope_id: (s.spent, s.reserved) for s in self.ledger.list_scopes()}

    def journal(self) -> list[tuple[str, dict[str, Any]]]:
        """Kinds and payloads of the journal's entries."""
        connection = apsw.Connection(str(self.settings.ledger.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            rows = list(connection.execute("SELECT kind, payload FROM journal ORDER BY seq"))
        finally:
            connection.close()
        return [(str(kind), json.loads(str(payload))) for kind, payload in rows]

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample, 0 where there is none yet."""
        return self.core.metrics.registry.get_sample_value(name, labels) or 0.0


def make_world(
    folder: Path,
    changes: dict[str, Any] | None = None,
    *,
    certificates: Iterable[Certificate] = (),
    source: FakeSource | None = None,
    rewards: FakeRewards | None = None,
) -> World:
    """A core that is not started yet."""
    settings = make_settings(folder, changes)
    source, rewards = source or FakeSource(), rewards or FakeRewards()
    rewards.events = events = source.events
    ledger = RecordingLedger(Path(settings.ledger.location), events)
    files = CertificateFiles(settings.gate.certificates, certificates)
    files.refresh()
    core = Core(settings, source=source, rewards=rewards, ledger=ledger, head=make_head(), certificates=files)
    return World(settings, core, create_app(core), source, rewards, ledger, events)


@asynccontextmanager
async def world(folder: Path, changes: dict[str, Any] | None = None, **parts: Any) -> AsyncIterator[World]:
    """A started core; afterwards the ledger is audited: whatever a test does, every balance must agree."""
    made = make_world(folder, changes, **parts)
    await made.core.start()
    try:
        yield made
        report = made.ledger.verify()
        assert report.ok, report.findings
    finally:
        await made.core.close()


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error object, after its form was checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["code"] == code
    return error
