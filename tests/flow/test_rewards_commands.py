"""`reticent rewards pairs | train | audit` as they are typed: every output, and one clear line for every mistake."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from reticent.accounting.fingerprint import sha256_hex
from reticent.plugin.cli import app
from reticent.rewards.head import LinearHead
from reticent.rewards.sensitivity import HeadFacts, sensitivity_rounded_up
from tests.fakes.preferences import pet_pairs, write_lines

DATA = Path(__file__).parents[3] / "shared/data"
FAST = ("--mus", "0.1", "--scales", "0.5")


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["rewards", *map(str, arguments)], env={"COLUMNS": "120", "NO_COLOR": "1"})


def answer(*arguments: str | Path) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "pairs.jsonl", pet_pairs())


def trained(pairs: Path, *arguments: str) -> Path:
    head = pairs.with_name("head.json")
    assert invoke("train", pairs, "--encoder", "lexical", "--out", head, *FAST, *arguments).exit_code == 0
    return head


def test_a_trained_head_states_what_its_certificate_proves(pairs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "pairs.jsonl.gz"
    packed.write_bytes(gzip.compress(pairs.read_bytes()))
    found = answer("train", packed, "--encoder", "lexical/grounded", "--out", tmp_path / "h.json", "--mu", "0.05")
    facts = HeadFacts(60, 1, 0.05, 2.0, 1e-9, 0.5, 1.0)
    head = LinearHead.load(tmp_path / "h.json")
    assert found["pairs"] == 60
    assert found["sensitivity"] == head.sensitivity == sensitivity_rounded_up(facts)
    assert found["heldout_accuracy"] > 0.9
    assert found["private"] is None
    grid = {(row["regularization"], row["scale"]) for row in found["tradeoff"]}
    assert grid == {(m, s) for m in (0.003, 0.01, 0.03, 0.05, 0.1, 0.3) for s in (0.1, 0.5, 2.0)}
    own = [row for row in found["tradeoff"] if (row["regularization"], row["scale"]) == (0.05, 0.5)]
    assert own[0]["queries"] == found["queries"]


def test_a_persons_pairs_count_together(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", pet_pairs(3))
    options = ("train", path, "--encoder", "lexical", "--out", tmp_path / "h.json", *FAST, "--mu", "1")
    counted, declared = answer(*options), answer(*options, "--pairs-per-person", "6")
    assert (counted["pairs_per_person"], declared["pairs_per_person"]) == (3, 6)
    assert declared["sensitivity"] == pytest.approx(2 * counted["sensitivity"], rel=1e-6)
    refused = invoke(*options, "--pairs-per-person", "2")
    assert refused.exit_code == 2
    assert "one person gave 3 pairs, declared are at most 2" in refused.output


def test_the_planner_counts_the_same_queries(pairs: Path) -> None:
    found = answer("train", pairs, "--encoder", "lexical", "--out", pairs.with_name("h"), *FAST, "--scale", "5")
    plan = CliRunner().invoke(
        app,
        [
            *("plan", "--json", "--sensitivity", str(found["sensitivity"]), "--noise-scale", "0.1"),
            *("--candidates", "8", "--epsilon", "50", "--delta", "1e-6"),
        ],
    )
    assert json.loads(plan.stdout)["queries"]["privbon"] == pytest.approx(found["queries"])


def test_the_table_the_plot_and_the_audit_come_with_the_head(pairs: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    shown = invoke(
        *("train", pairs, "--encoder", "lexical", "--out", tmp_path / "h", "--mus", "0.01,0.1", "--scales", "0.5,2"),
        *("--plot", plot, "--audit", "--private", "5", "--cache", tmp_path / "cache"),
    )
    assert shown.exit_code == 0, shown.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    for word in ("accuracy", "queries", "private", "largest / bound", "(5, 1e-06)-DP", "Serving costs nothing more"):
        assert word in shown.output


def test_a_private_head_says_what_it_protects_and_serving_it_is_free(pairs: Path, tmp_path: Path) -> None:
    options = ("train", pairs, "--encoder", "lexical", "--out", tmp_path / "h.json", *FAST, "--mu", "0.5")
    gaussian = answer(*options, "--private", "2", "--private-delta", "1e-7")["private"]
    assert (gaussian["epsilon"], gaussian["delta"], gaussian["serving_charge"]) == (2.0, 1e-7, 0.0)
    assert "all pairs of one person" in gaussian["protects"]
    head = LinearHead.load(tmp_path / "h.json")
    assert head.private is not None
    assert head.certificate.data_sha256 is None
    laplace = answer(*options, "--private", "2", "--noise", "laplace")["private"]
    assert (laplace["delta"], laplace["order"]) == (0.0, None)
    assert set(laplace["charge_by_order"].values()) == {2.0}
    # At 21 weights pure ε takes more noise than (ε, 1e-7).
    assert laplace["noise_deviation"] > gaussian["noise_deviation"]


def test_an_audit_is_quiet_about_a_right_bound_and_breaks_a_tenth_of_it(pairs: Path) -> None:
    head = trained(pairs)
    found = answer("audit", head, "--pairs", pairs)
    assert not found["violated"]
    assert found["retrainings"] == 210
    assert found["largest_reward_movement"] <= found["bound"] == LinearHead.load(head).sensitivity
    twin = invoke("audit", head, "--pairs", pairs, "--divide-bound-by", "10")
    assert twin.exit_code == 1
    assert "does not hold" in twin.output


def test_an_altered_head_or_other_pairs_are_refused(pairs: Path) -> None:
    head = trained(pairs)
    value: dict[str, Any] = json.loads(head.read_text())
    for change, message in (
        (lambda v: v["weights"].__setitem__(0, 1.0), "altered after training"),
        (lambda v: v["certificate"].__setitem__("sensitivity", v["certificate"]["sensitivity"] / 10), "altered"),
    ):
        changed = json.loads(json.dumps(value))
        change(changed)
        head.write_text(json.dumps(changed))
        refused = invoke("audit", head, "--pairs", pairs)
        assert refused.exit_code == 2
        assert message in refused.output
    narrow = {**value, "weights": value["weights"][:-1]}
    body = {k: v for k, v in narrow.items() if k != "content_sha256"}
    head.write_text(json.dumps({**body, "content_sha256": sha256_hex(body)}))
    refused = invoke("audit", head, "--pairs", pairs)
    assert (refused.exit_code, "the head has 20 weights, the features have width 21" in refused.output) == (2, True)
    other = write_lines(pairs.with_name("other"), type(pet_pairs())(pet_pairs().rows[::-1]))
    refused = invoke("audit", trained(pairs), "--pairs", other)
    assert (refused.exit_code, "hash is another" in refused.output) == (2, True)


GOOD = [{"prompt": f"p{i}", "chosen": f"Cats sleep {i}.", "rejected": f"Dogs {i}."} for i in range(20)]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([*GOOD, GOOD[0]], (), "line 21: a duplicate of line 1 (--drop-unusable"),
        ([*GOOD, {**GOOD[1], "chosen": " "}], (), "line 21: chosen is empty (--drop-unusable"),
        (
            [*GOOD, {**GOOD[0], "chosen": GOOD[0]["rejected"], "rejected": GOOD[0]["chosen"]}],
            ("--drop-unusable",),
            "line 21: the opposite of line 1",
        ),
        ([{**row, "chosen": "yes", "rejected": "no"} for row in GOOD], (), "one class only"),
        ([{"prompt": "p", "chosen": "a"}], (), "line 1: rejected is missing"),
        (GOOD[:2], (), "too few prompts for 5 folds"),
        (GOOD, ("--encoder", "bert"), "unknown encoder 'bert'"),
        (GOOD, ("--encoder", "causal/-1"), "needs the folder of its model"),
        (GOOD, ("--mu", "-1"), "--mu takes positive numbers"),
        (GOOD, ("--scales", "1,x"), "--scales takes positive numbers"),
        (GOOD, ("--pair-norm", "3"), "pair_norm"),
        (GOOD, ("--tolerance", "1"), "more than 1 %"),
        (GOOD, ("--private", "0"), "ε must be positive"),
        (GOOD, ("--private", "1", "--private-delta", "2"), "δ must lie in (0, 1)"),
        (GOOD, ("--out", "/no/such/folder/h.json"), "there is no folder"),
        (GOOD, ("--plot", "plot.pdf"), "--plot must name a .png or .svg"),
    ],
)
def test_a_mistake_is_named_in_a_line_and_writes_no_head(
    tmp_path: Path, rows: list[object], options: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "h.json"
    refused = invoke("train", path, "--encoder", "lexical", "--out", out, *FAST, *options)
    assert refused.exit_code == 2
    assert message in refused.output
    assert "Traceback" not in refused.output
    assert not out.exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    for arguments in (
        ("train", tmp_path / "none", "--encoder", "lexical", "--out", tmp_path / "h"),
        ("audit", tmp_path / "none", "--pairs", tmp_path / "none"),
        ("pairs", tmp_path / "none", "--out", tmp_path / "p"),
    ):
        refused = invoke(*arguments)
        assert (refused.exit_code, "No such file" in refused.output) == (2, True)


def test_the_humaneval_pool_gives_pairs_that_train(tmp_path: Path) -> None:
    pool = DATA / "bon/humaneval_codegen16b_n100.jsonl.gz"
    if not pool.is_file():
        pytest.skip(f"the study data are not here: {pool.name}")
    out = tmp_path / "pairs.jsonl.gz"
    made = invoke("pairs", pool, "--out", out, "--per-prompt", "4", "--person", "prompt")
    assert made.exit_code == 0, made.output
    assert "of 121 prompts" in made.stdout
    found = answer("train", out, "--encoder", "lexical", "--out", tmp_path / "h", *FAST, "--pairs-per-person", "4")
    assert found["pairs_per_person"] == 4
    assert 0.5 < found["heldout_accuracy"] < 0.75


def test_the_llmbar_pairs_train_once_their_unusable_lines_are_left_out(tmp_path: Path) -> None:
    path = DATA / "preferences/llmbar_pairs.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"the study data are not here: {path.name}")
    options = ("train", path, "--encoder", "lexical", "--out", tmp_path / "h", *FAST)
    assert "line 54: a duplicate of line 36" in invoke(*options).output
    found = answer(*options, "--drop-unusable")
    assert (found["pairs"], found["unusable_lines_left_out"]) == (1191, 9)
