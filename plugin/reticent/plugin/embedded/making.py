"""How the embedded head, development report and certificate are made: seeds, sizes and choices, in one place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from reticent.accounting.calibration import Plan, Schedule, Site
from reticent.accounting.calibration.schedule import Design, expected_first_look
from reticent.accounting.fingerprint import Fingerprint
from reticent.accounting.lattice import RewardLattice
from reticent.plugin.core import Configured, configured_parts, sensitivity_of
from reticent.plugin.embedded.develop import Selected, auc, risk_at, score_records, select_offline
from reticent.plugin.embedded.records import Drawn, make_pairs, read_drawn, write_drawn, write_pairs
from reticent.plugin.embedded.sampling import draw
from reticent.plugin.embedded.task import EVIDENCE_TEMPLATE, SITES, generate
from reticent.plugin.facts import request_facts
from reticent.plugin.resolve import resolve
from reticent.plugin.settings import Settings
from reticent.plugin.tenants import Caller
from reticent.plugin.wire import ChatRequest
from reticent.rewards.backends.head import HeadBackend
from reticent.rewards.encoders import build_encoder
from reticent.rewards.head import LinearHead
from reticent.rewards.pairs import load_pairs
from reticent.rewards.scores import build_score
from reticent.rewards.tradeoff import tradeoff
from reticent.rewards.training import encode_pairs, train_linear_head

__all__ = ["calibration_config", "development_report", "draw_once", "lines_of", "make_head", "make_plan"]

PAIRS_SEED, PAIRS_ITEMS = 101, 1536
DEVELOPMENT_SEED, DEVELOPMENT_ITEMS = 202, 640
CANDIDATES = 8
ENCODER, REGULARIZATION, SCALE, PAIR_NORM = "minilm/grounded", 0.2, 0.5, 0.7
"""Chosen on questions of another seed, which are in no pair of the head's."""

MUS, SCALES = (0.01, 0.03, 0.1, 0.2, 0.5), (0.1, 0.5)

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))
SCORES = ("self_consistency", "token_probability", "grounding")
COVERAGES = (0.1, 0.2, 0.3, 0.5)
EPSILON, DELTA = 4.0, 1e-6
GROWTH, ROUNDS = 1.4, 5
_TRIALS = 200


def draw_once(model: Path, folder: Path, seed: int, items: int) -> list[Drawn]:
    """Samples of the base model for one seed, kept in `folder`."""
    path = folder / f"samples-{seed}-{items}.jsonl.gz"
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        drawn = draw(model, generate(seed, items), CANDIDATES, seed)
        write_drawn(partial, (Drawn(item, tuple(samples)) for item, samples in drawn))
        os.replace(partial, path)
    return list(read_drawn(path))


