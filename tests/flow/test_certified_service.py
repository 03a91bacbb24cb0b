"""From labelled answers of a running gateway to a certificate that the same gateway, without a restart, accepts under.

All in processes of their own: the gateway with its reward worker, its upstream, a calibration server, and three sites,
of which one drops out after the first round and one is hostile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from reticent.accounting.calibration import Plan, Schedule, Site, Transcript
from reticent.accounting.certificates import Certificate
from reticent.accounting.fingerprint import Fingerprint, canonical_json
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.store import SqliteLedger
from reticent.plugin.core import sensitivity_of
from reticent.plugin.facts import request_facts, server_facts
from reticent.plugin.settings import load_settings
from reticent.plugin.tenants import hash_key, new_key
from reticent.rewards.encoders import build_encoder
from reticent.rewards.head import LinearHead, SensitivityCertificate, new_identifier
from reticent.rewards.scores import build_score
from reticent.rewards.sensitivity import HeadFacts
from tests.fakes.build import KEYS, MODEL, OPERATOR, plan_for, settings_document
from tests.flow.certified_child import EASY
from tests.server.conftest import free_port

pytestmark = pytest.mark.simulation  # Eight processes, two rounds that wait for a dropout: about a minute.

SITES = {"north": 0.8, "south": 0.1, "west": 0.1}
ROUND_SECONDS = 15.0
CHILD = Path(__file__).with_name("certified_child.py")
RETICENT = [sys.executable, "-m", "reticent.plugin.cli"]


@contextmanager
def running(folder: Path, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, so without a terminal; ended by its id."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=5.0, trust_env=False).status_code == 200
    return False


class Service:
    """The files of a gateway, and questions to it."""

    def __init__(self, folder: Path, sockets: Path) -> None:
        self.folder = folder
        self.certificate = folder / "certificate.json"
        self.upstream, self.port = free_port(), free_port()
        self.config = folder / "reticent.yaml"
        encoder = build_encoder("lexical/grounded")
        sensitivity = SensitivityCertificate.of(HeadFacts(5000, 1, 0.01, 2.0, 1e-6, 1.0, 1.0), "1" * 64)
        weights = (0.1,) * encoder.dimension
        self.head = LinearHead(weights, encoder.name, encoder.revision, sensitivity, new_identifier())
        self.head.save(folder / "head.json")
        secret = folder / "worker.secret"
        secret.write_text("a secret of the tests, 32 letters")
        secret.chmod(0o600)
        SqliteLedger(folder / "ledger.db", create=True).close()
        document: dict[str, Any] = settings_document(folder)
        document["model"]["upstreams"] = [f"http://127.0.0.1:{self.upstream}/v1"]
        document["server"] = {"port": self.port}
        document["rewards"] |= {"socket": str(sockets / "w"), "secret_file": str(secret)}
        document["gate"] = {"certificates": [str(self.certificate)], "reload_seconds": 0.2}
        document["dataset"]["epsilon"] = 1e5
        for tenant in document["tenants"]:
            tenant["budget"], tenant["user_budget"] = {"epsilon": 1e5}, {"epsilon": 1e5}
        self.config.write_text(yaml.safe_dump(document))
        self.settings = load_settings(self.config)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60.0, trust_env=False)

    def ask(self, tenant: str, question: str) -> dict[str, Any]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "user": "ann"}
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        response = self.http.post("/v1/chat/completions", json=body, headers=headers)
        assert response.status_code == 200, response.text
        whole: dict[str, Any] = response.json()
        return whole

    def status(self, question: str) -> str:
        whole = self.ask("strict", question)
        status = str(whole["reticent"]["certificate"]["status"])
        message = whole["choices"][0]["message"]
        assert (message["content"] is None) == (status != "accepted")
        return status

    def metrics(self) -> str:
        return self.http.get("/metrics", headers={"Authorization": f"Bearer {OPERATOR}"}).text

    def shown(self) -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {KEYS['strict']}"}
        data: list[dict[str, Any]] = self.http.get("/v1/reticent/certificate", headers=headers).json()["data"]
        return data

    def records(self, site: str, count: int) -> list[dict[str, Any]]:
        """Answers of the running gateway with their scores, labelled: four questions of five are easy."""

        def one(index: int) -> dict[str, Any]:
            kind = EASY if index % 5 else "hard"
            whole = self.ask("lenient", f"An {kind} question, number {index} of {site}?")
            score = whole["reticent"]["score"]
            return {"id": f"{site}-{index}", "score": score, "loss": 0 if kind == EASY else 1}

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(one, range(count)))

    def fingerprint(self) -> Fingerprint:
        """The facts of the configuration, as its operator writes them into the plan."""
        lattice = RewardLattice(self.head.reward_max, sensitivity_of(self.settings.rewards, self.head))
        score = build_score(self.settings.gate.score, self.settings.gate.score_constants)
        server = server_facts(self.settings, self.head, lattice, score)
        return Fingerprint(request_facts(server, plan_for(self.settings, head=self.head)))


def calibrate(service: Service, folder: Path) -> Path:
    """Run the rounds; the transcript's file."""
    plan = Plan.calibrated(
        target_risk=0.4,
        thresholds=(0.3, 0.5, 0.9),
        sites=tuple(Site(name, weight) for name, weight in SITES.items()),
        epsilon=8.0,
        delta=1e-6,
        schedule=Schedule(200, 1.4, 2),
        loss="wrong answer",
        score="self_consistency",
        fingerprint=service.fingerprint(),
    )
    plan_file = folder / "plan.json"
    plan_file.write_text(canonical_json(plan.to_json()))
    keys = {name: new_key() for name in SITES}
    (folder / "keys.yaml").write_text("".join(f"{name}: {hash_key(key)}\n" for name, key in keys.items()))
    for name, count in (("north", 240), ("south", 40)):
        lines = (json.dumps(record) for record in service.records(name, count))
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
        (folder / f"{name}.key").write_text(keys[name])
        (folder / f"{name}.key").chmod(0o600)
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def site(name: str) -> list[str]:
        return [
            *(*RETICENT, "calibrate", "site", "--plan", str(plan_file), "--name", name, "--server", url),
            *("--records", str(folder / f"{name}.jsonl"), "--key-file", str(folder / f"{name}.key")),
            *("--poll-seconds", "0.1"),
        ]

    def state() -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {keys['west']}"}
        found: dict[str, Any] = httpx.get(f"{url}/v1/calibration/round", headers=headers, trust_env=False).json()
        return found

    serve = [
        *(*RETICENT, "calibrate", "serve", "--plan", str(plan_file), "--out", str(folder / "out"), "--no-stop"),
        *("--keys", str(folder / "keys.yaml"), "--port", str(port), "--round-seconds", str(ROUND_SECONDS)),
    ]
    hostile = [sys.executable, str(CHILD), "hostile", str(plan_file), url, keys["west"]]
    with running(folder, "serve", serve):
        until(lambda: answers(f"{url}/health"))
        with (
            running(folder, "north", site("north")) as north,
            running(folder, "south", site("south")) as south,
            running(folder, "west", hostile) as west,
        ):
            until(lambda: set(state()["missing"]) == {"west"} or state()["round"] > 1)
            assert state()["round"] == 1
            south.kill()
            assert west.wait(60) == 0
            assert north.wait(60) == 0, (folder / "north.out").read_text()
        assert state()["state"] == "finished"
    told = json.loads((folder / "west.out").read_text().splitlines()[-1])
    expected = ["wrong_plan", "wrong_noise", "wrong_slots", "malformed", "wrong_site", "malformed", "malformed"]
    assert told == [*expected, "wrong_round", "late"]
    transcript = Transcript.load(folder / "out" / "transcript.json")
    released = [(entry.release.round_number, entry.release.site) for entry in transcript.entries]
    assert sorted(released) == [(1, "north"), (1, "south"), (2, "north")]
    return folder / "out" / "transcript.json"


