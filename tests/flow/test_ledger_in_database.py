"""A server whose ledger is in a PostgreSQL database: it is found by its URL, whose password stays unsaid."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from reticent.accounting.ledger import dataset_scope
from reticent.accounting.store.locate import open_ledger
from reticent.plugin.cli.doctor import Finding, examine
from reticent.plugin.core import build_core
from reticent.plugin.settings import ConfigurationError, load_settings
from tests.fakes.build import make_head, run, settings_document
from tests.fakes.parts import FakeSource


def configured(folder: Path, url: str) -> Path:
    """A configuration file; the server asks for no password, and is given one."""
    make_head().save(folder / "head.json")
    secret = folder / "worker.secret"
    secret.touch(0o600)
    secret.write_text("s" * 40)
    document: dict[str, Any] = settings_document(folder)
    document["ledger"] = {"url": url.replace("tests@", "tests:CANARY@")}
    (folder / "reticent.yaml").write_text(yaml.safe_dump(document))
    return folder / "reticent.yaml"


def ledger_finding(config: Path) -> Finding:
    return next(finding for finding in examine(config) if finding.part == "ledger")


def test_two_servers_share_a_ledger(tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    open_ledger(postgres_url, create=True).close()
    settings = load_settings(configured(tmp_path, postgres_url))

    async def start_both() -> None:
        cores = [build_core(settings, FakeSource()) for _ in range(2)]
        for core in cores:
            await core.start()
            await core.accounts.check()
        first, second = [await core.accounts.all_statements() for core in cores]
        assert first == second
        assert first[0].scope_id == dataset_scope(settings.dataset.id)
        for core in cores:
            await core.close()

    run(start_both())
    found = ledger_finding(tmp_path / "reticent.yaml")
    assert found.well
    assert "CANARY" not in caplog.text


def test_a_database_without_a_ledger_stops_the_start(tmp_path: Path, postgres_url: str) -> None:
    config = configured(tmp_path, postgres_url)
    with pytest.raises(ConfigurationError, match="there is no ledger at postgresql://tests@/") as caught:
        build_core(load_settings(config), FakeSource())
    assert "CANARY" not in str(caught.value)
    found = ledger_finding(config)
    assert not found.well
    assert "CANARY" not in f"{found}"


def test_a_server_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    config = configured(tmp_path, f"postgresql://tests@/ledger?host={tmp_path}")
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        build_core(load_settings(config), FakeSource())
    assert "CANARY" not in str(caught.value)
    assert "CANARY" not in f"{ledger_finding(config)}"