def make_head(model: Path, state: Path, folder: Path) -> dict[str, Any]:
    """Draw pairs, train the head, write `pairs.jsonl.gz`, `head.json`, `head-report.json`; return the report.

    Held-out accuracy is on pairs of the development split, without the few whose question stands in a training pair.
    """
    pairs_path, heldout_path = folder / "pairs.jsonl.gz", state / "heldout-pairs.jsonl.gz"
    if not pairs_path.exists():
        write_pairs(pairs_path, make_pairs(draw_once(model, state, PAIRS_SEED, PAIRS_ITEMS), PAIRS_SEED))
    development = draw_once(model, state, DEVELOPMENT_SEED, DEVELOPMENT_ITEMS)
    pairs = load_pairs(pairs_path)
    known = {row.subject for row in pairs.rows}
    write_pairs(heldout_path, (p for p in make_pairs(development, DEVELOPMENT_SEED) if p.subject not in known))
    heldout = load_pairs(heldout_path)
    encoder = build_encoder(ENCODER, threads=2)
    features, apart = encode_pairs(pairs, encoder), encode_pairs(heldout, encoder)
    head = train_linear_head(pairs, encoder, REGULARIZATION, SCALE, pair_norm=PAIR_NORM, features=features)
    head.save(folder / "head.json")
    rows = [asdict(row) for row in tradeoff(features, apart, MUS, SCALES, pair_norm=PAIR_NORM)]
    chosen = next(r for r in rows if (r["regularization"], r["scale"]) == (REGULARIZATION, SCALE))
    report = {
        "pairs": len(pairs.rows),
        "pairs_per_person": pairs.pairs_per_person,
        "regularization": REGULARIZATION,
        "scale": SCALE,
        "pair_norm": PAIR_NORM,
        "encoder": ENCODER,
        "sensitivity": head.sensitivity,
        "heldout_pairs": len(heldout.rows),
        "heldout_accuracy": chosen["heldout_accuracy"],
        "tradeoff": rows,
    }
    (folder / "head-report.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def development_report(model: Path, state: Path, settings: Settings) -> dict[str, Any]:
    """Accuracy of the configured selection, and of every score its AUC and its risk at four coverages."""
    selected, _ = _select_development(model, state, settings)
    report: dict[str, Any] = {
        "items": len(selected),
        "accuracy": 1 - sum(one.loss for one in selected) / len(selected),
        "scores": {},
    }
    configured = {settings.gate.score: settings.gate.score_constants}
    for name, constants in {**dict.fromkeys(SCORES), **configured}.items():
        records = score_records(selected, build_score(name, constants))
        risks = risk_at(records, COVERAGES)
        report["scores"][name] = {"auc": auc(records), **{f"risk at {c}": r for c, r in risks.items()}}
    return report


def _select_development(model: Path, state: Path, settings: Settings) -> tuple[list[Selected], LinearHead]:
    """The development split as the configured rule answers it, with the head that it was judged by."""
    if settings.rewards.head is None:
        raise ValueError("the embedded server has a certified head: rewards.head is missing")
    drawn = draw_once(model, state, DEVELOPMENT_SEED, DEVELOPMENT_ITEMS)
    backend = HeadBackend.load(settings.rewards.head, threads=2)
    lattice = RewardLattice(backend.reward_max, sensitivity_of(settings.rewards, backend.head))
    return select_offline(drawn, backend, lattice, settings.selection.noise_scale), backend.head


def make_plan(model: Path, state: Path, settings: Settings, target_risk: float) -> Plan:
    """The registered plan: three sites of equal weight, fixed thresholds, the first look from the development split."""
    selected, head = _select_development(model, state, settings)
    parts = configured_parts(settings, head)
    records = score_records(selected, parts.score)
    plan = Plan.calibrated(
        epsilon=EPSILON,
        delta=DELTA,
        target_risk=target_risk,
        thresholds=THRESHOLDS,
        sites=tuple(Site(name, 1 / len(SITES)) for name in SITES),
        schedule=Schedule(first_look=600, growth=GROWTH, rounds=ROUNDS),
        loss="wrong-or-unsupported",
        score=settings.gate.score,
        fingerprint=Fingerprint(serving_facts(settings, parts)),
    )
    design = Design(plan.claim, plan.thresholds, plan.noise_scale, len(plan.sites))
    first = expected_first_look(records, design, _TRIALS, seed=DEVELOPMENT_SEED)
    return replace(plan, schedule=Schedule(round(1.3 * first), GROWTH, ROUNDS))


def serving_facts(settings: Settings, parts: Configured) -> dict[str, Any]:
    """What the running server will say of a single question over evidence, with nothing asked for specially."""
    request = ChatRequest.model_validate(
        {
            "model": settings.model.name,
            "messages": [{"role": "user", "content": "?"}],
            "reticent": {"evidence": ["."]},
        }
    )
    caller = Caller(settings.tenants[0], settings.dataset.id)
    return request_facts(parts.facts, resolve(request, caller, settings, parts.rules))


def calibration_config(config: Path, folder: Path, key_sha256: str) -> Path:
    """A configuration like `config` with a ledger of its own and one observing tenant with room for a calibration.

    What fingerprints see (models, rule, sampling, prompt, score) is left as it is.
    """
    document: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))
    if document["prompt"]["evidence_template"].strip() != EVIDENCE_TEMPLATE:
        raise ValueError("the configuration's evidence template is not the embedded task's")
    budget = {"epsilon": 1000.0, "delta": DELTA}
    document["dataset"] |= budget
    document["rewards"]["head"] = str((config.parent / document["rewards"]["head"]).resolve())
    document["gate"]["certificates"] = []
    document.pop("tenants_file", None)
    document["tenants"] = [
        {
            "id": "calibration",
            "key_sha256": [key_sha256],
            "budget": budget,
            "user_budget": budget,
            "policy": {"gate": "observe", "on_exhausted": "refuse"},
        }
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "reticent.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def lines_of(report: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A report as readable lines."""
    for name, value in report.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from lines_of(value, indent + "  ")
        elif not isinstance(value, list):
            yield f"{indent}{name}: {value:.4g}" if isinstance(value, float) else f"{indent}{name}: {value}"
