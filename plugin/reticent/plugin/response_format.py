"""The form that a client asks answers to have: a JSON object, or JSON that obeys a schema.

Whether a candidate has it depends on the base model alone, so candidates without it are set aside before any reward
is asked for, and none of them is ever chosen while another has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from reticent.plugin.json_schema import conforms

__all__ = ["ResponseFormat"]


@dataclass(frozen=True)
class ResponseFormat:
    """A form, as it stood in the request: `{"type": "json_object"}` or `{"type": "json_schema", "json_schema": …}`."""

    wire: Mapping[str, Any]

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The schema, None where there is none."""
        found: Mapping[str, Any] | None = self.wire.get("json_schema", {}).get("schema")
        return found

    def fits(self, text: str) -> bool:
        """Whether a text is JSON of this form. Reads nothing but the text."""
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return False
        if self.wire["type"] == "json_object":
            return isinstance(value, dict)
        return self.schema is None or conforms(value, self.schema)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
