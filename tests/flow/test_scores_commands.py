"""`reticent scores`: bulk runs that go on where they stopped, fits on the development half, areas under curves."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reticent.plugin.cli import app
from reticent.plugin.cli.scores_inputs import Reader, prompts
from reticent.plugin.cli.scores_items import Item, ItemsInvalid, read_items, split_of
from reticent.plugin.cli.scores_table import GrowingTable, TableMismatch
from reticent.rewards.errors import EncoderUnavailable
from reticent.rewards.scores import SelfConsistency, auc
from tests.fakes.tiny_models import save_causal

RUNNER = CliRunner()
REDEEP = Path("shared/data/certificate/redeep_ragtruth_llama2_7b.csv")


def _lines(path: Path, count: int = 12) -> Path:
    """Right answers agree with the others, wrong ones do not."""
    with path.open("w") as file:
        for i in range(count):
            for right in (True, False):
                item = {
                    "id": f"{i}-{right}",
                    "group": str(i),
                    "question": "what pet does ada has",
                    "evidence": ["ada has a black cat"],
                    "answer": f"a cat {'black ' * (i % 2)}" if right else "a small dog",
                    "others": ["cat black", "black cat", "town"],
                    "right": right,
                    "verifier": 0.9 if right else 0.4,
                }
                file.write(json.dumps(item) + "\n")
    return path


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _run(*arguments: object) -> Any:
    return RUNNER.invoke(app, ["scores", *map(str, arguments)])


def test_a_run_writes_one_row_an_answer_with_its_split_and_verdict(tmp_path: Path) -> None:
    items, out = _lines(tmp_path / "items.jsonl"), tmp_path / "out.csv"
    found = _run("run", items, "--score", "self_consistency", "--score", "selfcheck", "--out", out)
    assert found.exit_code == 0, found.output
    rows, known = _rows(out), read_items(items)
    assert [row["id"] for row in rows] == [item.id for item in known]
    assert {row["group"]: row["split"] for row in rows} == {item.group: split_of(item.group) for item in known}
    for row, item in zip(rows, known, strict=True):
        inputs = Reader(frozenset()).inputs(item)
        assert float(row["self_consistency"]) == SelfConsistency().compute(inputs)
        assert row["right"] == str(int(bool(item.right)))


def test_an_interrupted_run_goes_on_and_gives_the_same_file(tmp_path: Path) -> None:
    items, whole, cut = _lines(tmp_path / "items.jsonl"), tmp_path / "whole.csv", tmp_path / "cut.csv"
    arguments = ("run", items, "--score", "self_consistency", "--out")
    assert _run(*arguments, whole).exit_code == 0
    assert _run(*arguments, cut).exit_code == 0
    # The interruption came in the middle of a line.
    cut.write_bytes(cut.read_bytes()[:-90])
    again = _run(*arguments, cut)
    assert again.exit_code == 0
    assert "are there already" in again.output
    assert cut.read_bytes() == whole.read_bytes()


def test_a_file_of_other_scores_or_items_is_not_continued(tmp_path: Path) -> None:
    items, out = _lines(tmp_path / "items.jsonl"), tmp_path / "out.csv"
    assert _run("run", items, "--score", "selfcheck", "--out", out).exit_code == 0
    before = out.read_bytes()
    for arguments in (
        ("run", items, "--score", "self_consistency", "--out", out),
        ("run", _lines(tmp_path / "other.jsonl", 5), "--score", "selfcheck", "--out", out),
    ):
        found = _run(*arguments)
        assert found.exit_code == 1
        assert "another file" in found.output
    assert out.read_bytes() == before


def test_passes_of_the_model_are_counted_and_franq_reports_both_parts(tmp_path: Path) -> None:
    items, out, model = _lines(tmp_path / "items.jsonl", 2), tmp_path / "out.csv", save_causal(tmp_path / "model")
    names = ("token_probability", "token_entropy", "evidence_lift", "franq", "external")
    constants = tmp_path / "judge.json"
    constants.write_text(json.dumps({"name": "external", "constants": {"verifier": "judge", "revision": "1"}}))
    wanted = [part for name in names[:-1] for part in ("--score", name)]
    found = _run("run", items, *wanted, "--score", constants, "--model", model, "--out", out)
    assert found.exit_code == 0, found.output
    assert "8 passes" in found.output
    for row in _rows(out):
        assert all(0.0 <= float(row[name]) <= 1.0 for name in (*names[:-1], "judge"))
        assert row["franq"] == row["franq_factuality"] != row["franq_faithfulness"]


def test_a_score_that_needs_a_model_says_so(tmp_path: Path) -> None:
    items = _lines(tmp_path / "items.jsonl")
    found = _run("run", items, "--score", "token_entropy", "--out", tmp_path / "out.csv")
    assert found.exit_code == 1
    assert "--model" in found.output
    with pytest.raises(EncoderUnavailable):
        Reader(frozenset({"log_probabilities"}))


def test_draws_are_shared_by_answers_to_a_question_and_resume(tmp_path: Path) -> None:
    items, model = _lines(tmp_path / "items.jsonl", 3), save_causal(tmp_path / "model")
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    arguments = ("draw", items, "--model", model, "--count", 3, "--tokens", 4, "--out")
    assert _run(*arguments, whole).exit_code == 0
    drawn = read_items(whole)
    assert len({item.others for item in drawn}) == 1
    assert len(drawn[0].others) == 3
    assert _run(*arguments, cut).exit_code == 0
    cut.write_bytes(cut.read_bytes()[:-30])
    assert _run(*arguments, cut).exit_code == 0
    assert cut.read_bytes() == whole.read_bytes()
    assert _run("draw", items, "--model", model, "--count", 2, "--out", cut).exit_code == 1


@pytest.mark.parametrize("score", ["sconu", "blend", "grounding", "franq", "redeep"])
def test_what_a_fit_writes_is_a_score_that_runs(tmp_path: Path, score: str) -> None:
    items, out, model = _lines(tmp_path / "items.jsonl"), tmp_path / "score.json", save_causal(tmp_path / "model")
    more = {"sconu": ("--same", "words"), "blend": ("--part", "self_consistency", "--part", "selfcheck")}
    sized = ("--heads", 2, "--layers", 1) if score == "redeep" else ()
    fitted = _run("fit", items, "--score", score, "--out", out, "--model", model, *more.get(score, ()), *sized)
    assert fitted.exit_code == 0, fitted.output
    assert json.loads(out.read_text())["name"] == score
    table = tmp_path / "out.csv"
    found = _run("run", items, "--score", out, "--out", table, "--model", model)
    assert found.exit_code == 0, found.output
    values = [float(row["score"]) for row in _rows(table)]
    assert all(0.0 <= value <= 1.0 for value in values)
    if score != "franq":  # A model with random weights tells nothing.
        assert auc(values, [row["right"] == "1" for row in _rows(table)]) > 0.5


def test_a_fit_reads_the_development_half_alone(tmp_path: Path) -> None:
    items = _lines(tmp_path / "items.jsonl")
    half = tmp_path / "half.jsonl"
    lines = items.read_text().splitlines(keepends=True)
    half.write_text("".join(line for line in lines if split_of(json.loads(line)["group"]) == "development"))
    for path in (items, half):
        assert _run("fit", path, "--score", "grounding", "--out", f"{path}.json").exit_code == 0
    assert Path(f"{items}.json").read_text() == Path(f"{half}.json").read_text()
    assert _run("fit", items, "--score", "selfcheck", "--out", tmp_path / "x.json").exit_code == 1


def test_both_answers_of_a_pair_are_in_the_same_split(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pair = {"knowledge": "k", "question": "q", "right_answer": "yes", "hallucinated_answer": "no"}
    path.write_text((json.dumps(pair) + "\n") * 40)
    found = read_items(path)
    assert len(found) == 80
    assert all(
        a.split == b.split and (a.right, b.right) == (True, False) for a, b in zip(*[iter(found)] * 2, strict=True)
    )
    assert {item.split for item in found} == {"development", "test"}
    assert found[0].evidence == ("k",)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no", "JSON"),
        ("[1]", "object"),
        ('{"question": "q"}', "answer"),
        ('{"question": "q", "answer": "a", "evidence": 3}', "evidence"),
        ('{"question": "q", "answer": "a", "right": "yes"}', "right"),
        ('{"question": "q", "answer": "a", "verifier": "x"}', "verifier"),
        ('{"question": "q", "answer": "a", "id": "1"}\n{"question": "q", "answer": "a", "id": "1"}', "twice"),
        ("", "no items"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(line)
    with pytest.raises(ItemsInvalid, match=reason):
        read_items(path)


def test_the_prompt_without_evidence_differs_in_the_evidence_alone() -> None:
    item = Item("1", "1", "what {evidence}?", ("told {question}", "more"), "x")
    with_, without = prompts(item, "A {question} B {evidence} C {question}")
    assert with_ == "A what {evidence}? B told {question}\nmore C what {evidence}?"
    assert without == "A what {evidence}? B  C what {evidence}?"
    assert prompts(Item("1", "1", "q", (), "x")) == ("q", "q")


def test_auc_of_a_table(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "s,bad,g,split\n0.9,0,a,test\n0.1,1,a,test\n0.5,0,b,test\n0.6,1,b,test\n,1,c,test\n0.0,0,d,other\n"
    )
    arguments = ("auc", table, "--score", "s", "--label", "bad", "--wrong-is-one", "--split", "test", "--group", "g")
    found = _run(*arguments, "--json")
    assert found.exit_code == 0, found.output
    (one,) = json.loads(found.output)
    assert (one["auc"], one["answers"], one["without"]) == (0.75, 4, 1)
    for wrong in (("auc", table, "--score", "x"), ("auc", table, "--score", "s", "--label", "g")):
        assert _run(*wrong).exit_code == 1


def test_a_table_without_its_description_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with GrowingTable(path, ("id", "text"), {"a": 1}) as table:
        table.append({"id": "1", "text": 'a, "b"'})
    assert _rows(path) == [{"id": "1", "text": 'a, "b"'}]
    (tmp_path / "t.csv.meta.json").unlink()
    with pytest.raises(TableMismatch):
        GrowingTable(path, ("id", "text"), {"a": 1})


def test_the_given_statistics_of_redeep_have_the_area_that_is_known() -> None:
    places = [folder / REDEEP for folder in Path(__file__).resolve().parents]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        pytest.skip(f"needs the data {REDEEP}")
    told = _run("auc", found, "--score", "ecs_mean", "--label", "hallucinated", "--wrong-is-one", "--json")
    assert told.exit_code == 0, told.output
    (one,) = json.loads(told.output)
    assert one["answers"] == 450
    assert one["auc"] == pytest.approx(0.71, abs=0.005)
