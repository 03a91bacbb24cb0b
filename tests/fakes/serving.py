"""A real uvicorn on loopback, in a thread, with the options that the product uses."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from tests.fakes.build import World

__all__ = ["open_with_app", "serving"]


def open_with_app(made: World) -> FastAPI:
    """The application, whose lifespan starts and closes the core, as the gateway's does."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await made.core.start()
        try:
            yield
        finally:
            await made.core.close()

    made.app.router.lifespan_context = lifespan
    return made.app


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application; yields its address."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, http="httptools", ws="none", log_config=None, access_log=False, lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20.0
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise RuntimeError("the server did not start")
        time.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20.0)
