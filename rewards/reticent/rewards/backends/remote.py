"""Models behind a server: JSON calls, bounded in time and size, repeated only while no answer was read."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from reticent.rewards.errors import BackendFailed, BackendUnavailable, ModelUnusable
from reticent.rewards.profile import ModelProfile

from .model import ModelBackend

__all__ = ["MOST_ANSWER_BYTES", "JsonCaller", "RemoteBackend"]

MOST_ANSWER_BYTES = 4 << 20
_Input = TypeVar("_Input")
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_BUSY = frozenset({429, 502, 503, 504})


class RemoteBackend(ModelBackend[_Input]):
    """A declared model behind a server that answers JSON.

    Args:
        profile: of the backend.
        rows: most candidates of one call.
        transport: for tests.
    """

    def __init__(self, profile: ModelProfile, rows: int, transport: httpx.BaseTransport | None) -> None:
        super().__init__(profile)
        self._rows = rows
        self._caller = JsonCaller(profile, transport)

    def close(self) -> None:
        """Let go of connections."""
        self._caller.close()

    def _raw(self, inputs: Sequence[_Input]) -> list[float]:
        found: list[float] = []
        for start in range(0, len(inputs), self._rows):
            try:
                found += self._call(inputs[start : start + self._rows])
            except BackendUnavailable:
                if found:  # Of this batch something was computed already.
                    raise BackendFailed("the reward server went away in the middle of a batch") from None
                raise
        return found

    @abstractmethod
    def _call(self, inputs: Sequence[_Input]) -> list[float]:
        """Raw rewards of one call."""


class JsonCaller:
    """Posts JSON to the server of a profile.

    No proxy of the environment is used and no redirect is followed: prompts and rewards go to that address alone.

    Raises:
        ModelUnusable: the key's file is missing, or others can read it.
    """

    def __init__(self, profile: ModelProfile, transport: httpx.BaseTransport | None = None) -> None:
        headers = (
            {} if profile.key_file is None else {"authorization": f"Bearer {_key(profile.name, profile.key_file)}"}
        )
        self._tries = profile.retries + 1
        self._http = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(profile.timeout_seconds, connect=min(profile.timeout_seconds, 5.0)),
            transport=transport or httpx.HTTPTransport(trust_env=False),
            trust_env=False,
            follow_redirects=False,
        )

    def post(self, url: str, body: object) -> Any:
        """The parsed answer.

        Raises:
            BackendUnavailable: no connection in any try, so surely nothing was computed.
            BackendFailed: anything else than an answer of status 200, in JSON, within the limit of its size.
        """
        sent = False
        for _ in range(self._tries):
            try:
                with self._http.stream("POST", url, json=body) as answer:
                    sent = True
                    if answer.status_code in _BUSY:
                        continue
                    if answer.status_code != 200:
                        raise BackendFailed(f"the reward server answered with status {answer.status_code}")
                    return json.loads(_bounded(answer))
            except _NOT_SENT:
                continue
            except httpx.HTTPError:
                sent = True
            except ValueError:
                raise BackendFailed("the reward server did not answer in JSON") from None
        if sent:
            raise BackendFailed("the reward server gave no answer")
        raise BackendUnavailable

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()


def _bounded(answer: httpx.Response) -> bytes:
    parts, size = [], 0
    for part in answer.iter_bytes():
        size += len(part)
        if size > MOST_ANSWER_BYTES:
            raise BackendFailed("the reward server's answer is too large")
        parts.append(part)
    return b"".join(parts)


def _key(name: str, path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise ModelUnusable(name, "its key_file must be readable by its owner only (chmod 600)")
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise ModelUnusable(name, "its key_file cannot be read") from None
