"""The configuration: read once, refused with the field's name, and without the value that stood there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from reticent.plugin.settings import ConfigurationError, Settings, load_settings
from reticent.plugin.tenants import hash_key
from tests.fakes.build import settings_document


@pytest.fixture(autouse=True)
def no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("RETICENT_")]:
        monkeypatch.delenv(name)


def document(**changes: Any) -> dict[str, Any]:
    return {**settings_document(Path(".")), **changes}


def load(folder: Path, content: dict[str, Any] | str) -> Settings:
    path = folder / "reticent.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return load_settings(path)


def refused(folder: Path, content: dict[str, Any] | str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, content)
    assert caught.value.__cause__ is None
    assert "reticent.yaml" in str(caught.value) or "tenants.yaml" in str(caught.value)
    return str(caught.value)


def test_relative_paths_are_taken_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    content = document(
        ledger={"path": "state/ledger.db"},
        rewards={"head": "head.json", "socket": "../run/w.sock", "secret_file": "/abs/secret"},
        gate={"certificates": ["a.json", "/abs/b.json"]},
    )
    (folder / "reticent.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    settings = load_settings(Path("etc/reticent.yaml"))
    assert settings.ledger.path == folder.resolve() / "state/ledger.db"
    assert settings.rewards.head == folder.resolve() / "head.json"
    assert settings.rewards.socket == folder.resolve() / "../run/w.sock"
    assert settings.rewards.secret_file == Path("/abs/secret")
    assert settings.gate.certificates == (folder.resolve() / "a.json", Path("/abs/b.json"))
    assert settings.ledger.lease_seconds == 300.0


def test_environment_variables_override_single_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETICENT_SERVER__PORT", "9123")
    monkeypatch.setenv("RETICENT_LEDGER__PATH", "other.db")
    monkeypatch.setenv("RETICENT_SELECTION__PRIVITP__CHUNK", "5")
    monkeypatch.setenv("RETICENT_CONFIG", "somewhere")
    settings = load(tmp_path, document(server={"host": "0.0.0.0", "max_messages": 7}))
    assert (settings.server.port, settings.server.host, settings.server.max_messages) == (9123, "0.0.0.0", 7)
    assert settings.ledger.path == tmp_path.resolve() / "other.db"
    assert settings.selection.privitp.chunk == 5
    assert settings.selection.privitp.regularization == 0.5


def test_a_ledger_in_a_database_keeps_its_password_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://reticent:CANARY@db:5433/ledger?sslmode=verify-full&sslpassword=CANARY"
    settings = load(tmp_path, document(ledger={"url": url, "lease_seconds": 60}))
    assert settings.ledger.location == url
    assert settings.ledger.path is None
    assert settings.ledger.name == "postgresql://reticent@db:5433/ledger?sslmode=verify-full"
    assert "CANARY" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    monkeypatch.setenv("RETICENT_LEDGER__URL", "postgres://other/ledger")
    assert load(tmp_path, document(ledger={"url": url})).ledger.location == "postgres://other/ledger"
    assert load(tmp_path, document(ledger={})).ledger.name == "postgres://other/ledger"
    assert "not both" in refused(tmp_path, document())  # a file that is configured is not given up in silence


@pytest.mark.parametrize(
    ("name", "value"),
    [("RETICENT_SERVER__PORT", "CANARY"), ("RETICENT_SERVER__PROT", "CANARY"), ("RETICENT_TENANTS", "[CANARY")],
)
def test_a_wrong_environment_variable_is_refused_without_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert "CANARY" not in refused(tmp_path, document())


@pytest.mark.parametrize(
    ("section", "content", "field"),
    [
        ("colour", {}, "colour"),
        ("server", {"prot": 1}, "server.prot"),
        ("server", {"port": 70000}, "server.port"),
        ("server", {"port": "CANARY"}, "server.port"),
        ("server", {"max_body_bytes": 0}, "server.max_body_bytes"),
        ("dataset", {"id": "a/b", "epsilon": 1, "order": 20}, "dataset.id"),
        ("dataset", {"id": "-a", "epsilon": 1, "order": 20}, "dataset.id"),
        ("dataset", {"id": "a", "epsilon": 1, "order": 1}, "dataset.order"),
        ("dataset", {"id": "a", "epsilon": float("inf"), "order": 2}, "dataset.epsilon"),
        ("dataset", {"id": "a", "epsilon": float("nan"), "order": 2}, "dataset.epsilon"),
        ("dataset", {"id": "a", "epsilon": 1, "delta": 1, "order": 2}, "dataset.delta"),
        ("dataset", {"id": "a", "epsilon": 1, "order": 2, "guarantee": "maybe"}, "dataset.guarantee"),
        ("ledger", {"path": "x", "lease_seconds": -1}, "ledger.lease_seconds"),
        ("ledger", {}, "ledger: Value error, needs path or url, and not both"),
        (
            "ledger",
            {"path": "x", "url": "postgresql://h/CANARY"},
            "ledger: Value error, needs path or url, and not both",
        ),
        ("ledger", {"url": "mysql://u:CANARY@h/d"}, "ledger.url: Value error, must begin with postgresql://"),
        ("ledger", {"url": "CANARY"}, "ledger.url"),
        ("prompt", {"evidence_template": "{evidence}"}, "prompt"),
        ("prompt", {"evidence_template": "{evidence}{question}{question}"}, "prompt"),
        ("sampling", {"max_tokens": 2000}, "sampling"),
        ("sampling", {"temperature": 3}, "sampling.temperature"),
        ("tenants", [{"id": "a"}], "tenants.0.key_sha256"),
        ("tenants", {"a": 1}, "tenants"),
        ("rewards", {"head": "h", "socket": "s", "secret_file": "f", "sensitivity": "declared"}, "rewards"),
    ],
)
def test_what_is_wrong_is_named_and_not_repeated(tmp_path: Path, section: str, content: Any, field: str) -> None:
    message = refused(tmp_path, document(**{section: content}))
    assert f"  {field}" in message
    assert "CANARY" not in message


def test_a_selection_without_noise_is_refused(tmp_path: Path) -> None:
    selection = document()["selection"]
    for name in ("noise_scale", "privitp"):
        assert f"selection.{name}" in refused(
            tmp_path, document(selection={k: v for k, v in selection.items() if k != name})
        )
    for value in (0, -1, float("nan"), float("inf"), "CANARY"):
        message = refused(tmp_path, document(selection={**selection, "noise_scale": value}))
        assert "selection.noise_scale" in message
        assert "CANARY" not in message
    assert "selection" in refused(tmp_path, document(selection={**selection, "candidates": 99}))


def test_a_key_that_was_not_hashed_is_refused_and_does_not_end_in_the_message(tmp_path: Path) -> None:
    tenants = document()["tenants"]
    tenants[1]["key_sha256"] = ["rk-CANARY"]
    message = refused(tmp_path, document(tenants=tenants))
    assert "tenants.1.key_sha256.0" in message
    assert "CANARY" not in message
    assert "operator_key_sha256" in refused(tmp_path, document(operator_key_sha256="rk-CANARY"))


def test_a_tenant_or_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    tenants = document()["tenants"]
    assert "strict" in refused(tmp_path, document(tenants=[*tenants, {**tenants[0], "key_sha256": [hash_key("x")]}]))
    again = refused(tmp_path, document(tenants=[*tenants, {**tenants[0], "id": "fourth"}]))
    assert "fourth" in again
    assert tenants[0]["key_sha256"][0] not in again


def test_a_section_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = yaml.safe_dump(document())
    assert "stands twice" in refused(tmp_path, text + "tenants: []\n")
    assert "stands twice" in refused(tmp_path, text.replace("  revision:", "  name: CANARY\n  revision:"))


@pytest.mark.parametrize(
    "text", ["", "- a\n- b\n", "a: [", "1: 2\n", "text", "a: !!python/object/apply:os.getcwd []\n"]
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"model: \xff")
    with pytest.raises(ConfigurationError, match="is not YAML"):
        load_settings(tmp_path / "latin.yaml")


def test_tenants_may_stand_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = document()["tenants"]
    operator = hash_key("operator")
    more = {"tenants": tenants[1:], "operator_key_sha256": operator}
    (tmp_path / "tenants.yaml").write_text(yaml.safe_dump(more))
    content = document(tenants=tenants[:1], tenants_file="tenants.yaml")
    del content["operator_key_sha256"]
    settings = load(tmp_path, content)
    assert [t.id for t in settings.tenants] == ["strict", "lenient", "open"]
    assert settings.operator_key_sha256 == operator
    # The environment may say where it lies.
    shutil.move(tmp_path / "tenants.yaml", tmp_path / "elsewhere.yaml")
    monkeypatch.setenv("RETICENT_TENANTS_FILE", str(tmp_path / "elsewhere.yaml"))
    assert len(load(tmp_path, content).tenants) == 3


@pytest.mark.parametrize(
    "more", [{"tenant": []}, {"tenants": 5}, {"tenants": [{"id": "CANARY CANARY"}]}, {"tenants": {"a": "CANARY"}}]
)
def test_a_wrong_file_of_tenants_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    (tmp_path / "tenants.yaml").write_text(yaml.safe_dump(more))
    assert "CANARY" not in refused(tmp_path, document(tenants_file="tenants.yaml"))


def test_settings_cannot_be_changed_after_they_were_read(tmp_path: Path) -> None:
    settings = load(tmp_path, document())
    with pytest.raises(ValueError, match="frozen"):
        settings.dataset.epsilon = 1e9
    with pytest.raises(ValueError, match="frozen"):
        settings.tenants = ()


def test_the_upstreams_key_stays_out_of_what_is_printed(tmp_path: Path) -> None:
    settings = load(tmp_path, document(model={"name": "small", "upstream_key": "CANARY"}))
    assert "CANARY" not in repr(settings)
