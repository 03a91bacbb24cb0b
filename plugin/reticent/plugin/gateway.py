"""The way in from in front of vLLM: the same application over one or more servers that are already running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from reticent.plugin.app import create_app
from reticent.plugin.candidates.http import HttpSource
from reticent.plugin.core import build_core
from reticent.plugin.settings import Settings

__all__ = ["create_gateway"]


def create_gateway(settings: Settings) -> FastAPI:
    """Build the gateway application; its lifespan opens and closes every part."""
    model = settings.model
    upstream = HttpSource(model.upstreams, model.upstream_key, model.name, settings.server.request_seconds)
    core = build_core(settings, upstream)
    app = create_app(core)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await core.start()
        try:
            yield
        finally:
            await core.close()

    app.router.lifespan_context = lifespan
    return app
