"""The calibration server over HTTP, in one process: who may send what, what a refusal says, and a whole calibration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from reticent.accounting.calibration import Plan, Transcript
from reticent.accounting.calibration.rounds import Rounds
from reticent.accounting.calibration.site import CalibrationSite
from reticent.accounting.calibration.site_records import read_records
from reticent.accounting.calibration.site_state import SiteState
from reticent.accounting.certificates import judge_transcript
from reticent.plugin.calibration.client import CalibrationClient, ServerProblem
from reticent.plugin.calibration.keys import SiteKeys, load_site_keys
from reticent.plugin.calibration.server import MAX_BODY_BYTES, create_calibration_app
from reticent.plugin.settings import ConfigurationError
from reticent.plugin.tenants import hash_key
from tests.fakes.calibration import (
    Clock,
    deficit_plan,
    good_records,
    make_plan,
    plain_release,
    release_bytes,
    write_records,
)

KEYS = {name: f"rk-{name}" for name in ("north", "south", "west")}
ALL = SiteKeys({name: (hash_key(key),) for name, key in KEYS.items()})


@contextmanager
def server(folder: Path, plan: Plan, clock: Clock, **changes: Any) -> Iterator[TestClient]:
    with (
        Rounds(plan, folder, timedelta(seconds=60), clock=clock, **changes) as rounds,
        TestClient(create_calibration_app(rounds, ALL)) as client,
    ):
        yield client


def send(client: TestClient, site: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    standard = {"Authorization": f"Bearer {KEYS[site]}", "Content-Type": "application/json"}
    response = client.post("/v1/calibration/releases", content=body, headers={**standard, **headers})
    return response.status_code, response.json()


def test_every_route_but_health_wants_a_sites_key(tmp_path: Path) -> None:
    with server(tmp_path, make_plan(), Clock()) as client:
        for path in ("plan", "round", "transcript"):
            for headers in ({}, {"Authorization": "Bearer rk-east"}, {"Authorization": f"Basic {KEYS['north']}"}):
                response = client.get(f"/v1/calibration/{path}", headers=headers)
                assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert client.post("/v1/calibration/releases", content=b"{}").status_code == 401
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/openapi.json").status_code == 404
        assert client.get("/v1/calibration/releases").status_code == 405
    assert not (tmp_path / "refusals.jsonl").exists()


def test_a_site_learns_the_plan_and_what_the_round_asks_of_it(tmp_path: Path) -> None:
    plan = make_plan()
    with server(tmp_path, plan, Clock()) as client:
        headers = {"Authorization": f"Bearer {KEYS['south']}"}
        shown = client.get("/v1/calibration/plan", headers=headers).json()
        assert Plan.from_json(shown["plan"]).digest == shown["plan_digest"] == plan.digest
        standing = client.get("/v1/calibration/round", headers=headers).json()
        assert (standing["state"], standing["round"], standing["slots"], standing["answered"]) == ("open", 1, 6, False)
        assert standing["asked"] == {"north": 10, "south": 6, "west": 4}
        assert standing["closes_at"] == "2030-01-31T12:01:00+00:00"


def test_a_release_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    plan = make_plan()
    with server(tmp_path, plan, Clock()) as client:
        body = release_bytes(plain_release(plan, 1, "north", 10))
        status, receipt = send(client, "north", body)
        assert status == 200
        assert Transcript.load(tmp_path / "transcript.json").head == receipt["digest"]
        assert send(client, "north", body) == (200, receipt)


def test_refusals_name_their_reason_and_are_written_down(tmp_path: Path) -> None:
    plan, clock = make_plan(), Clock()
    good = plain_release(plan, 1, "north", 10)
    with server(tmp_path, plan, clock) as client:
        wrong = [
            (b"{", "north", 400, "malformed"),
            (release_bytes(replace(good, plan_digest="0" * 64)), "north", 409, "wrong_plan"),
            (release_bytes(replace(good, noise_scale=0.1)), "north", 409, "wrong_noise"),
            (release_bytes(replace(good, slots=11)), "north", 409, "wrong_slots"),
            (release_bytes(replace(good, round_number=3)), "north", 409, "wrong_round"),
            (release_bytes(good), "south", 403, "wrong_site"),
        ]
        for body, site, status, code in wrong:
            found = send(client, site, body)
            assert (found[0], found[1]["error"]["code"]) == (status, code)
        assert send(client, "north", release_bytes(good))[0] == 200
        changed = send(client, "north", release_bytes(replace(good, loss_counts=(9, 9, 9, 9))))
        assert (changed[0], changed[1]["error"]["code"]) == (409, "duplicate")
        clock.pass_seconds(60)
        late = send(client, "west", release_bytes(plain_release(plan, 1, "west", 4)))
        assert (late[0], late[1]["error"]["code"]) == (409, "late")
    log = [json.loads(line) for line in (tmp_path / "refusals.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in log] == [code for *_, code in wrong] + ["duplicate", "late"]
    text = (tmp_path / "transcript.json").read_text()
    assert not any(line["sha256"] in text for line in log)


def test_bodies_of_another_type_or_too_large_are_refused_unread(tmp_path: Path) -> None:
    with server(tmp_path, make_plan(), Clock()) as client:
        assert send(client, "north", b"{}", **{"Content-Type": "text/plain"})[0] == 400
        assert send(client, "north", b" " * (MAX_BODY_BYTES + 1))[0] == 413


def test_an_unexpected_error_is_a_bare_500_and_its_text_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Rounds, site: str, data: bytes) -> None:
        raise RuntimeError("CANARY of a record")

    with server(tmp_path, make_plan(), Clock()) as client:
        monkeypatch.setattr(Rounds, "submit", broken)
        code, answer = send(client, "north", b"{}")  # the client raises what leaves the application
    assert (code, answer["error"]["code"]) == (500, "internal_error")
    assert "CANARY" not in json.dumps(answer) + caplog.text


def test_a_full_disk_is_a_503_and_the_release_may_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan()
    body = release_bytes(plain_release(plan, 1, "north", 10))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with server(tmp_path, plan, Clock()) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Transcript, "save", full)
            assert send(client, "north", body)[0] == 503
        assert send(client, "north", body)[0] == 200


def into(client: TestClient) -> httpx.MockTransport:
    """The site's client, into the test server."""

    def forward(request: httpx.Request) -> httpx.Response:
        response = client.request(
            request.method, request.url.path, content=request.read(), headers=dict(request.headers.items())
        )
        return httpx.Response(response.status_code, content=response.content)

    return httpx.MockTransport(forward)


