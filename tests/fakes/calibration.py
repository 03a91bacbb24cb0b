"""Builders for calibrations: a small plan, records, and a clock that tests move."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reticent.accounting.calibration import Plan, Release, Schedule, Site
from reticent.accounting.calibration.recruitment import Recruitment
from reticent.accounting.fingerprint import Fingerprint, canonical_json

__all__ = ["START", "Clock", "make_plan", "plain_release", "release_bytes", "write_records"]

START = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def make_plan(**changes: object) -> Plan:
    arguments: dict[str, object] = {
        "target_risk": 0.3,
        "thresholds": (0.2, 0.5, 0.8),
        "sites": (Site("north", 0.5), Site("south", 0.3), Site("west", 0.2)),
        "epsilon": 4.0,
        "delta": 1e-6,
        "schedule": Schedule(20, 1.5, 3),
        "loss": "wrong answer",
        "score": "self-consistency",
        "fingerprint": Fingerprint({"model": "a"}),
        **changes,
    }
    return Plan.calibrated(**arguments)  # type: ignore[arg-type]


def deficit_plan(sites_per_round: int = 0, **changes: object) -> Plan:
    return make_plan(recruitment=Recruitment("largest_deficit", sites_per_round), **changes)


def plain_release(plan: Plan, number: int, site: str, slots: int, **changes: object) -> Release:
    cells: dict[str, object] = {"loss_counts": (0,) * plan.bins, "nonloss_counts": (number,) * plan.bins}
    return Release(plan.digest, number, site, slots, **{**cells, "noise_scale": plan.noise_scale, **changes})  # type: ignore[arg-type]


def release_bytes(release: Release) -> bytes:
    return canonical_json(release.to_json()).encode()


def write_records(path: Path, records: Iterable[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def good_records(count: int, seed: int, risk: float = 0.02) -> list[dict[str, object]]:
    """Records with ids; scores uniform, losses rare above a score of 0.5 and frequent below."""
    rng = random.Random(seed)
    found: list[dict[str, object]] = []
    for index in range(count):
        score = rng.random()
        found.append(
            {"id": f"{seed}-{index}", "score": score, "loss": int(rng.random() < (risk if score > 0.5 else 0.6))}
        )
    return found
