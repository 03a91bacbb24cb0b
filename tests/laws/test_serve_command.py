"""The command line that `reticent serve` gives to vLLM: what it refuses, what it adds, and where it asks."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from reticent.plugin.cli.serve import vllm_command, vllm_environment
from reticent.plugin.settings import ServerSettings
from tests.fakes.build import make_settings


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("--host", "reticent configuration"),
        ("--hos=0.0.0.0", "reticent configuration"),
        ("--served_model_name", "reticent configuration"),
        ("--api-key=x", "reticent configuration"),
        ("--ssl-keyfile", "TLS end in front"),
        ("--grpc", "raw answers"),
        ("--head", "raw answers"),
        ("--config=x.yaml", "raw answers"),
        ("--omni", "raw answers"),
    ],
)
def test_options_that_would_go_around_the_surface_are_refused(
    tmp_path: Path, argument: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        vllm_command("model", [argument, "value"], make_settings(tmp_path))
    assert ended.value.exit_code == 1
    assert why in capsys.readouterr().err


def test_other_options_pass_and_ours_come_after_them(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    given = ["--max-model-len", "2048", "--dtype", "bfloat16", "-tp", "2"]
    command = vllm_command("model", given, settings)
    place = command.index("--max-model-len")
    assert command[place : place + len(given)] == given
    ours = command[place + len(given) :]
    assert ours[ours.index("--served-model-name") + 1] == settings.model.name
    assert ours[ours.index("--middleware") + 1] == "reticent.plugin.endpoint.RequireReticent"


def test_the_plugin_is_allowed_and_what_would_bypass_it_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("VLLM_PLUGINS", "other"), ("VLLM_API_KEY", "k"), ("VLLM_USE_RUST_FRONTEND", "1")):
        monkeypatch.setenv(name, value)
    environment = vllm_environment(Path("reticent.yaml"))
    assert environment["VLLM_PLUGINS"] == "other,reticent"
    assert "VLLM_API_KEY" not in environment
    assert "VLLM_USE_RUST_FRONTEND" not in environment


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("reticent.example", "http://reticent.example:8000"),
    ],
)
def test_this_machine_reaches_the_server_at_its_local_address(host: str, url: str) -> None:
    assert ServerSettings(host=host).local_url == url
