"""What `make serve` prints when the server is ready."""

from __future__ import annotations

import json
from collections.abc import Mapping

from reticent.plugin.settings import Settings

__all__ = ["welcome"]

_EVIDENCE = "Jonas was born in 1921. Jonas works as a baker. Jonas has a parrot."
_QUESTION = "In what year was Jonas born?"


def welcome(settings: Settings, keys: Mapping[str, str]) -> str:
    """Address, a `curl` line and a Python snippet, both ready to paste."""
    url = f"{settings.server.local_url}/v1"
    key = keys["demo-open"]
    body = json.dumps(
        {
            "model": settings.model.name,
            "messages": [{"role": "user", "content": _QUESTION}],
            "user": "alice",
            "reticent": {"evidence": [_EVIDENCE]},
        }
    )
    return f"""
reticent serves {settings.model.name} at {url}  (Ctrl-C stops it)

Tenants: demo-strict refuses what is not certified; demo-open answers and says whether it was.
  demo-strict key: {keys["demo-strict"]}
  demo-open key:   {key}

Ask:
curl -s {url}/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{body}'

Or in Python:
from openai import OpenAI

client = OpenAI(base_url="{url}", api_key="{key}")
answer = client.chat.completions.create(
    model="{settings.model.name}",
    messages=[{{"role": "user", "content": "{_QUESTION}"}}],
    user="alice",
    extra_body={{"reticent": {{"evidence": ["{_EVIDENCE}"]}}}},
)
print(answer.choices[0].message.content or answer.choices[0].message.refusal, answer.reticent)

The story of this project, played against this server: make demo
"""
