"""A calibration of real processes: a server, three sites of which one is dropped, and one that is hostile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from reticent.accounting.calibration import Plan, Schedule, Site, Transcript
from reticent.accounting.certificates import Certificate
from reticent.accounting.fingerprint import canonical_json
from reticent.plugin.cli import app
from reticent.plugin.tenants import hash_key, new_key
from tests.fakes.calibration import deficit_plan, good_records, plain_release, release_bytes, write_records

SITES = ("north", "south", "west")
ROUND_SECONDS = 15.0

pytestmark = pytest.mark.simulation  # starting processes takes a while


class Process:
    """`reticent calibrate …` as a process; what it says goes to a file."""

    def __init__(self, said: Path, *arguments: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "reticent.plugin.cli", "calibrate", *arguments]
        self._said = said
        with said.open("w") as output:
            self._popen = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def end(self) -> int:
        self._popen.send_signal(signal.SIGTERM)
        return self._popen.wait(30)

    def status(self) -> int:
        return self._popen.wait(90)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def ended(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.kill()


def await_server(url: str, process: Process) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.is_running, process.said
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=1.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the server did not start")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Scene:
    """Files of a calibration in one folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.plan_file = folder / "plan.json"
        self.plan_file.write_text(canonical_json(plan.to_json()))
        self.keys = {name: new_key() for name in SITES}
        (folder / "keys.yaml").write_text("".join(f"{name}: {hash_key(key)}\n" for name, key in self.keys.items()))
        for seed, (name, key) in enumerate(self.keys.items()):
            (folder / f"{name}.key").write_text(key)
            (folder / f"{name}.key").chmod(0o600)
            write_records(folder / f"{name}.jsonl", good_records(600, seed))
        self.port = free_port()
        self.count = 0
        self.url = f"http://127.0.0.1:{self.port}"

    def server(self, round_seconds: float = ROUND_SECONDS) -> Process:
        self.count += 1
        return Process(
            self.folder / f"said-{self.count}",
            *("serve", "--plan", str(self.plan_file), "--out", str(self.folder / "out")),
            *("--keys", str(self.folder / "keys.yaml"), "--port", str(self.port)),
            *("--round-seconds", str(round_seconds)),
        )

    def site(self, name: str, plan_file: Path | None = None) -> Process:
        self.count += 1
        return Process(
            self.folder / f"said-{self.count}",
            *("site", "--plan", str(plan_file or self.plan_file), "--name", name, "--server", self.url),
            *("--records", str(self.folder / f"{name}.jsonl"), "--key-file", str(self.folder / f"{name}.key")),
            *("--poll-seconds", "0.1"),
        )

    def post(self, site: str, body: bytes) -> str:
        headers = {"Authorization": f"Bearer {self.keys[site]}", "Content-Type": "application/json"}
        response = httpx.post(f"{self.url}/v1/calibration/releases", content=body, headers=headers, trust_env=False)
        return "accepted" if response.status_code == 200 else str(response.json()["error"]["code"])

    def wait_for_round(self, number: int) -> None:
        headers = {"Authorization": f"Bearer {self.keys['west']}"}
        until(lambda: self._ask(headers)["round"] >= number)

    def _ask(self, headers: dict[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/v1/calibration/round", headers=headers, trust_env=False).json()
        return found


def test_three_sites_of_which_one_drops_out_and_one_is_hostile_make_a_certificate_that_verifies(tmp_path: Path) -> None:
    plan = deficit_plan(
        sites=(Site("north", 0.4), Site("south", 0.4), Site("west", 0.2)), schedule=Schedule(400, 1.4, 6), epsilon=8.0
    )
    scene = Scene(tmp_path, plan)
    with ExitStack() as stack:
        server = stack.enter_context(ended(scene.server()))
        await_server(scene.url, server)
        north, south = (stack.enter_context(ended(scene.site(name))) for name in ("north", "south"))
        # West is hostile in round 1 and releases nothing that counts: it has dropped out.
        west = plain_release(plan, 1, "west", 80)
        assert scene.post("west", release_bytes(replace(west, plan_digest="0" * 64))) == "wrong_plan"
        assert scene.post("west", release_bytes(replace(west, noise_scale=0.01))) == "wrong_noise"
        assert scene.post("west", b'{"plan": "mine"}') == "malformed"
        assert scene.post("west", release_bytes(replace(west, site="north", slots=160))) == "wrong_site"
        other = tmp_path / "other.json"
        other.write_text(canonical_json(replace(plan, target_risk=0.2).to_json()))
        stranger = stack.enter_context(ended(scene.site("west", other)))
        assert stranger.status() == 1
        assert "wrong_plan" in stranger.said
        scene.wait_for_round(2)
        assert scene.post("west", release_bytes(west)) == "late"
        # The server is killed and started again; an honest west makes up for what it has missed.
        server.kill()
        server = stack.enter_context(ended(scene.server()))
        await_server(scene.url, server)
        honest = stack.enter_context(ended(scene.site("west")))
        for process in (north, south, honest):
            assert process.status() == 0, process.said
        theirs = Transcript.load(tmp_path / "out" / "transcript.json").entries[-1].release
        assert scene.post(theirs.site, release_bytes(theirs)) == "accepted"
        assert scene.post(theirs.site, release_bytes(replace(theirs, loss_counts=(9, 9, 9, 9)))) == "duplicate"
        server.end()
    transcript = Transcript.load(tmp_path / "out" / "transcript.json")
    assert all(transcript.aggregate().events_by_site)
    assert transcript.aggregate().transfer < 0.05  # what was missed was made up for
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "out" / "refusals.jsonl").read_text().splitlines()]
    assert reasons == ["wrong_plan", "wrong_noise", "malformed", "wrong_site", "late", "duplicate"]
    certificate = tmp_path / "certificate.json"
    run = CliRunner()
    issued = run.invoke(
        app, ["calibrate", "issue", str(tmp_path / "out" / "transcript.json"), "--out", str(certificate)]
    )
    assert issued.exit_code == 0, issued.output
    for file in (certificate, tmp_path / "out" / "transcript.json"):
        shown = run.invoke(app, ["calibrate", "verify", str(file), "--json", "--plan-digest", plan.digest])
        assert shown.exit_code == 0, shown.output
        report = json.loads(shown.stdout)
        assert (report["verified"], report["exact"], "west" in report["dropouts"]["1"]) == (True, True, True)
    assert Certificate.load(certificate).threshold <= 0.5
    changed = json.loads(certificate.read_text())
    changed["verdict"]["threshold"] = 0.2 if changed["verdict"]["threshold"] != 0.2 else 0.5
    certificate.write_text(json.dumps(changed))
    assert run.invoke(app, ["calibrate", "verify", str(certificate)]).exit_code == 1


