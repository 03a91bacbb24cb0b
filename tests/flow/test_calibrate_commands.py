"""`reticent calibrate …` as it is typed: a plan that is frozen once, and one clear line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from reticent.accounting.calibration import Plan, Transcript, make_release
from reticent.accounting.calibration.documents import read_file
from reticent.accounting.calibration.release import SiteBatch
from reticent.accounting.fingerprint import canonical_json
from reticent.plugin.cli import app
from reticent.plugin.tenants import hash_key
from tests.fakes.calibration import START, good_records, make_plan, write_records


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["calibrate", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def refused(result: Result, *words: str, code: int = 78) -> None:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.json"
    path.write_text('{"model": "a"}')
    return path


def plan_arguments(tmp_path: Path, facts: Path, **changes: str | None) -> list[str]:
    options: dict[str, str | None] = {
        "out": str(tmp_path / "plan.json"),
        "target-risk": "0.3",
        "site": "north:1/3 south:1/3:0.01 west:1/3",
        "epsilon": "4",
        "fingerprint": str(facts),
        "loss": "wrong answer",
        "score": "self-consistency",
        "thresholds": "0.2,0.5,0.8",
        "first-look": "300",
        **changes,
    }
    words = []
    for name, value in options.items():
        if value is not None:
            for part in value.split(" ") if name == "site" else [value]:
                words += [f"--{name}", part]
    return words


def test_a_plan_is_written_once_and_its_digest_printed(tmp_path: Path, facts: Path) -> None:
    made = invoke("plan", *plan_arguments(tmp_path, facts))
    assert made.exit_code == 0, made.output
    plan = Plan.from_json(read_file(tmp_path / "plan.json", "plan"))
    assert made.stdout.strip() == plan.digest
    assert [site.drift for site in plan.sites] == [0.0, 0.01, 0.0]
    assert plan.noise_scale == pytest.approx(1.1701)
    assert "recruitment" not in plan.to_json()
    refused(invoke("plan", *plan_arguments(tmp_path, facts)), "a plan is written once")


def test_a_plan_takes_thresholds_and_first_look_from_development_records(tmp_path: Path, facts: Path) -> None:
    records = write_records(tmp_path / "dev.jsonl", good_records(300, 9))
    changes = {"thresholds": None, "first-look": None, "development": str(records), "grid": "4"}
    made = invoke("plan", *plan_arguments(tmp_path, facts, **changes), "--controller", "largest_deficit")
    assert made.exit_code == 0, made.output
    plan = Plan.from_json(read_file(tmp_path / "plan.json", "plan"))
    scores = sorted(float(str(r["score"])) for r in good_records(300, 9))
    assert plan.thresholds == (scores[60], scores[120], scores[180], scores[240])
    assert 50 < plan.schedule.first_look < 2000
    assert plan.recruitment.controller == "largest_deficit"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"site": "north:0.5"}, "sum to 1"),
        ({"site": "north"}, "NAME:WEIGHT"),
        ({"site": "north:1:0:0"}, "NAME:WEIGHT"),
        ({"site": "north:one"}, "not a number"),
        ({"site": "north:1/0"}, "not a number"),
        ({"site": ":1"}, "name"),
        ({"target-risk": "1.5"}, "target_risk"),
        ({"thresholds": "0.5,0.2"}, "increase"),
        ({"thresholds": "0.5,x"}, "not a number"),
        ({"thresholds": None}, "--development"),
        ({"epsilon": "0"}, "epsilon"),
        ({"epsilon": "nan"}, "epsilon"),
        ({"growth": "1"}, "growth"),
        ({"rule": "magic"}, "rule"),
        ({"release": "raw"}, "release"),
        ({"sites-per-round": "2"}, "sites_per_round"),
        ({"fingerprint": "missing.json"}, "missing.json"),
        ({"development": "missing.jsonl"}, "missing.jsonl"),
        ({"loss": ""}, "names"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_one_line(
    tmp_path: Path, facts: Path, changes: dict[str, str | None], word: str
) -> None:
    refused(invoke("plan", *plan_arguments(tmp_path, facts, **changes)), word)
    assert not (tmp_path / "plan.json").exists()


class Folder:
    """A plan, a key and records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = folder / "plan.json"
        self.plan.write_text(canonical_json(make_plan().to_json()))
        self.key = folder / "key"
        self.key.write_text("rk-north\n")
        self.key.chmod(0o600)
        self.records = write_records(folder / "records.jsonl", good_records(30, 1))

    def site(self, **changes: str) -> Result:
        options = {
            "plan": str(self.plan),
            "name": "north",
            "records": str(self.records),
            "server": "http://127.0.0.1:9",
            "key-file": str(self.key),
            "patience-seconds": "0",
            **changes,
        }
        return invoke("site", *(word for name, value in options.items() for word in (f"--{name}", value)))

    def serve(self, **changes: str) -> Result:
        options = {
            "plan": str(self.plan),
            "out": str(self.folder / "out"),
            "keys": str(self.folder / "keys.yaml"),
            **changes,
        }
        return invoke("serve", *(word for name, value in options.items() for word in (f"--{name}", value)))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"plan": "missing.json"}, "missing.json"),
        ({"name": "east"}, "no site 'east'"),
        ({"records": "missing.jsonl"}, "missing.jsonl"),
        ({"key-file": "missing"}, "missing"),
        ({"server": "ftp://x"}, "https://"),
        ({"server": "http://example.org"}, "https"),
        ({"server": "https://127.0.0.1:9", "ca-file": "missing.pem"}, "missing.pem"),
        ({"server": "https://127.0.0.1:9", "ca-file": __file__}, "PEM"),
        ({"record-cap": "0"}, "record_cap"),
        ({"person-cap": "nan"}, "person_cap"),
    ],
)
def test_a_site_that_cannot_start_says_why(folder: Folder, changes: dict[str, str], word: str) -> None:
    refused(folder.site(**changes), word)


