"""Tools that a client offers, the calls that candidates make of them, and how a call is read as text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ToolCall", "ToolUse", "as_text", "new_call_id"]


@dataclass(frozen=True)
class ToolCall:
    """One call: the source's name for it, the function, and its arguments as the JSON text that was drawn."""

    id: str
    name: str
    arguments: str

    def wire(self) -> dict[str, Any]:
        """As it stands in a response."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class ToolUse:
    """What a request says of tools, as it stood there.

    Attributes:
        tools: `{"type": "function", "function": {"name", …}}` each; at least one.
        choice: `none`, `auto`, `required`, or the one function that must be called; None where it was not said.
        parallel: whether one answer may make several calls; None where it was not said.
    """

    tools: tuple[Mapping[str, Any], ...]
    choice: str | Mapping[str, Any] | None = None
    parallel: bool | None = None

    def wire(self) -> dict[str, Any]:
        """The fields as they stand in a request."""
        found: dict[str, Any] = {"tools": [dict(tool) for tool in self.tools]}
        if self.choice is not None:
            found["tool_choice"] = self.choice if isinstance(self.choice, str) else dict(self.choice)
        if self.parallel is not None:
            found["parallel_tool_calls"] = self.parallel
        return found

    def fits(self, calls: Sequence[ToolCall]) -> bool:
        """Whether a candidate with these calls did as it was asked. Reads no reward.

        Every call must be of an offered function, with an object as arguments; `none`, `required`, a named function
        and `parallel_tool_calls: false` are kept to.
        """
        names = {tool["function"]["name"] for tool in self.tools}
        if isinstance(self.choice, Mapping):
            names = {self.choice["function"]["name"]}
        if self.choice == "none" and calls:
            return False
        if (self.choice == "required" or isinstance(self.choice, Mapping)) and not calls:
            return False
        if self.parallel is False and len(calls) > 1:
            return False
        return all(call.name in names and _is_object(call.arguments) for call in calls)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def as_text(text: str, calls: Sequence[ToolCall]) -> str:
    """An answer as rewards and scores read it: its text, then each call on a line of its own, `name(arguments)`."""
    return "\n".join([*([text] if text else []), *(f"{call.name}({call.arguments})" for call in calls)])


def new_call_id() -> str:
    """A name for a call whose source gave it none."""
    return f"call_{uuid.uuid4().hex}"
