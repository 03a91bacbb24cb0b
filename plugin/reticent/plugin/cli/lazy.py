"""A group of commands that imports a command's module only when that command is wanted.

`reticent ledger show` then pays for the ledger, and not for the server, the calibration and the studies.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

__all__ = ["lazy_group"]


def lazy_group(places: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]] | None = None) -> type[TyperGroup]:
    """The class of a group with these commands, for `typer.Typer(cls=…)`; what is registered otherwise comes after.

    Help shows every command's own, and so imports them all.

    Args:
        places: by name "module:attribute", in the order in which help lists them. The attribute is a `typer.Typer`, or
            the function of a single command.
        settings: by a single command's name, arguments of `typer.Typer.command`.
    """

    class LazyGroup(TyperGroup):
        """A group whose commands are imported one by one."""

        def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
            super().__init__(commands=_Commands(places, settings or {}, commands or {}), **attributes)  # type: ignore[arg-type]

        def list_commands(self, ctx: Any) -> list[str]:
            """Names, without an import."""
            return list(self.commands)

    return LazyGroup


class _Commands(MutableMapping[str, Any]):
    """Commands by name, loaded when one is looked up."""

    def __init__(
        self, places: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]], loaded: Mapping[str, Any]
    ) -> None:
        self._places = places
        self._settings = settings
        self._loaded = dict(loaded)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._places[name], self._settings.get(name, {}))
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._places, **self._loaded})

    def __len__(self) -> int:
        return len({**self._places, **self._loaded})

    def __contains__(self, name: object) -> bool:
        return name in self._places or name in self._loaded


def _load(name: str, place: str, settings: Mapping[str, Any]) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    holder = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, **settings)(found)
    return get_group(holder).commands[name]
