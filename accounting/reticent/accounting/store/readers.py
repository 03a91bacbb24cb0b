"""Connections between two reads, kept open for the next one."""

from __future__ import annotations

import threading
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["IdleReaders"]

_MOST: Final = 8


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class IdleReaders(Generic[C]):
    """At most 8 connections that nobody reads with now. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._closed = False

    def take(self) -> C | None:
        """The one that was given back last, if there is one."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def give_back(self, connection: C) -> None:
        """Keep it for the next reader, or close it: where there are enough, and after `close`."""
        with self._lock:
            keep = not self._closed and len(self._idle) < _MOST
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def close(self) -> None:
        """Close those that are here, and each that is given back from now on."""
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()