@pytest.mark.parametrize(
    "plan", [make_plan(), deficit_plan(), deficit_plan(1), make_plan(rule="fed_src_c", release="count_error")]
)
def test_three_sites_and_a_server_make_a_transcript_that_replays(tmp_path: Path, plan: Plan) -> None:
    records = {
        name: write_records(tmp_path / f"{name}.jsonl", good_records(60, seed)) for seed, name in enumerate(KEYS)
    }
    out = tmp_path / "out"
    with server(out, plan, Clock()) as client, ExitStack() as stack:
        sites, clients = {}, {}
        for name, key in KEYS.items():
            state = stack.enter_context(SiteState(tmp_path / f"{name}-state", name))
            sites[name] = CalibrationSite(plan, name, read_records(records[name]), state)
            clients[name] = CalibrationClient("http://localhost", key, plan, transport=into(client))
            clients[name].check_plan()
        for _ in range(9):
            for name, site in sites.items():
                now = clients[name].standing()
                if now.state == "open" and now.slots and not now.answered:
                    given = None if plan.recruitment.is_fixed else clients[name].transcript()
                    clients[name].submit(site.answer(now.round_number, now.slots, given))
        assert clients["north"].standing().state == "finished"
    transcript = Transcript.load(out / "transcript.json")
    expected = {0: (23, 14, 9)}.get(plan.recruitment.sites_per_round)
    if expected:
        assert transcript.aggregate().events_by_site == expected
    assert judge_transcript(transcript).events == transcript.aggregate().events


def test_a_client_refuses_a_server_with_another_plan_and_repeats_what_failed(tmp_path: Path) -> None:
    plan = make_plan()
    with server(tmp_path, plan, Clock()) as client:
        other = CalibrationClient("http://localhost", KEYS["north"], make_plan(target_risk=0.2), transport=into(client))
        for ask in (other.check_plan, other.standing, other.transcript):
            with pytest.raises(ServerProblem) as caught:
                ask()
            assert caught.value.code == "wrong_plan"
        stranger = CalibrationClient("http://localhost", "rk-east", plan, transport=into(client))
        with pytest.raises(ServerProblem) as caught:
            stranger.standing()
        assert caught.value.code == "invalid_api_key"
    pauses: list[float] = []
    nobody = CalibrationClient("http://127.0.0.1:9", KEYS["north"], plan, patience=3.0, pause=pauses.append)
    with pytest.raises(ServerProblem) as caught:
        nobody.standing()
    assert (caught.value.code, pauses) == ("unreachable", [0.2, 0.4, 0.8, 1.6])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8700",
        "ftp://localhost",
        "http://example.org",
        "https://user:pass@example.org",
        "https://e.org?x=1",
    ],
)
def test_addresses_that_would_show_the_key_are_refused(url: str) -> None:
    with pytest.raises(ValueError):
        CalibrationClient(url, "rk", make_plan())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a", "mapping"),
        ("{", "YAML"),
        (f"north: {'a' * 64}\n", "no key for site"),
        (f"north: {'a' * 64}\nsouth: {'b' * 64}\nwest: xyz\n", "64 hexadecimal"),
        (f"north: {'a' * 64}\nsouth: {'a' * 64}\nwest: {'b' * 64}\n", "twice"),
        (f"north: []\nsouth: {'a' * 64}\nwest: {'b' * 64}\n", "64 hexadecimal"),
        (f"east: {'a' * 64}\n", "no site 'east'"),
    ],
)
def test_a_keys_file_that_does_not_fit_the_plan_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        load_site_keys(path, make_plan())
    assert "xyz" not in str(caught.value)