def test_a_site_that_is_killed_and_started_again_sends_what_it_had_released(tmp_path: Path) -> None:
    plan = deficit_plan(
        sites=(Site("north", 1.0), Site("south", 0.0), Site("west", 0.0)), schedule=Schedule(400, 1.4, 2)
    )
    scene = Scene(tmp_path, plan)
    with ExitStack() as stack:
        server = stack.enter_context(ended(scene.server(round_seconds=60)))
        await_server(scene.url, server)
        first = stack.enter_context(ended(scene.site("north")))
        state = tmp_path / "north.reticent-site" / "state.json"
        until(state.exists)
        first.kill()
        stored = json.loads(state.read_text())["releases"][0]["release"]
        second = stack.enter_context(ended(scene.site("north")))
        assert second.status() == 0
    transcript = Transcript.load(tmp_path / "out" / "transcript.json")
    assert transcript.entries[0].release.to_json() == stored


def test_a_second_process_on_the_same_folder_ends_with_a_message(tmp_path: Path) -> None:
    scene = Scene(tmp_path, deficit_plan(schedule=Schedule(400, 1.4, 2)))
    with ExitStack() as stack:
        server = stack.enter_context(ended(scene.server(round_seconds=60)))
        await_server(scene.url, server)
        site = stack.enter_context(ended(scene.site("north")))
        until((tmp_path / "north.reticent-site" / "state.json").exists)
        again = [stack.enter_context(ended(process)) for process in (scene.server(), scene.site("north"))]
        assert [process.status() for process in again] == [78, 78]
        assert ["another server uses" in again[0].said, "another process uses" in again[1].said] == [True, True]
        assert site.is_running
        assert server.is_running
