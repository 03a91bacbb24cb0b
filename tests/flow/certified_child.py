"""A process of its own beside a gateway or a calibration; started by `test_certified_service.py`.

upstream PORT            an OpenAI-compatible server: to an easy question all candidates are the same, else all differ
hostile PLAN URL KEY     a site that sends what it must not, then nothing; prints how each was answered
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from reticent.accounting.calibration import Plan, Release
from reticent.accounting.fingerprint import canonical_json
from tests.fakes.upstream import Upstream

EASY = "easy"


class Knows(Upstream):
    """Knows the answer to easy questions, and guesses at the others."""

    def _choice(self, index: int, body: dict[str, Any]) -> dict[str, Any]:
        choice = super()._choice(index, body)
        if choice["message"]["content"] is not None:
            asked = body["messages"][-1]["content"]
            text = (
                "the painting hangs in the hall" if EASY in asked else " ".join(secrets.token_hex(4) for _ in range(5))
            )
            choice["message"]["content"] = text
        return choice


def upstream(port: str) -> None:
    uvicorn.run(Knows().app(), host="127.0.0.1", port=int(port), log_config=None, access_log=False)


def hostile(plan_file: str, url: str, key: str) -> None:
    plan = Plan.from_json(json.loads(Path(plan_file).read_text()))
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False) as http:

        def send(body: bytes) -> str:
            headers = {"content-type": "application/json"}
            response = http.post("/v1/calibration/releases", content=body, headers=headers)
            return "accepted" if response.status_code == 200 else str(response.json()["error"]["code"])

        def release(site: str, number: int = 1) -> Release:
            zeros = (0,) * plan.bins
            return Release(
                plan.digest, number, site, plan.slots(number, site), zeros, (50,) * plan.bins, plan.noise_scale
            )

        def sent(item: Release) -> str:
            return send(canonical_json(item.to_json()).encode())

        told = [
            sent(replace(release("west"), plan_digest="0" * 64)),
            sent(replace(release("west"), noise_scale=0.01)),
            sent(replace(release("west"), slots=1000)),
            sent(replace(release("west"), nonloss_counts=(10**6,))),
            sent(release("north")),
            send(b'{"release": [1, 2'),
            send(b"[" * 100_000),
            sent(release("west", 2)),
        ]
        while http.get("/v1/calibration/round").json()["round"] < 2:
            time.sleep(0.1)
        told.append(sent(release("west")))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    upstream(*sys.argv[2:]) if sys.argv[1] == "upstream" else hostile(*sys.argv[2:])