def test_a_site_names_the_line_that_is_no_record_and_not_what_it_says(folder: Folder) -> None:
    folder.records.write_text('{"score": 0.5, "loss": 1}\n{"score": 0.123456, "loss": 7}\n')
    result = folder.site()
    refused(result, "line 2", "'loss'")
    assert "0.123456" not in result.output


def test_a_key_that_others_can_read_or_that_is_none_is_refused(folder: Folder) -> None:
    folder.key.chmod(0o644)
    refused(folder.site(), "chmod 600")
    folder.key.chmod(0o600)
    for text in ("", "two words\n"):
        folder.key.write_text(text)
        refused(folder.site(), "the site's key and nothing else")


def test_a_plan_that_is_none_is_refused_by_every_command(folder: Folder) -> None:
    (folder.folder / "keys.yaml").write_text("")
    for text in ("", "{}", "[1]", folder.plan.read_text().replace("0.3", "3.0", 1)):
        folder.plan.write_text(text)
        refused(folder.site(), "plan")
        refused(folder.serve(), "plan")


def test_a_server_that_cannot_start_says_why(folder: Folder) -> None:
    keys = folder.folder / "keys.yaml"
    refused(folder.serve(), "keys.yaml")
    keys.write_text(f"north: {hash_key('a')}\n")
    refused(folder.serve(), "no key for site")
    keys.write_text("".join(f"{name}: {hash_key(name)}\n" for name in ("north", "south", "west")))
    refused(folder.serve(**{"tls-key": str(folder.key)}), "go together")
    (folder.folder / "out").mkdir()
    (folder.folder / "out" / "transcript.json").write_text("{")
    refused(folder.serve(), "transcript")


def transcript_file(folder: Path) -> Path:
    plan = make_plan()
    transcript = Transcript(plan)
    for site in plan.sites:
        slots = plan.slots(1, site.name)
        transcript.append(make_release(plan, SiteBatch.from_records(plan, 1, site.name, [(0.9, 1.0)] * slots)), START)
    transcript.save(folder / "transcript.json")
    return folder / "transcript.json"


def test_a_transcript_that_certifies_nothing_gives_no_certificate(tmp_path: Path) -> None:
    path = transcript_file(tmp_path)
    refused(invoke("issue", str(path), "--out", str(tmp_path / "c.json")), "no threshold is certified", code=1)
    assert not (tmp_path / "c.json").exists()
    shown = invoke("verify", str(path), "--json")
    assert json.loads(shown.stdout)["threshold"] is None
    assert "no threshold is certified" in invoke("verify", str(path)).stdout


def test_verify_refuses_what_does_not_hold_with_status_one(tmp_path: Path) -> None:
    path = transcript_file(tmp_path)
    good = path.read_text()
    refused(invoke("verify", str(path), "--plan-digest", "0" * 64), "not the registered one", code=1)
    refused(invoke("verify", str(tmp_path / "missing.json")), "missing.json")
    for text in ("", "{}", '{"format":"other"}', good.replace('"slots":10', '"slots":11', 1), good[:-20]):
        path.write_text(text)
        refused(invoke("verify", str(path)), code=1)


def test_the_shipped_certificate_verifies() -> None:
    shipped = Path(__file__).parents[2] / "deploy" / "embedded" / "certificate.json"
    report = json.loads(invoke("verify", str(shipped), "--json").stdout)
    assert (report["verified"], report["threshold"] is not None) == (True, True)


def test_a_key_is_shown_once_and_its_hash_is_what_the_server_gets() -> None:
    line, comment = invoke("key", "north").stdout.splitlines()
    assert line == f"north: {hash_key(comment.split()[-1])}"
