"""The gateway as a whole: its lifespan, over a real upstream and a real socket to a worker that is there or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from reticent.accounting.audit import verify
from reticent.accounting.store.sqlite import SqliteLedger
from reticent.plugin.errors import Unavailable
from reticent.plugin.gateway import create_gateway
from reticent.plugin.settings import ConfigurationError, Settings, load_settings
from reticent.rewards.protocol import model_digest
from tests.fakes.build import KEYS, MODEL, make_head, run, settings_document
from tests.fakes.serving import serving
from tests.fakes.upstream import Upstream

SECRET = "s" * 40


@pytest.fixture
def upstream() -> Iterator[tuple[Upstream, str]]:
    made = Upstream()
    with serving(made.app()) as url:
        yield made, f"{url}/v1"


def configure(folder: Path, changes: dict[str, Any] | None = None, upstreams: tuple[str, ...] = ()) -> Settings:
    make_head().save(folder / "head.json")
    secret = folder / "worker.secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    SqliteLedger(folder / "ledger.db", create=True).close()
    document = settings_document(folder)
    document["model"]["upstreams"] = list(upstreams)
    document["tenants"][0]["policy"] = {"gate": "observe"}
    (folder / "reticent.yaml").write_text(yaml.safe_dump({**document, **(changes or {})}))
    return load_settings(folder / "reticent.yaml")


class Worker:
    """A little worker that speaks the real client's protocol on a Unix socket; rewards are lengths of texts."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.status = 200
        self.model = model_digest(make_head().public_facts())

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/health", self.health, methods=["GET"], response_model=None)
        app.add_api_route("/score", self.score, methods=["POST"], response_model=None)
        return app

    async def health(self, request: Request) -> Response:
        known = request.headers["authorization"] == f"Bearer {SECRET}"
        return JSONResponse({"model": self.model}, status_code=200 if known else 401)

    async def score(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        rewards = [len(c) / 100 for c in body["candidates"]]
        return JSONResponse({"rewards": rewards, "model": self.model}, status_code=self.status)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    import threading
    import time

    made = Worker()
    config = uvicorn.Config(made.app(), uds=str(tmp_path / "worker.sock"), log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield made
    server.should_exit = True
    thread.join(20.0)


def test_an_answer_goes_the_whole_way(tmp_path: Path, upstream: tuple[Upstream, str], worker: Worker) -> None:
    made, url = upstream
    settings = configure(tmp_path, upstreams=(url,))
    with (
        serving(create_gateway(settings)) as gateway,
        openai.OpenAI(base_url=f"{gateway}/v1", api_key=KEYS["strict"], max_retries=0) as client,
    ):
        assert httpx.get(f"{gateway}/ready").json()["status"] == "ready"
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What hangs in the hall?"}],
            user="ann",
            extra_body={"reticent": {"evidence": ["A copper lantern hangs there."]}},
        )
        assert (answer.choices[0].message.content or "").startswith("answer ")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        assert made.requests[0]["n"] == 4
        assert made.requests[0]["cache_salt"] == "strict"
        assert made.requests[0]["messages"][0]["content"] == "A copper lantern hangs there.\n\nWhat hangs in the hall?"
        (asked,) = worker.asked
        assert asked["subject"]["question"] == "What hangs in the hall?"
        assert len(asked["candidates"]) == 4
        # A side door of the upstream is none of the gateway's.
        assert httpx.post(f"{gateway}/v1/completions", json={}).status_code == 404
    report = verify(settings.ledger.path)
    assert report.ok
    assert report.open_reservations == 0


def test_a_second_start_finds_the_ledger_as_it_was(
    tmp_path: Path, upstream: tuple[Upstream, str], worker: Worker
) -> None:
    settings = configure(tmp_path, upstreams=(upstream[1],))
    headers = {"authorization": f"Bearer {KEYS['strict']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    remaining = []
    for _ in range(2):
        with serving(create_gateway(settings)) as gateway:
            before = httpx.get(f"{gateway}/v1/reticent/budget", headers=headers).json()
            remaining.append(before["scopes"][0]["remaining"])
            answer = httpx.post(f"{gateway}/v1/chat/completions", headers=headers, json=body).json()
            remaining.append(answer["reticent"]["remaining"]["tenant"])
    assert remaining[0] > remaining[1] == remaining[2] > remaining[3]


def test_a_worker_with_another_model_is_none(tmp_path: Path, upstream: tuple[Upstream, str], worker: Worker) -> None:
    """Charge and certificate were computed for the configured head; another one may move further."""
    settings = configure(tmp_path, upstreams=(upstream[1],))
    worker.model = "0" * 64
    headers = {"authorization": f"Bearer {KEYS['strict']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    with serving(create_gateway(settings)) as gateway:
        assert httpx.get(f"{gateway}/ready").status_code == 503
        assert httpx.post(f"{gateway}/v1/chat/completions", headers=headers, json=body).status_code == 503
        scope = httpx.get(f"{gateway}/v1/reticent/budget", headers=headers).json()["scopes"][0]
        assert scope["spent"] > 0


@pytest.mark.parametrize(
    ("status", "state"), [(503, "released"), (500, "forfeited")], ids=["refuses before scoring", "fails while scoring"]
)
def test_what_the_worker_answers_decides_what_becomes_of_the_reservation(
    tmp_path: Path, upstream: tuple[Upstream, str], worker: Worker, status: int, state: str
) -> None:
    settings = configure(tmp_path, upstreams=(upstream[1],))
    worker.status = status
    headers = {"authorization": f"Bearer {KEYS['strict']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    with serving(create_gateway(settings)) as gateway:
        answer = httpx.post(f"{gateway}/v1/chat/completions", headers=headers, json=body)
        assert answer.status_code == 503
        scope = httpx.get(f"{gateway}/v1/reticent/budget", headers=headers).json()["scopes"][0]
        assert (scope["spent"] > 0) is (state == "forfeited")
        assert scope["reserved"] == 0


def test_without_a_worker_it_starts_is_not_ready_and_releases(tmp_path: Path, upstream: tuple[Upstream, str]) -> None:
    settings = configure(tmp_path, upstreams=(upstream[1],))
    headers = {"authorization": f"Bearer {KEYS['strict']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    with serving(create_gateway(settings)) as gateway:
        assert httpx.get(f"{gateway}/health").status_code == 200
        assert httpx.get(f"{gateway}/ready").status_code == 503
        answer = httpx.post(f"{gateway}/v1/chat/completions", headers=headers, json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        scope = httpx.get(f"{gateway}/v1/reticent/budget", headers=headers).json()["scopes"][0]
        assert (scope["spent"], scope["reserved"]) == (0.0, 0.0)


def spoil_head(folder: Path) -> None:
    path = folder / "head.json"
    path.write_text(path.read_text().replace("0.5", "0.6"))


def spoil_ledger(folder: Path) -> None:
    (folder / "ledger.db").write_bytes(b"not a database at all" * 100)


SPOILT: list[tuple[str, dict[str, Any], Any, str]] = [
    ("no head", {}, lambda f: (f / "head.json").unlink(), "reward head"),
    ("altered head", {}, spoil_head, "altered"),
    ("no secret", {}, lambda f: (f / "worker.secret").unlink(), "secret"),
    ("open secret", {}, lambda f: os.chmod(f / "worker.secret", 0o644), "chmod 600"),
    ("short secret", {}, lambda f: (f / "worker.secret").write_text("short"), "at least"),
    ("binary secret", {}, lambda f: (f / "worker.secret").write_bytes(b"\xff" * 40), "ASCII"),
    ("no ledger", {}, lambda f: (f / "ledger.db").unlink(), "reticent ledger create"),
    ("damaged ledger", {}, spoil_ledger, "ledger"),
    ("short lease", {"ledger": {"path": "l.db", "lease_seconds": 100.0}}, lambda f: None, "lease_seconds"),
    ("unknown score", {"gate": {"score": "vibes"}}, lambda f: None, "vibes"),
    ("wrong constants", {"gate": {"score": "evidence_lift", "score_constants": {"clip": -1}}}, lambda f: None, "clip"),
]


@pytest.mark.parametrize(("changes", "spoil", "match"), [s[1:] for s in SPOILT], ids=[s[0] for s in SPOILT])
def test_a_part_that_cannot_be_used_stops_the_start_with_a_message(
    tmp_path: Path, changes: dict[str, Any], spoil: Any, match: str
) -> None:
    settings = configure(tmp_path, changes, ("http://127.0.0.1:9/v1",))
    spoil(tmp_path)
    with pytest.raises(ConfigurationError, match=match):
        create_gateway(settings)


def test_without_an_upstream_there_is_no_gateway(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.upstreams"):
        create_gateway(configure(tmp_path))


@pytest.mark.parametrize(
    ("section", "change", "match"),
    [
        ("dataset", {"epsilon": 0.1}, "budget"),
        ("tenants.0.budget", {"epsilon": 0.1}, "budget"),
        ("tenants.0.user_budget", {"epsilon": 0.1}, "budget"),
        ("dataset", {"order": 30.0}, "order"),
        ("dataset", {"guarantee": "probabilistic"}, "guarantee"),
    ],
)
def test_budgets_that_cannot_be_opened_stop_the_start_with_a_message(
    tmp_path: Path, section: str, change: dict[str, Any], match: str
) -> None:
    configure(tmp_path, upstreams=("http://127.0.0.1:9/v1",))
    if match != "budget":
        ledger = SqliteLedger(tmp_path / "ledger.db")
        ledger.open_dataset("notes", 20.0, "dp")
        ledger.close()
    document = yaml.safe_load((tmp_path / "reticent.yaml").read_text())
    place: Any = document
    for step in section.split("."):
        place = place[int(step)] if isinstance(place, list) else place[step]
    place.update(change)
    (tmp_path / "reticent.yaml").write_text(yaml.safe_dump(document))
    settings = load_settings(tmp_path / "reticent.yaml")
    app = create_gateway(settings)

    async def story() -> None:
        with pytest.raises(ConfigurationError, match=match):
            await app.state.core.start()
        await app.state.core.close()

    run(story())


def test_a_closed_gateway_is_not_ready(tmp_path: Path) -> None:
    settings = configure(tmp_path, upstreams=("http://127.0.0.1:9/v1",))
    app = create_gateway(settings)

    async def story() -> None:
        await app.state.core.start()
        await app.state.core.close()
        with pytest.raises(Unavailable):
            await app.state.core.check()

    run(story())
