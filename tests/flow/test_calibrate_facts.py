"""`reticent calibrate facts`: the fingerprint of a server's own answers, so that what is calibrated under it fits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from reticent.accounting.calibration import Plan, SiteBatch, Transcript, make_release
from reticent.accounting.calibration.documents import read_file
from reticent.accounting.certificates import Certificate, issue
from reticent.accounting.fingerprint import Fingerprint, parse_json
from reticent.plugin.cli import app
from tests.fakes.build import chat_body, make_head, run, settings_document, world

EMBEDDED = Path(__file__).parents[2] / "deploy" / "embedded"
EVIDENCE = {"reticent": {"evidence": ["A painting hangs in the hall."]}}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["calibrate", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


class Server:
    """The files that a server would start from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "reticent.yaml"
        self.out = folder / "facts.json"
        make_head().save(folder / "head.json")
        document = settings_document(folder)
        document["tenants"][1]["policy"]["subgroups"] = ["clinics", "wards"]
        self.config.write_text(yaml.safe_dump(document))

    def facts(self, *more: str) -> Result:
        return invoke("facts", "--config", str(self.config), "--out", str(self.out), *more)

    def written(self, *more: str) -> dict[str, Any]:
        result = self.facts(*more)
        assert result.exit_code == 0, result.output
        facts = parse_json(self.out.read_text())
        assert isinstance(facts, dict)
        assert result.stdout.strip() == Fingerprint(facts).digest
        return facts


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def planned(server: Server) -> Plan:
    out = server.folder / "plan.json"
    made = invoke(
        *("plan", "--out", str(out), "--fingerprint", str(server.out), "--target-risk", "0.3"),
        *("--site", "north:0.5", "--site", "south:0.5", "--epsilon", "4", "--thresholds", "0,0.5,0.8"),
        *("--first-look", "900", "--rounds", "1", "--loss", "wrong answer", "--score", "self-consistency"),
    )
    assert made.exit_code == 0, made.output
    return Plan.from_json(read_file(out, "plan"))


def certified(plan: Plan) -> Certificate:
    """A calibration under the plan, in which nearly all answers are right. Zeros stand in for the noise."""
    start = datetime.now(UTC) - timedelta(days=1)
    transcript = Transcript(plan)
    for site in plan.sites:
        slots = plan.slots(1, site.name)
        records = [((i + 0.5) / slots, float(i % 50 == 0)) for i in range(slots)]
        batch = SiteBatch.from_records(plan, 1, site.name, records)
        transcript.append(make_release(plan, batch, noise=lambda: 0), start)
    return issue(transcript, start, timedelta(days=30))


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ([], {}),
        (["--form", "evidence"], EVIDENCE),
        (["--form", "conversation-with-evidence"], {"earlier": True, **EVIDENCE}),
        (["--form", "conversation"], {"earlier": True}),
        (["--rule", "privitp", "--candidates", "3"], {"reticent": {"rule": "privitp", "candidates": 3}}),
    ],
)
def test_a_server_accepts_under_a_certificate_that_was_calibrated_under_these_facts(
    server: Server, options: list[str], fields: dict[str, Any]
) -> None:
    facts = server.written(*options)
    certificate = certified(planned(server))
    body = chat_body("What hangs in the hall?")
    if fields.pop("earlier", False):
        body["messages"].insert(0, {"role": "system", "content": "Be brief."})

    async def ask(more: dict[str, Any]) -> dict[str, Any]:
        async with world(server.folder, certificates=[certificate]) as here, here.client("strict") as client:
            answer = (await client.post("/v1/chat/completions", json={**body, **more})).json()
            told: dict[str, Any] = answer["reticent"]["certificate"]
            return told

    told = run(ask(fields))
    assert (told["status"], told["fingerprint"]) == ("accepted", Fingerprint(facts).digest)
    # The twin: a request that samples otherwise is covered by nothing.
    assert run(ask({**fields, "temperature": 0.25}))["status"] == "fingerprint_mismatch"


def test_sampling_comes_from_a_request_body_as_clients_send_it(server: Server) -> None:
    request = server.folder / "request.json"
    request.write_text(json.dumps({"temperature": 0.25, "max_tokens": 20, "stop": ["."], **EVIDENCE}))
    facts = server.written("--request", str(request), "--candidates", "2")
    assert facts["sampling"]["temperature"] == 0.25
    assert (facts["sampling"]["max_tokens"], facts["sampling"]["stop"]) == (20, ["."])
    assert facts["selection"]["candidates"] == 2
    assert facts["prompt"]["form"] == "evidence"


def test_a_tenant_with_subgroups_has_facts_for_each(server: Server) -> None:
    assert server.written("--tenant", "lenient", "--subgroup", "wards")["subgroup"] == "wards"
    assert "subgroup" not in server.written()


def test_the_shipped_certificate_is_bound_to_the_facts_of_the_shipped_configuration(tmp_path: Path) -> None:
    out = tmp_path / "facts.json"
    made = invoke("facts", "--config", str(EMBEDDED / "reticent.yaml"), "--out", str(out), "--form", "evidence")
    assert made.exit_code == 0, made.output
    assert made.stdout.strip() == Certificate.load(EMBEDDED / "certificate.json").fingerprint.digest


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--rule", "bon"], "does not allow the rule 'bon'"),
        (["--rule", "magic"], "rule"),
        (["--candidates", "100000"], "candidates"),
        (["--tenant", "nobody"], "no tenant 'nobody'"),
        (["--tenant", "lenient"], "subgroup"),
        (["--subgroup", "wards"], "subgroup"),
        (["--request", "missing.json"], "missing.json"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_what_the_server_would_refuse_has_no_facts(server: Server, options: list[str], word: str) -> None:
    result = server.facts(*options)
    assert (result.exit_code, server.out.exists()) == (78, False)
    assert "Traceback" not in result.output
    assert word in result.output


def test_a_request_that_says_its_form_needs_no_other(server: Server) -> None:
    request = server.folder / "request.json"
    request.write_text("{}")
    assert "leave --form out" in server.facts("--request", str(request), "--form", "plain").output
    for text in ("[]", "{", '{"tools": [1]}', '{"reticent": 3}'):
        request.write_text(text)
        assert server.facts("--request", str(request)).exit_code == 78


def test_a_head_that_cannot_be_used_has_no_facts(server: Server) -> None:
    (server.folder / "head.json").write_text("{}")
    result = server.facts()
    assert result.exit_code == 78
    assert "Traceback" not in result.output
