"""`reticent doctor`: is everything there, and if not, what to do."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from reticent.accounting.certificates import Certificate, CertificateInvalid
from reticent.accounting.ledger_errors import LedgerError
from reticent.accounting.store.locate import verify_ledger
from reticent.plugin.core import sensitivity_of
from reticent.plugin.rewards_source import load_reward_model, open_rewards
from reticent.plugin.settings import ConfigurationError, Settings, load_settings
from reticent.rewards.errors import RewardsError, WorkerUnavailable

__all__ = ["Finding", "doctor", "examine"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `advice` says what to do where it is not well; `vital` ones make the doctor fail."""

    part: str
    well: bool
    what: str
    advice: str = ""
    vital: bool = True


def doctor(config: Annotated[Path, typer.Option(help="The reticent configuration file.")]) -> None:
    """Check installation, model, worker, ledger and certificates; exit 1 if something vital is wrong."""
    findings = list(examine(config))
    table = Table(show_lines=False)
    for name in ("", "part", "found", "what to do"):
        table.add_column(name)
    for finding in findings:
        mark = "[green]ok[/]" if finding.well else ("[red]no[/]" if finding.vital else "[yellow]note[/]")
        table.add_row(mark, finding.part, finding.what, finding.advice)
    Console().print(table)
    if any(finding.vital and not finding.well for finding in findings):
        raise typer.Exit(1)


def examine(config: Path) -> Iterator[Finding]:
    """Look at every part, from the installation to a running server."""
    yield from _installation()
    try:
        settings = load_settings(config)
    except ConfigurationError as error:
        yield Finding("configuration", False, str(error), "Correct the file.")
        return
    yield Finding("configuration", True, f"{config}: {len(settings.tenants)} tenants, rule {settings.selection.rule}")
    for look in (_reward_head, _ledger, _certificates, _worker, _server):
        yield from look(settings)


def _installation() -> Iterator[Finding]:
    try:
        engine = f"vLLM {importlib.metadata.version('vllm')}"
        yield Finding("engine", importlib.util.find_spec("vllm") is not None, engine)
    except importlib.metadata.PackageNotFoundError:
        yield Finding("engine", False, "vLLM is not installed", "`make install`, or use the gateway.", vital=False)
    names = {entry.name for entry in importlib.metadata.entry_points(group="vllm.endpoint_plugins")}
    advice = "" if "reticent" in names else "Reinstall: pip install -e ."
    yield Finding("plugin", "reticent" in names, "endpoint plugin is registered" if not advice else "not found", advice)


def _reward_head(settings: Settings) -> Iterator[Finding]:
    part = "reward head" if settings.rewards.model is None else "reward model"
    try:
        model = load_reward_model(settings.rewards)
    except ConfigurationError as error:
        yield Finding(part, False, str(error), "`make reward-head`, or correct rewards.head.")
        return
    yield Finding(part, True, f"Δ = {sensitivity_of(settings.rewards, model):.3g} ({settings.rewards.sensitivity})")


def _ledger(settings: Settings) -> Iterator[Finding]:
    path, name = settings.ledger.path, settings.ledger.name
    if path is not None and not path.exists():
        yield Finding("ledger", False, f"{name} does not exist", f"If it is not lost: reticent ledger create {name}")
        return
    try:
        report = verify_ledger(settings.ledger.location)
    except LedgerError as error:
        yield Finding("ledger", False, f"{name} cannot be read: {error}", "Correct ledger.url, or what it needs.")
        return
    what = f"{report.seq} entries, {report.scopes} scopes, {report.open_reservations} open reservations"
    if report.ok:
        yield Finding("ledger", True, what)
    else:
        first = report.findings[0]
        yield Finding("ledger", False, f"{first.where}: {first.what}", "Stop the server; see `reticent ledger verify`.")


def _certificates(settings: Settings) -> Iterator[Finding]:
    if not settings.gate.certificates:
        yield Finding(
            "certificate", False, "none configured: every answer is refused", "gate.certificates", vital=False
        )
    for path in settings.gate.certificates:
        try:
            certificate = Certificate.load(path)
        except (CertificateInvalid, OSError) as error:
            yield Finding("certificate", False, f"{path.name}: {error}", "Calibrate again.")
            continue
        if certificate.is_expired(datetime.now(UTC)):
            what = f"{path.name} expired on {certificate.expires_at:%Y-%m-%d}: every answer is refused"
            yield Finding("certificate", False, what, "Calibrate again (`make certificate`).")
        else:
            what = f"risk at most {certificate.plan.target_risk:g}, valid until {certificate.expires_at:%Y-%m-%d}"
            yield Finding("certificate", True, what)


def _worker(settings: Settings) -> Iterator[Finding]:
    yield _running(
        "reward worker",
        lambda: asyncio.run(_ask_worker(settings)),
        "It is started by `reticent serve`.",
    )


def _server(settings: Settings) -> Iterator[Finding]:
    url = f"{settings.server.local_url}/ready"
    yield _running("server", lambda: _ask(url), "`make serve`.")


async def _ask_worker(settings: Settings) -> None:
    async with open_rewards(settings.rewards, load_reward_model(settings.rewards)) as client:
        if not await client.is_healthy():
            raise WorkerUnavailable("the reward worker does not answer")


def _ask(url: str) -> None:
    answer = httpx.get(url, timeout=5.0, trust_env=False)
    answer.raise_for_status()


def _running(part: str, probe: Callable[[], None], advice: str) -> Finding:
    try:
        probe()
    except (httpx.HTTPError, RewardsError, ConfigurationError, OSError) as error:
        return Finding(part, False, f"does not answer ({type(error).__name__})", advice, vital=False)
    return Finding(part, True, "answers")
