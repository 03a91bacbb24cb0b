"""The reward worker over a backend that a test commands."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx

from reticent.rewards.encoders.base import Subject
from reticent.rewards.ports import RewardBackend
from reticent.rewards.worker_app import create_app

SECRET = "a secret of the tests, 32 letters"
SUBJECT = Subject("Passage: Ada has a cat.\n\nQuestion: What pet has Ada?", "What pet has Ada?", ("Ada has a cat.",))


class FakeBackend:
    """A backend whose scores are given; it notes the threads that call it and can wait or fail."""

    reward_max = 2.0
    sensitivity = 0.5

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.threads: set[int] = set()
        self.next: list[float] | None = None
        self.failure: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()
        self.started = threading.Semaphore(0)
        self.texts: list[str] = []

    def score(self, subject: Subject, candidates: Sequence[str]) -> list[float]:
        self.threads.add(threading.get_ident())
        self.texts.append(candidates[0])
        self.started.release()
        self.hold.wait(10)
        self.calls.append(len(candidates))
        if self.failure is not None:
            raise self.failure
        return [1.0] * len(candidates) if self.next is None else self.next

    def public_facts(self) -> Mapping[str, object]:
        return {"backend": "fake"}


@asynccontextmanager
async def served_worker(backend: RewardBackend, canary_seconds: float = 0.0) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(backend, SECRET, canary_seconds=canary_seconds)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        headers = {"authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers) as http:
            yield http


def score_body(candidates: object = ("a", "b"), **more: object) -> dict[str, object]:
    return {"subject": {"prompt": "p"}, "candidates": candidates, **more}