def test_a_running_gateway_abstains_until_a_certificate_is_there_and_answers_from_then_on(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as sockets:
        service = Service(tmp_path, Path(sockets))
        upstream = [sys.executable, str(CHILD), "upstream", str(service.upstream)]
        gateway = [*RETICENT, "gateway", "--config", str(service.config)]
        with (
            service.http,
            running(tmp_path, "upstream", upstream),
            running(tmp_path, "gateway", gateway) as process,
        ):
            ready = f"http://127.0.0.1:{service.port}/ready"
            until(lambda: process.poll() is not None or answers(ready), 90.0)
            assert process.poll() is None, (tmp_path / "gateway.out").read_text()
            assert service.status(f"An {EASY} question?") == "no_certificate"
            before = service.ask("lenient", f"An {EASY} question?")["reticent"]["certificate"]["fingerprint"]
            assert before == service.fingerprint().digest
            transcript = calibrate(service, tmp_path)
            assert service.status(f"An {EASY} question?") == "no_certificate"

            issue = [*RETICENT, "calibrate", "issue", str(transcript), "--out", str(service.certificate)]
            with running(tmp_path, "issue", issue) as issuing:
                assert issuing.wait(60) == 0, (tmp_path / "issue.out").read_text()
            until(lambda: service.status(f"An {EASY} question?") == "accepted", 20.0)
            assert service.status("A hard question?") == "score_below_threshold"
            (shown,) = service.shown()
            certificate = Certificate.load(service.certificate)
            assert (shown["status"], shown["digest"]) == ("accepting", certificate.digest)
            assert (shown["target_risk"], shown["events"]) == (0.4, certificate.aggregate.events)
            assert {site["site"]: site["weight"] for site in shown["mixture"]} == SITES
            assert shown["transfer"] > 0.1, "west is missing, so the realised mixture is not the declared one"

            # SIGHUP ends nobody, and a broken file takes nothing away.
            whole = service.certificate.read_bytes()
            service.certificate.write_bytes(whole[:-100])
            process.send_signal(signal.SIGHUP)
            until(lambda: 'file_unusable{certificate="certificate.json"} 1.0' in service.metrics(), 20.0)
            assert service.status(f"An {EASY} question?") == "accepted"
            service.certificate.write_bytes(whole)
            until(lambda: 'file_unusable{certificate="certificate.json"} 0.0' in service.metrics(), 20.0)
            assert process.poll() is None

            service.certificate.unlink()
            until(lambda: service.status(f"An {EASY} question?") == "no_certificate", 20.0)
            assert [item["status"] for item in service.shown()] == ["withdrawn"]
            assert certificate.expires_at > datetime.now(UTC) + timedelta(days=80)
        said = (tmp_path / "gateway.out").read_text()
        for text in ("the painting", "An easy question"):
            assert text not in said
