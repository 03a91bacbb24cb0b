"""A calibration over a real Flower SuperLink and three SuperNodes on loopback, one of which has another plan.

Needs an environment with flwr 1.42 and what `reticent.accounting` imports (deploy/flower/README.md);
`RETICENT_FLOWER_BIN` names its folder of executables.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from reticent.accounting.calibration import Schedule, Site, Transcript
from reticent.accounting.certificates import judge_transcript
from reticent.accounting.fingerprint import canonical_json
from tests.fakes.calibration import deficit_plan, good_records, write_records

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("RETICENT_FLOWER_BIN") or Path(shutil.which("flower-superlink") or "/nowhere/x").parent)

pytestmark = [
    pytest.mark.simulation,  # starting all of Flower takes a while
    pytest.mark.skipif(
        not (BIN / "flower-superlink").exists(),
        reason="flwr is not installed; set RETICENT_FLOWER_BIN to its bin folder",
    ),
]

LOOPBACK_SITES = ("north", "south", "west")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(home),
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": str(ROOT / "accounting"),
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def running(home: Path, name: str, *command: str) -> Iterator[Path]:
    said = home / f"{name}.log"
    with said.open("w") as output:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(home),
            start_new_session=True,
        )
    try:
        yield said
    finally:
        # The group: Flower starts its apps as children.
        for sent in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sent)
            except ProcessLookupError:
                break
            time.sleep(1.0)
        process.wait()


def await_line(said: Path, word: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while word not in said.read_text():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.2)


def test_two_flower_sites_make_a_certificate_while_one_with_another_plan_stays_out(tmp_path: Path) -> None:
    plan = deficit_plan(
        sites=(Site("north", 0.5), Site("south", 0.5), Site("west", 0.0)), schedule=Schedule(400, 1.4, 3), epsilon=8.0
    )
    (tmp_path / "plan.json").write_text(canonical_json(plan.to_json()))
    (tmp_path / "other.json").write_text(canonical_json(replace(plan, target_risk=0.2).to_json()))
    http, *node_ports = free_ports(4)
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{http}"\ninsecure = true\n'
    )
    with ExitStack() as stack:
        link = stack.enter_context(
            running(
                *(tmp_path, "superlink", "flower-superlink", "--insecure", "--port", str(http)),
                "--disable-runtime-dependency-installation",
            )
        )
        await_port(http)
        for seed, (name, port) in enumerate(zip(LOOPBACK_SITES, node_ports, strict=True)):
            write_records(tmp_path / f"{name}.jsonl", good_records(600, seed))
            paths = {
                "site": name,
                "plan": str(tmp_path / ("other.json" if name == "west" else "plan.json")),
                "records": str(tmp_path / f"{name}.jsonl"),
                "state": str(tmp_path / f"{name}.state"),
            }
            node_config = " ".join(f'{key}="{value}"' for key, value in paths.items())
            stack.enter_context(
                running(
                    *(tmp_path, name, "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{http}"),
                    *("--port", str(port), "--node-config", node_config),
                )
            )
        config = f'plan="{tmp_path / "plan.json"}" out="{tmp_path / "out"}" round-seconds=120.0 gather-seconds=20.0'
        started = subprocess.run(
            [str(BIN / "flwr"), "run", str(ROOT / "deploy" / "flower"), "here", "--run-config", config],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert started.returncode == 0, started.stdout + started.stderr
        await_line(link, "Finished task")
    transcript = Transcript.load(tmp_path / "out" / "transcript.json")
    assert {entry.release.site for entry in transcript.entries} == {"north", "south"}
    assert judge_transcript(transcript).chosen is not None
    for name in ("north", "south"):
        state = json.loads((tmp_path / f"{name}.state" / "state.json").read_text())
        sent = [item["release"] for item in state["releases"]]
        assert sent == [e.release.to_json() for e in transcript.entries if e.release.site == name]
    assert not (tmp_path / "west.state").exists()


def await_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the SuperLink did not start")
