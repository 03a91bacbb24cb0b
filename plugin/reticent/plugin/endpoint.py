"""The way in from inside vLLM: an endpoint plugin, and a guard in front of everything else that vLLM serves.

vLLM only warns when an endpoint plugin is missing and then serves raw answers. So nothing here is a list of doors to
close: `Surface` is ASGI middleware that answers every request itself with our application and lets only those vLLM
routes through that the configuration opens. `RequireReticent`, which `reticent serve` names on vLLM's command line,
stops the start if the surface is not there.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from argparse import Namespace
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Only the standard library is imported here. vLLM swallows what an entry point raises while it is imported or
# instantiated, and then serves without it; an exception from `attach_router` or `init_state` stops the start.
if TYPE_CHECKING:
    from reticent.plugin.core import Core
    from reticent.plugin.settings import Settings

__all__ = ["CONFIG_VARIABLE", "RequireReticent", "ReticentEndpoint", "Surface"]

log = logging.getLogger(__name__)

CONFIG_VARIABLE = "RETICENT_CONFIG"
"""Environment variable that holds the path of the configuration file."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_STATE = "reticent"
_EX_CONFIG = 78


class ReticentEndpoint:
    """The plugin that vLLM loads (entry-point group `vllm.endpoint_plugins`, name `reticent`)."""

    name = "reticent"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Put the surface in front of vLLM's own routes. It answers 503 until `init_state` has run.

        Raises:
            ConfigurationError: there is no usable configuration; vLLM then does not start.
        """
        from reticent.plugin.logs import configure_logging

        configure_logging()
        holder = _Holder(read_settings())
        setattr(app.state, _STATE, holder)
        app.add_middleware(Surface, holder=holder)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Open ledger, worker and certificates over this engine.

        Raises:
            ConfigurationError: vLLM serves another model than the one configured, or has no engine.
        """
        from reticent.plugin.candidates.engine import EngineSource
        from reticent.plugin.core import build_core
        from reticent.plugin.settings import ConfigurationError

        holder: _Holder = getattr(state, _STATE)
        settings = holder.settings
        if engine_client is None:
            raise ConfigurationError("reticent needs an engine; a render-only server has none")
        served = list(args.served_model_name or [args.model])
        if settings.model.name not in served:
            raise ConfigurationError(f"model.name is {settings.model.name!r}, but vLLM serves {served}")
        engine = EngineSource(engine_client, state.openai_serving_chat, settings.model.name)
        core = build_core(settings, engine)
        await core.start()
        holder.open(core)
        log.info("reticent answers for %s", settings.model.name)


class _Holder:
    """What the surface serves, once there is a core."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.core: Core | None = None
        self.app: Asgi | None = None

    def open(self, core: Core) -> None:
        """Begin to answer."""
        from reticent.plugin.app import create_app

        self.core, self.app = core, create_app(core)


class Surface:
    """Answers with our application; lets through only lifespan events and the opened routes."""

    def __init__(self, app: Asgi, holder: _Holder) -> None:
        self._vllm = app
        self._holder = holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] == "lifespan":
            await self._vllm(scope, self._closing(receive), send)
        elif scope["type"] == "http" and scope["path"] in self._holder.settings.server.open_routes:
            await self._vllm(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif self._holder.app is None:
            await _answer_unavailable(send)
        else:
            # A fresh state: our application must not see vLLM's, nor the other way round.
            await self._holder.app({**scope, "state": {}}, receive, send)

    def _closing(self, receive: Receive) -> Receive:
        """Settle open requests before vLLM takes its engine down."""

        async def receive_and_close() -> MutableMapping[str, Any]:
            message = await receive()
            if message["type"] == "lifespan.shutdown" and self._holder.core is not None:
                await self._holder.core.close()
            return message

        return receive_and_close


class RequireReticent:
    """Middleware that refuses to start, and to answer, unless the plugin attached its surface."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if getattr(scope["app"].state, _STATE, None) is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            message = "reticent is not attached to this vLLM server; it does not start: its answers would be raw"
            log.critical(message)
            await send({"type": "lifespan.startup.failed", "message": message})
            # Not every launcher stops at a failed start-up: make sure of it. A thread that is waited for at exit, so
            # that the status is the same for a launcher that does stop.
            threading.Timer(0.2, os._exit, (_EX_CONFIG,)).start()
        else:
            await _answer_unavailable(send)


def read_settings() -> Settings:
    """The settings from the file that `RETICENT_CONFIG` names.

    Raises:
        ConfigurationError: the variable is not set, or the file is wrong.
    """
    from reticent.plugin.settings import ConfigurationError, load_settings

    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        raise ConfigurationError(f"set {CONFIG_VARIABLE} to the path of the reticent configuration file")
    return load_settings(Path(path))


async def _answer_unavailable(send: Send) -> None:
    error = {"message": "The server is not ready.", "type": "server_error", "param": None, "code": "unavailable"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
