"""The endpoint plugin before an application that has vLLM's routes: nothing of it can be reached but what is opened."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI, WebSocket

import reticent.plugin.endpoint as endpoint
from reticent.accounting.audit import verify
from reticent.accounting.store.sqlite import SqliteLedger
from reticent.plugin.endpoint import CONFIG_VARIABLE, RequireReticent, ReticentEndpoint
from reticent.plugin.settings import ConfigurationError
from tests.fakes.build import KEYS, MODEL, World, chat_body, make_head, make_world, run, settings_document
from tests.fakes.serving import serving

RAW = "raw, unaligned answer"
_POST = [
    "v1/completions",
    "v1/chat/completions",
    "v1/chat/completions/batch",
    "v1/responses",
    "v1/messages",
    "v1/embeddings",
    "v1/score",
    "v1/audio/transcriptions",
    "v1/load_lora_adapter",
    "invocations",
    "inference/v1/generate",
    "generative_scoring",
    "classify",
    "pooling",
    "score",
    "rerank",
    "tokenize",
    "detokenize",
    "abort_requests",
    "sleep",
    "wake_up",
    "collective_rpc",
    "reset_prefix_cache",
    "scale_elastic_ep",
]
_GET = [
    "v1/models",
    "version",
    "load",
    "ping",
    "health",
    "metrics",
    "server_info",
    "docs",
    "openapi.json",
    "redoc",
    "a/route/that/a/new/release/adds",
]
VLLM_ROUTES = [*(("POST", f"/{path}") for path in _POST), *(("GET", f"/{path}") for path in _GET)]


def vllm_like(events: list[str]) -> FastAPI:
    """An application with vLLM's routes, all of which answer raw."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        events.append("startup")
        yield
        events.append("shutdown")

    async def raw() -> dict[str, str]:
        events.append("raw")
        return {"answer": RAW}

    async def realtime(websocket: WebSocket) -> None:
        events.append("raw")
        await websocket.accept()
        await websocket.send_text(RAW)

    app = FastAPI(lifespan=lifespan)
    for method, path in VLLM_ROUTES:
        if path not in ("/docs", "/openapi.json", "/redoc"):
            app.add_api_route(path, raw, methods=[method])
    app.add_api_websocket_route("/v1/realtime", realtime)
    return app


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """The plugin sets up logging for a process of its own; here others come after it."""
    logger = logging.getLogger("reticent")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file that `RETICENT_CONFIG` names, with one opened route."""
    document = {**settings_document(tmp_path), "server": {"open_routes": ["/version"]}}
    path = tmp_path / "reticent.yaml"
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    return path


def attached(events: list[str]) -> FastAPI:
    app = vllm_like(events)
    ReticentEndpoint().attach_router(app)
    return app


def client(app: Any, tenant: str = "lenient") -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {KEYS[tenant]}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=headers)


def open_with(app: FastAPI, made: World) -> None:
    app.state.reticent.open(made.core)


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("is_open", [False, True], ids=["before init_state", "after"])
def test_no_route_of_vllm_answers_but_the_opened_one(tmp_path: Path, is_open: bool) -> None:
    events: list[str] = []

    async def story() -> None:
        app = attached(events)
        made = make_world(tmp_path)
        await made.core.start()
        if is_open:
            open_with(app, made)
        async with client(app) as http:
            for method, path in VLLM_ROUTES:
                if path == "/version":
                    continue
                for body in (None, chat_body()):
                    response = await http.request(method, path, json=body)
                    assert RAW not in response.text, path
                    if not is_open:
                        assert response.status_code == 503
                        assert response.json()["error"]["code"] == "unavailable"
            assert events == []
            assert RAW in (await http.get("/version")).text
            assert events == ["raw"]
            for path in ("/version/", "//version", "/version/../v1/completions", "/Version", "/version%2f"):
                assert (await http.get(path)).status_code == (404 if is_open else 503)
        await made.core.close()

    run(story())


@pytest.mark.usefixtures("configured")
def test_the_surface_answers_with_the_application(tmp_path: Path) -> None:
    async def story() -> None:
        app = attached([])
        made = make_world(tmp_path)
        await made.core.start()
        open_with(app, made)
        async with client(app) as http:
            response = await http.post("/v1/chat/completions", json=chat_body())
            assert response.json()["choices"][0]["message"]["content"].startswith("copper lantern")
            assert response.json()["reticent"]["charge"] > 0
            assert [m["id"] for m in (await http.get("/v1/models")).json()["data"]] == [MODEL]
            refused = await http.post("/v1/completions", json={})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        await made.core.close()

    run(story())


@pytest.mark.usefixtures("configured")
def test_a_websocket_is_closed_unseen() -> None:
    events: list[str] = []

    async def story() -> None:
        app = attached(events)
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "headers": [],
            "query_string": b"",
            "subprotocols": [],
            "asgi": {"version": "3.0"},
        }
        await app(scope, receive, send)
        assert sent == [{"type": "websocket.close", "code": 1008}]
        assert events == []

    run(story())


@pytest.mark.usefixtures("configured")
def test_lifespan_events_pass_and_open_requests_settle_before_the_engine_goes(tmp_path: Path) -> None:
    events: list[str] = []

    async def story() -> None:
        app = attached(events)
        made = make_world(tmp_path, {"tenants.0.policy": {"gate": "observe"}})
        made.source.hold = asyncio.Event()
        messages: asyncio.Queue[Any] = asyncio.Queue()
        sent: asyncio.Queue[Any] = asyncio.Queue()
        life = asyncio.create_task(
            app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, messages.get, sent.put)
        )
        await messages.put({"type": "lifespan.startup"})
        assert (await sent.get())["type"] == "lifespan.startup.complete"
        await made.core.start()
        open_with(app, made)
        task = made.core.submit(made.plan(), "request-1")
        await messages.put({"type": "lifespan.shutdown"})
        await asyncio.sleep(0.02)
        assert events == ["startup"]
        made.source.hold.set()
        assert (await sent.get())["type"] == "lifespan.shutdown.complete"
        await life
        assert events == ["startup", "shutdown"]
        assert task.result().outcome == "selected"
        assert made.journal()[-1][0] == "settled"

    run(story())


def test_without_a_usable_configuration_nothing_is_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=CONFIG_VARIABLE):
        attached([])
    (tmp_path / "wrong.yaml").write_text("model: 5")
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "wrong.yaml"))
    with pytest.raises(ConfigurationError, match=r"wrong\.yaml"):
        attached([])


def arguments(**changes: Any) -> Namespace:
    return Namespace(**{"model": "/models/x", "served_model_name": [MODEL], **changes})


@pytest.mark.parametrize(
    ("engine", "args", "match"),
    [
        (None, arguments(), "engine"),
        (object(), arguments(served_model_name=["other"]), "vLLM serves"),
        (object(), arguments(served_model_name=None), "vLLM serves"),
        (object(), arguments(), "reward head"),
    ],
)
@pytest.mark.usefixtures("configured")
def test_init_state_stops_the_start_where_something_is_wrong(engine: Any, args: Namespace, match: str) -> None:
    app = attached([])

    async def story() -> None:
        app.state.openai_serving_chat = object()
        with pytest.raises(ConfigurationError, match=match):
            await ReticentEndpoint().init_state(engine, app.state, args)

    run(story())


@pytest.mark.usefixtures("configured")
def test_init_state_opens_the_surface(tmp_path: Path) -> None:
    make_head().save(tmp_path / "head.json")
    SqliteLedger(tmp_path / "ledger.db", create=True).close()
    secret = tmp_path / "worker.secret"
    secret.touch(0o600)
    secret.write_text("s" * 40)

    async def story() -> None:
        app = attached([])
        app.state.openai_serving_chat = object()
        await ReticentEndpoint().init_state(object(), app.state, arguments())
        async with client(app) as http:
            assert (await http.get("/health")).json() == {"status": "ok"}
            assert (await http.get("/ready")).status_code == 503
        await app.state.reticent.core.close()
        assert verify(tmp_path / "ledger.db").scopes == 1 + len(KEYS)

    run(story())


def test_the_guard_lets_an_attached_server_answer(tmp_path: Path, configured: Path) -> None:
    events: list[str] = []
    app = attached(events)
    app.add_middleware(RequireReticent)
    with serving(app) as url:
        assert httpx.get(f"{url}/version").json() == {"answer": RAW}
        assert httpx.post(f"{url}/v1/completions", json={}).status_code == 503
    assert events == ["startup", "raw", "shutdown"]


def test_the_guard_answers_nothing_where_nothing_is_attached() -> None:
    events: list[str] = []

    async def story() -> None:
        app = vllm_like(events)
        app.add_middleware(RequireReticent)
        async with client(app) as http:
            for method, path in VLLM_ROUTES:
                assert (await http.request(method, path)).status_code == 503
        assert events == []

    run(story())


GUARDED = """
import asyncio, sys, uvicorn
from fastapi import FastAPI
from reticent.plugin.endpoint import RequireReticent
app = FastAPI()
app.add_middleware(RequireReticent)
config = uvicorn.Config(app, port=0, lifespan="on", log_config=None)
LAUNCH
print("it serves", flush=True)
"""
LAUNCHERS = {
    "run": "uvicorn.run(app, port=0, lifespan='on', log_config=None)",
    "serve": "asyncio.run(uvicorn.Server(config).serve())",
    # One that does not stop at a failed start-up.
    "stubborn": """
async def stubborn():
    messages = asyncio.Queue()
    await messages.put({"type": "lifespan.startup"})
    async def send(message): pass
    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, messages.get, send)
    await asyncio.sleep(30)
asyncio.run(stubborn())""",
}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "ignore"}


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_a_server_without_the_plugin_does_not_start(launcher: str) -> None:
    script = GUARDED.replace("LAUNCH", LAUNCHERS[launcher])
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 78, done.stderr
    assert "reticent is not attached" in done.stderr


def test_the_module_that_vllm_imports_imports_the_standard_library_alone() -> None:
    """vLLM swallows what an entry point raises while it is imported, and serves without it."""
    script = (
        "import sys; before = set(sys.modules); import reticent.plugin.endpoint as e; e.ReticentEndpoint();"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "['reticent']"


def test_the_entry_point_names_the_class() -> None:
    import tomllib

    root = Path(endpoint.__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.endpoint_plugins"]["reticent"].partition(":")
    assert module == endpoint.__name__
    assert getattr(endpoint, name) is ReticentEndpoint
    assert (ReticentEndpoint.name, ReticentEndpoint.required_tasks) == ("reticent", ("generate",))
