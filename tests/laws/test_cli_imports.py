"""A command imports what it needs and no more: looked up in a fresh interpreter's modules, not by time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reticent.plugin.cli import app

HEAVY = {"torch", "transformers", "vllm", "numpy", "scipy", "opendp", "matplotlib", "openai", "fastapi", "uvicorn"}
OURS = "reticent.plugin.cli."
TELL = """
import sys
from reticent.plugin.cli import app
try:
    app(sys.argv[1:])
finally:
    print("modules", *sys.modules)
"""


def modules(*arguments: str) -> tuple[int, set[str]]:
    """Exit status, and what was imported, of one run of the command."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TELL, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith("modules ")]
    assert lines, done.stderr
    return done.returncode, set(lines[-1].split()[1:])


def heavy(found: set[str]) -> set[str]:
    return HEAVY & {name.partition(".")[0] for name in found}


def test_the_version_is_printed_without_a_command() -> None:
    status, found = modules("--version")
    assert status == 0
    assert not heavy(found)
    assert {name for name in found if name.startswith(OURS)} == {OURS + "lazy"}


@pytest.mark.parametrize("command", ["show", "verify", "log"])
def test_reading_a_ledger_needs_no_mathematics_and_no_server(tmp_path: Path, command: str) -> None:
    ledger = str(tmp_path / "ledger.db")
    assert modules("ledger", "create", ledger)[0] == 0
    status, found = modules("ledger", command, ledger)
    assert status == 0
    assert not heavy(found)


def test_a_calibration_site_imports_no_server() -> None:
    status, found = modules("calibrate", "site", "--help")
    assert status == 0
    assert heavy(found) <= {"numpy", "scipy", "opendp"}
    assert OURS + "calibrate_serve" not in found
    # The twin: the server's own command does import it.
    assert {"fastapi", "uvicorn"} <= heavy(modules("calibrate", "serve", "--help")[1])


def test_help_lists_every_command_and_a_mistyped_one_is_corrected() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    for name in ("serve", "gateway", "doctor", "plan", "ledger", "tenants", "embedded", "calibrate", "certify"):
        assert f" {name} " in shown.output
    wrong = CliRunner().invoke(app, ["lodger"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert wrong.exit_code == 2
    assert "ledger" in wrong.output


def test_options_of_the_engine_pass_through_serve_untouched(tmp_path: Path) -> None:
    arguments = ["serve", "MODEL", "--reticent-config", str(tmp_path / "none.yaml"), "--dtype", "float32"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 78, "the configuration is missing; the engine's option is not what is wrong"
    assert "none.yaml" in refused.output
