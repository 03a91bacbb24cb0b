"""`reticent certify study`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from reticent.plugin.cli import app

BASE = ["certify", "study", "--cell", "c1", "--target", "0.3", "--trials", "10"]


def test_the_command_prints_json_and_a_table() -> None:
    runner = CliRunner()
    found = runner.invoke(app, [*BASE, "--epsilon", "inf", "--rule", "eprocess", "--seed", "3", "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["fired"] == 10
    assert document["epsilon"] == "inf"
    table = runner.invoke(app, [*BASE, "--epsilon", "4", "--schedule", "paper", "--rule", "fed_src_c"])
    assert "median events" in table.stdout
    assert "paper, σ = 1.984" in table.stdout


def test_prediction_sets_are_shown_as_such_and_nonsense_is_refused() -> None:
    runner = CliRunner()
    found = runner.invoke(app, [*BASE, "--epsilon", "inf", "--rule", "one_shot_conformal", "--json"])
    document = json.loads(found.stdout)
    assert document["coverage"] > 0.85
    assert "fired" not in document
    shown = runner.invoke(app, [*BASE, "--epsilon", "inf", "--rule", "one_shot_conformal"])
    assert "not a selective risk" in shown.stdout
    refused = runner.invoke(app, [*BASE, "--epsilon", "1", "--rule", "nothing"])
    assert refused.exit_code == 2
