"""Coroutines at once, of which none outlives the call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

__all__ = ["together"]

T = TypeVar("T")


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all and return their results, in order.

    Where one fails, or the caller is cancelled, the others are cancelled and have ended before the error goes on: what
    is done about it then is done after the last of them. The error is the first one itself, in no group.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if not all(task.done() for task in tasks):
            await asyncio.wait(tasks)
