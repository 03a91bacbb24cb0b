"""`reticent simulate` as it is typed: rows, table, CSV, figures, the choice, and one clear line for every mistake."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from reticent.plugin.cli import app
from reticent.plugin.cli.simulate_inputs import bound_of
from reticent.rewards.bounds import parse_bound

ROW = {
    *("rule", "candidates", "noise_scale", "regularization", "accuracy", "standard_error"),
    *("proxy_reward", "halting_time", "charge"),
}


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "pool.jsonl"
    rows = []
    for k in range(12):
        right = rng.random(16) < 0.4
        raw = 4.0 * right + rng.normal(size=16)
        responses = [{"proxy_reward": float(r), "is_correct": int(g)} for r, g in zip(raw, right, strict=True)]
        rows.append({"prompt_id": k, "responses": responses})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments], env={"COLUMNS": "140", "NO_COLOR": "1"})


def answer(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


GRID = ("--bound", "sigmoid:2,1", "--candidates", "1,4,16", "--noise-scale", "0.1,0.5", "--regularization", "0.05,0.2")


def test_every_rule_has_a_row_for_each_combination_of_its_own_parameters(pool: Path) -> None:
    found = answer(str(pool), *GRID, "--rules", "base,bon,privbon,privbon-gaussian,itp,privitp")
    counts: dict[str, int] = {}
    for row in found["rows"]:
        assert set(row) >= ROW
        counts[row["rule"]] = counts.get(row["rule"], 0) + 1
    assert counts == {"base": 1, "bon": 3, "privbon": 6, "privbon_gaussian": 6, "itp": 6, "privitp": 12}
    assert found["pool"]["prompts"] == 12
    base = found["rows"][0]["accuracy"]
    best = next(row for row in found["rows"] if row["rule"] == "bon" and row["candidates"] == 16)
    assert best["accuracy"] > base
    assert best["charge"] is None


def test_by_default_candidates_double_up_to_the_pools_answers(pool: Path) -> None:
    found = answer(str(pool), "--bound", "clip:-4,8", "--rules", "bon")
    assert [row["candidates"] for row in found["rows"]] == [1, 2, 4, 8, 16]
    bootstrap = answer(str(pool), "--bound", "clip:-4,8", "--rules", "bon", "--draws", "bootstrap")
    assert [row["candidates"] for row in bootstrap["rows"]] == [1, 2, 4, 8, 16, 32, 64]


def test_the_same_seed_gives_the_same_rows_and_charges_are_close_to_the_certified_ones(pool: Path) -> None:
    arguments = (str(pool), "--bound", "clip:-4,8", "--rules", "privitp", "--candidates", "4", "--sensitivity", "0.05")
    once, again = answer(*arguments), answer(*arguments)
    assert once == again
    certified = answer(*arguments, "--certified-charges")["rows"][0]
    assert once["rows"][0]["charge"] == pytest.approx(certified["charge"], rel=0.01)
    assert once["rows"][0]["accuracy"] == certified["accuracy"]


def test_the_table_the_csv_and_the_check_by_chance(pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    result = invoke(str(pool), *GRID, "--monte-carlo", "40", "--csv", str(path))
    assert result.exit_code == 0, result.output
    assert "not private" in result.stdout
    assert "played" in result.stdout
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1 + 3 + 6 + 6 + 12
    assert set(rows[0]) >= ROW
    checked = answer(str(pool), "--bound", "clip:-4,8", "--rules", "bon", "--monte-carlo", "40")["rows"]
    assert all(abs(row["monte_carlo"]["accuracy"] - row["accuracy"]) < 0.1 for row in checked)


def test_figures_are_drawn_as_png_and_svg(pool: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert invoke(str(pool), *GRID, "--figures", str(tmp_path)).exit_code == 0
    for name in ("comparison", "noise", "regularization", "frontier"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.svg").read_bytes().startswith(b"<?xml")
    assert invoke(str(pool), "--bound", "clip:-4,8", "--rules", "bon", "--figures", str(tmp_path)).exit_code == 0


def test_a_choice_is_reported_on_the_other_half(pool: Path) -> None:
    arguments = (str(pool), *GRID, "--sensitivity", "0.05", "--choose", "--queries", "100")
    chosen = answer(*arguments)["choice"]
    assert chosen["development"]["rule"] == chosen["report"]["rule"] in ("privbon", "privitp")
    assert chosen["regret"] >= 0.0
    assert "Cost of the choice" in invoke(*arguments).stdout


def test_a_checkpoint_is_continued_and_a_strange_one_refused(pool: Path, tmp_path: Path) -> None:
    arguments = (str(pool), "--bound", "clip:-4,8", "--rules", "itp", "--checkpoint", str(tmp_path / "run.npz"))
    assert answer(*arguments) == answer(*arguments)
    refused = invoke(*arguments, "--seed", "1")
    assert refused.exit_code == 2
    assert "belongs to another pool or other options" in refused.stderr


@pytest.mark.parametrize("text", ["clip:-4,8", "sigmoid:0.5,0.25", "clip:0,1e-3"])
def test_the_bound_is_the_servers(text: str) -> None:
    bound, raw = parse_bound(text), np.linspace(-9.0, 9.0, 101)
    assert bound_of(text)(raw) == pytest.approx([bound.apply(float(r)) for r in raw], abs=1e-14)


def test_broken_rewards_count_as_nothing_and_are_told(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    line = '{"responses": [{"proxy_reward": NaN, "is_correct": 1}, {"proxy_reward": 0.5, "is_correct": 0}]}\n'
    path.write_text(line * 2, encoding="utf-8")
    result = invoke(str(path), "--bound", "clip:0,1", "--rules", "bon", "--candidates", "2", "--json")
    assert "2 proxy rewards were NaN or infinite" in result.stderr
    assert json.loads(result.stdout)["rows"][0]["accuracy"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "--bound is missing"),
        (["--bound", "zscore:0,1"], "a bound is sigmoid:CENTER,SCALE or clip:LOW,HIGH"),
        (["--bound", "clip:1,0"], "low must lie below high"),
        (["--bound", "clip:0,1", "--rules", "best"], "rule must be one of"),
        (["--bound", "clip:0,1", "--candidates", "17"], "candidates must be at most 16"),
        (["--bound", "clip:0,1", "--candidates", "0"], "candidates must be"),
        (["--bound", "clip:0,1", "--candidates", "1.5"], "must be whole numbers"),
        (["--bound", "clip:0,1", "--candidates", "many"], "must be numbers"),
        (["--bound", "clip:0,1", "--noise-scale", "0"], "noise_scale must be"),
        (["--bound", "clip:0,1", "--noise-scale", "nan"], "noise_scale must be"),
        (["--bound", "clip:0,1", "--regularization", "-1"], "regularization must be"),
        (["--bound", "clip:0,1", "--sensitivity", "2"], "sensitivity must be"),
        (["--bound", "clip:0,1", "--epsilon", "-1"], "epsilon must be"),
        (["--bound", "clip:0,1", "--order", "1.01"], "does not exceed the overhead"),
        (["--bound", "clip:0,1", "--reward-field", "score"], "no response has a number as 'score'"),
        (["--bound", "clip:0,1", "--figures", "no/such/folder"], "no folder"),
        (["--bound", "clip:0,1", "--csv", "no/such/folder/rows.csv", "--rules", "bon"], "cannot be written"),
        (["--bound", "clip:0,1", "--choose", "--queries", "1e9"], "no private rule of the grid answers"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(pool: Path, arguments: list[str], why: str) -> None:
    result = invoke(str(pool), *arguments)
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(("text", "why"), [("", "no response has a number"), ("{", "line 1 is not JSON")])
def test_a_pool_that_is_none_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(text, encoding="utf-8")
    result = invoke(str(path), "--bound", "clip:0,1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr


def test_one_prompt_has_no_standard_error_and_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"responses": [{"proxy_reward": 1, "is_correct": 1}]}', encoding="utf-8")
    assert "at least two" in invoke(str(path), "--bound", "clip:0,1").stderr


def test_without_matplotlib_figures_are_refused_before_any_work(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = invoke(str(pool), "--bound", "clip:-4,8", "--figures", str(tmp_path))
    assert result.exit_code == 2
    assert "reticent[studies]" in result.stderr
