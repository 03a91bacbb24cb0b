"""`reticent plan` as it is typed: the numbers of the design, every output, and one clear line for every mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from reticent.plugin.cli import app
from tests.fakes.build import make_head, settings_document

PRIVITP = [
    *("--rule", "privitp", "--reward-max", "1", "--sensitivity", "0.05", "--regularization", "0.05"),
    *("--truncation", "3.84", "--candidates", "16", "--epsilon", "50", "--delta", "0.01", "--rewards", "beta:2,2"),
]
PRIVBON = [
    "--sensitivity",
    "0.05",
    "--noise-scale",
    "0.512",
    "--candidates",
    "16",
    "--epsilon",
    "50",
    "--delta",
    "0.01",
]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "100", "NO_COLOR": "1"})


def answer(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_designs_setting_gives_the_designs_numbers() -> None:
    found = answer(*PRIVITP, "--noise-scale", "0.512")
    queries = found["queries"]
    assert queries["published_worst"] == pytest.approx(26, abs=1)
    assert queries["published_fsrc"] == pytest.approx(37, abs=1)
    assert queries["per_query_delta"] == pytest.approx(35, abs=1)
    assert queries["ville"] == pytest.approx(63, abs=1)
    assert queries["renyi"] >= 735
    assert found["answer_reward"]["mean"] == pytest.approx(0.616, abs=0.002)
    sound = {name: part["sound"] for name, part in found["accountings"].items()}
    assert sound == {
        "published_worst": False,
        "published_fsrc": False,
        "per_query_delta": True,
        "ville": True,
        "renyi": True,
    }
    outcomes = found["accountings"]["renyi"]["charge_by_outcome"]
    assert list(outcomes) == ["accepted_1", "accepted_2", "accepted_4", "accepted_16", "fallback"]
    assert outcomes["accepted_1"] < outcomes["accepted_4"] < outcomes["accepted_16"]


def test_with_more_noise_renyi_answers_thousands() -> None:
    assert answer(*PRIVITP, "--noise-scale", "2.56")["queries"]["renyi"] >= 15_500


def test_the_two_noise_scales_may_be_given_apart() -> None:
    whole = answer(*PRIVITP, "--noise-scale", "0.8", "--order", "2")
    apart = answer(*PRIVITP, "--threshold-noise", "0.4", "--reward-noise", "0.4", "--order", "2")
    assert whole == apart
    assert {part["order"] for part in whole["accountings"].values()} == {None, 2.0}


def test_privbon_has_one_accounting() -> None:
    found = answer(*PRIVBON)
    assert found["rule"] == "privbon"
    assert found["queries"] == {"privbon": pytest.approx(6081, rel=0.01)}
    gaussian = answer(*PRIVBON, "--noise", "gaussian")
    assert 0 < gaussian["queries"]["privbon"] < found["queries"]["privbon"]


def test_one_candidate_costs_nothing_and_json_says_so_without_infinity() -> None:
    found = answer(*PRIVBON, "--candidates", "1")
    assert found["queries"] == {"privbon": None}
    assert "without end" in invoke(*PRIVBON, "--candidates", "1").stdout


def test_the_tables_mark_what_is_unsound() -> None:
    shown = invoke(*PRIVITP, "--noise-scale", "0.512").stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "UNSOUND" in lines["published_fsrc"]
    assert "UNSOUND" not in lines["renyi"]
    for word in ("phase 1", "t = 1", "t = 16", "fallback", "mean", "worst", "α"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.simulation
def test_the_limit_is_printed_beside_what_is_reached() -> None:
    found = answer(*PRIVITP, "--noise-scale", "2.56", "--limit")
    assert found["limit"]["queries_low"] <= found["limit"]["queries_high"]
    assert found["limit"]["ratio"] == pytest.approx(found["queries"]["renyi"] / found["limit"]["queries_high"])
    assert 0.88 <= found["limit"]["ratio"] <= 1.0
    assert found["unclamped_limit"]["queries_high"] < found["limit"]["queries_low"]
    assert found["unclamped_limit"]["ratio"] >= 0.88
    assert "privbon ÷ limit: 0.9" in invoke(*PRIVBON, "--limit").stdout


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    make_head().save(tmp_path / "head.json")
    path = tmp_path / "reticent.yaml"
    path.write_text(yaml.safe_dump(settings_document(tmp_path)), encoding="utf-8")
    return path


def test_a_servers_configuration_answers_every_question(configuration: Path) -> None:
    found = answer("--config", str(configuration))
    head = make_head()
    assert found["rule"] == "privbon"
    assert found["parameters"]["reward_max"] == head.reward_max
    assert found["parameters"]["sensitivity"] == pytest.approx(head.sensitivity, rel=1e-6)
    assert found["parameters"]["noise_scale"] == 0.2
    assert found["budget"] == {"epsilon": 50.0, "delta": 1e-6, "guarantee": "dp"}
    assert found["accountings"]["privbon"]["order"] == 20.0


def test_what_is_given_goes_before_the_configuration(configuration: Path) -> None:
    from_file = answer("--config", str(configuration), "--rule", "privitp")
    assert (from_file["parameters"]["threshold_noise"], from_file["parameters"]["reward_noise"]) == (0.25, 0.25)
    given = answer("--config", str(configuration), "--rule", "privitp", "--noise-scale", "1.0", "--epsilon", "30")
    assert (given["parameters"]["threshold_noise"], given["parameters"]["reward_noise"]) == (0.5, 0.5)
    assert given["budget"]["epsilon"] == 30.0


def test_a_comparison_takes_the_budget_and_the_order_of_the_configuration_but_not_its_noise(
    configuration: Path,
) -> None:
    noises = ("--threshold-noise", "0.5", "--reward-noise", "0.5", "--truncation", "0")
    found = answer("--config", str(configuration), "--compare", *noises)
    assert found["order"] == 20.0
    assert len({point["parameters"].get("noise_scale") for point in found["points"]}) > 5


def test_a_missing_head_is_no_obstacle_where_its_numbers_are_given(configuration: Path) -> None:
    (configuration.parent / "head.json").unlink()
    refused = invoke("--config", str(configuration))
    assert refused.exit_code == 2
    assert "--reward-max and --sensitivity" in refused.stderr
    assert answer("--config", str(configuration), "--reward-max", "1", "--sensitivity", "0.1")["queries"]


def test_a_pool_of_real_rewards_is_a_reward_law(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    rows = [{"responses": [{"score": -4.0 + k + j} for j in range(4)]} for k in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arguments = [*PRIVBON, "--rewards", str(path), "--reward-field", "score", "--reward-bounds=-4,1"]
    assert answer(*arguments)["rewards"] == {"law": str(path), "prompts": 3}


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_written(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    magic = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    for name, arguments in (("itp", [*PRIVITP, "--noise-scale", "2.56"]), ("bon", PRIVBON)):
        path = tmp_path / (name + suffix)
        assert invoke(*arguments, "--plot", str(path)).exit_code == 0
        assert path.read_bytes().startswith(magic)


def test_without_matplotlib_the_plot_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = invoke(*PRIVBON, "--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 2
    assert "reticent[studies]" in result.stderr


HELD = [
    *("--noise-scale", "0.36", "--threshold-noise", "0.256", "--reward-noise", "0.256"),
    *("--regularization", "0.05", "--truncation", "3.84", "--rewards", "beta:2,2"),
]


def test_a_comparison_holds_given_parameters_fixed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = ["--compare", "--sensitivity", "0.05", "--candidates", "16", "--epsilon", "50", "--delta", "0.01", *HELD]
    found = answer(*common, "--plot", str(tmp_path / "compare.png"))
    assert {point["rule"]: point["parameters"] for point in found["points"]} == {
        "privbon": {"noise_scale": 0.36},
        "privitp": {"threshold_noise": 0.256, "reward_noise": 0.256, "regularization": 0.05, "truncation": 3.84},
    }
    bon, itp = found["points"]
    # privacy.md, section 5: at about equal reward, .62, the charges are .014 and .064 (a ratio of 4.6).
    assert bon["reward"] == pytest.approx(itp["reward"], abs=0.01)
    assert 3.0 < itp["charge"] / bon["charge"] < 7.0
    assert bon["frontier"]
    assert "Pareto frontier" in invoke(*common).stdout


@pytest.mark.simulation
def test_the_whole_comparison_puts_privbon_in_front() -> None:
    common = ["--sensitivity", "0.05", "--candidates", "16", "--epsilon", "50", "--delta", "0.01"]
    found = answer("--compare", *common, "--rewards", "beta:2,2")
    times = [point["times_privbon"] for point in found["points"] if point["times_privbon"] is not None]
    assert len(times) > 50
    assert min(times) > 1.0
    assert sum(point["rule"] == "privbon" for point in found["frontier"]) >= 0.8 * len(found["frontier"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--epsilon", "50"], "--sensitivity is missing"),
        (["--sensitivity", "0.1"], "--epsilon is missing"),
        (["--sensitivity", "0.1", "--epsilon", "50"], "privbon needs --noise-scale"),
        ([*PRIVBON, "--sensitivity", "1.5"], "sensitivity must be at most reward_max"),
        ([*PRIVBON, "--sensitivity", "0"], "sensitivity must be"),
        ([*PRIVBON, "--sensitivity", "nan"], "sensitivity must be"),
        ([*PRIVBON, "--reward-max", "-1"], "reward_max must be"),
        ([*PRIVBON, "--noise-scale", "0"], "noise_scale must be"),
        ([*PRIVBON, "--noise-scale", "inf"], "noise_scale must be"),
        ([*PRIVBON, "--candidates", "0"], "candidates must be"),
        ([*PRIVBON, "--candidates", "100000"], "candidates must be"),
        ([*PRIVBON, "--epsilon", "-3"], "epsilon must be"),
        ([*PRIVBON, "--epsilon", "nan"], "epsilon must be"),
        ([*PRIVBON, "--delta", "1"], "delta must be"),
        ([*PRIVBON, "--delta", "0"], "delta must be"),
        ([*PRIVBON, "--order", "1"], "order must be"),
        ([*PRIVBON, "--order", "1.01"], "does not exceed the overhead"),
        ([*PRIVBON, "--threshold-noise", "0.1"], "--threshold-noise is of privitp"),
        ([*PRIVBON, "--rewards", "beta:2"], "beta:a,b"),
        ([*PRIVBON, "--rewards", "beta:0,1"], "a must be"),
        ([*PRIVBON, "--rewards", "point:2"], "value must be"),
        ([*PRIVBON, "--rewards", "nowhere.jsonl"], "no such file"),
        ([*PRIVBON, "--reward-bounds", "1"], "LOW,HIGH"),
        ([*PRIVBON, "--reward-bounds", "0,1"], "pool file only"),
        ([*PRIVBON, "--plot", "plan.pdf"], ".png or .svg"),
        ([*PRIVBON, "--plot", "no/such/folder/plan.png"], "no folder"),
        ([*PRIVBON, "--compare", "--limit"], "leave out --compare"),
        ([*PRIVBON, "--noise", "gaussian", "--limit"], "Gumbel noise"),
        (PRIVITP, "privitp needs --noise-scale"),
        ([*PRIVITP, "--threshold-noise", "0.2"], "privitp needs --noise-scale"),
        ([*PRIVITP, "--noise-scale", "1", "--reward-noise", "0.2"], "not both"),
        ([*PRIVITP, "--noise-scale", "0.001"], "reward_noise must be"),
        ([*PRIVITP, "--noise-scale", "1", "--truncation", "-1"], "truncation must be"),
        ([*PRIVITP, "--noise-scale", "1", "--regularization", "0"], "regularization must be"),
        ([*PRIVITP, "--noise-scale", "1", "--noise", "gaussian"], "--noise is of privbon"),
        ([*PRIVBON, "--rule", "privitp"], "privitp needs --regularization"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(arguments: list[str], why: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments", [["--rule", "bon"], ["--epsilon", "much"], ["--guarantee", "pure"], ["--seed", "-1"]]
)
def test_options_of_the_wrong_kind_are_refused(arguments: list[str]) -> None:
    assert invoke(*PRIVBON, *arguments).exit_code == 2
