"""`reticent certify file` and `reticent certify paper`, as they are run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reticent.plugin.cli import app

DATA = Path("../shared/data/certificate")
FRANK = DATA / "frank_scores_labels.csv"
RAGTRUTH = DATA / "redeep_ragtruth_llama2_7b.csv"
FRANK_OPTIONS = ("--client", "model_name,dataset", "--score", "BertScore P Art", "--loss", "1-human_factuality")

needs_records = pytest.mark.skipif(
    not (FRANK.is_file() and RAGTRUTH.is_file()),
    reason=f"needs the real records in {DATA}, which are not in the project",
)


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["certify", *(str(item) for item in arguments)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two models on two tasks; a good score."""
    rng = np.random.default_rng(3)
    path = tmp_path / "records.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["model", "task", "article", "good score", "factual"])
        for number in range(3000):
            score = rng.normal()
            factual = int(rng.random() < 1.0 / (1.0 + np.exp(-2.0 * score)))
            out.writerow([f"m{number % 2}", f"t{number // 2 % 2}", number // 4, score, factual])
    return path


OPTIONS = (
    "--client", "model,task", "--score", "good score", "--loss", "1-factual",
    "--split", "dev:0.2,cal:0.5,heldout:0.3", "--target", 0.2,
)  # fmt: skip


class TestFile:
    def test_the_stream_that_a_deployment_has_is_certified_without_reuse(self, records: Path) -> None:
        found = run("file", records, *OPTIONS, "--epsilon", 4, "--once", "--json")
        assert found["certified"] is True
        assert found["reuse"] == 1.0
        assert found["events"] <= 1500
        assert found["privacy"]["item_epsilon"] == 4.0
        low, high = found["heldout_risk_interval"]
        assert low <= found["heldout_risk"] <= high
        assert found["heldout_risk"] < 0.2
        assert found["heldout_risk_method"].startswith("clopper-pearson")
        assert 0.05 <= found["acceptance_lower"] <= found["acceptance"]
        assert [site["client"] for site in found["sites"]] == ["m0 / t0", "m0 / t1", "m1 / t0", "m1 / t1"]
        assert sum(site["weight"] for site in found["sites"]) == pytest.approx(1.0)
        assert found["violation"] is None

    def test_the_papers_stream_reuses_records_and_says_what_they_pay(self, records: Path) -> None:
        found = run(
            "file", records, *OPTIONS, "--epsilon", 2, "--group", "article", "--rule", "fed_src_c", "--looks", "paper",
            "--trials", 5, "--json",
        )  # fmt: skip
        assert found["stream"] == "with_replacement"
        assert found["release"] == "count_error"
        assert found["noise_calibration"] == "zcdp"
        assert found["repeats"]["trials"] == 5
        assert found["repeats"]["violations"] == 0
        assert found["reuse"] > 1.0
        assert found["privacy"]["group_epsilon"] > found["privacy"]["item_epsilon"] > 2.0

    def test_no_privacy_is_null_in_json_and_a_table_is_printed_without_it(self, records: Path) -> None:
        found = run("file", records, *OPTIONS, "--epsilon", "inf", "--once", "--json")
        assert found["epsilon"] is None
        assert found["noise_scale"] == 0.0
        shown = run("file", records, *OPTIONS, "--epsilon", "inf", "--once")
        assert "heldout_risk" in shown
        assert "not private" in shown

    @pytest.mark.parametrize(
        ("extra", "problem"),
        [
            (("--epsilon", 4, "--rule", "naive"), "the rule must be one of"),
            (("--epsilon", -1), "epsilon"),
            (("--epsilon", 4, "--split", "dev:1"), "a split is written"),
            (("--epsilon", 4, "--group", "nobody"), "there is no column 'nobody'"),
        ],
    )
    def test_what_cannot_be_run_ends_with_a_message(
        self, records: Path, extra: tuple[object, ...], problem: str
    ) -> None:
        arguments = ["certify", "file", str(records), *(str(x) for x in (*OPTIONS, *extra))]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert problem in result.output

    @needs_records
    def test_frank_is_certified_at_the_exploratory_target_from_records_used_once(self) -> None:
        found = run("file", FRANK, *FRANK_OPTIONS, "--target", 0.3, "--epsilon", 4, "--once", "--trials", 20, "--json")
        assert found["certified"] is True
        assert found["events"] == found["unique_items"] <= 1123
        assert found["repeats"]["certified"] >= 15
        assert found["heldout_risk_interval"][1] < 0.3
        assert found["heldout_risk_method"].startswith("hoeffding-bentkus")
        assert len(found["sites"]) == 9

    @needs_records
    def test_ragtruth_is_certified_by_reuse_only_and_its_heldout_risk_is_above_the_target(self) -> None:
        columns = ("--score", "ecs_mean,ecs_min,-pks_mean,-pks_max", "--loss", "hallucinated")
        options = (RAGTRUTH, *columns, "--target", 0.3, "--epsilon", 4, "--json")
        assert run("file", *options)["certified"] is True
        assert run("file", *options)["heldout_risk"] > 0.3
        assert run("file", *options, "--once")["certified"] is False


class TestPaper:
    def test_a_table_is_printed_beside_the_published_figures(self, tmp_path: Path) -> None:
        found = run("paper", "--table", 10, "--trials", 3, "--data", tmp_path, "--json")
        assert found["table"] == 10
        assert found["rows"][0]["published"]["fired"] == 200
        assert {c["rule"] for c in found["rows"][0]["computed"]} == {"fed_src_c", "eprocess"}
        shown = run("paper", "--table", 10, "--trials", 3, "--data", tmp_path)
        assert "published" in shown
        assert "No real records" in shown

    def test_a_table_that_is_not_here_ends_with_a_message(self) -> None:
        result = CliRunner().invoke(app, ["certify", "paper", "--table", "3"])
        assert result.exit_code == 2
        assert "the tables are 2, 4" in result.output

    @needs_records
    def test_real_records_stand_beside_the_synthetic_ones(self) -> None:
        found = run("paper", "--table", 9, "--trials", 4, "--data", DATA, "--json")
        assert {c["population"] for c in found["rows"][0]["computed"]} == {
            "synthetic c1",
            "RAGTruth, Llama-2-7B",
            "FRANK",
        }
        assert not any("No real records" in note for note in found["notes"])
