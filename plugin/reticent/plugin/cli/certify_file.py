"""`reticent certify file`: would a certificate hold on these labelled records, and what would it cost?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.rules import RULES
from reticent.accounting.errors import AccountingError
from reticent.accounting.studies.certificates.files import FileStudy, Outcome, Question, study_file
from reticent.accounting.studies.certificates.item_streams import ONCE, WITH_REPLACEMENT
from reticent.accounting.studies.certificates.splits import SCORE_MAP, parse_fractions
from reticent.accounting.studies.certificates.tables import read_records
from reticent.plugin.cli.common import fail

__all__ = ["certify_file", "file_document"]

_EXIT_USAGE = 2
_SPEAKS_OF = {
    WITH_REPLACEMENT: "the calibration records as frozen sites, drawn with replacement; new records are not meant, and "
    "the held-out figures say how far they differ",
    ONCE: "the law that the calibration records were drawn from, independently, at each site",
}


def certify_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or JSON lines, also gzipped; a row an answer.")],
    score: Annotated[
        str, typer.Option(help="Score column, larger is better; -COL turns it round. Several are joined by commas.")
    ],
    loss: Annotated[str, typer.Option(help="Loss column in [0, 1], or 1-COL.")],
    target: Annotated[float, typer.Option(help="r*, the risk to certify.")],
    epsilon: Annotated[float, typer.Option(help="ε of one stream occurrence; inf for no noise.")],
    client: Annotated[str, typer.Option(help="Columns that together name a record's site; left out: one site.")] = "",
    split: Annotated[str, typer.Option(help="Parts of the records.")] = "dev:0.2,cal:0.5,heldout:0.3",
    group: Annotated[
        str | None, typer.Option(help="Column of what records share (article, person): kept together, and charged.")
    ] = None,
    rule: Annotated[str, typer.Option(help=f"One of {', '.join(sorted(RULES))}.")] = "eprocess",
    release: Annotated[
        str | None, typer.Option(help="loss_nonloss or count_error [default: what the rule was published with].")
    ] = None,
    noise: Annotated[str | None, typer.Option(help="Calibration of σ: exact or zcdp [default: likewise].")] = None,
    once: Annotated[bool, typer.Option("--once", help="Use every calibration record once, in random order.")] = False,
    thresholds: Annotated[int, typer.Option(min=1, max=1000, help="m, quantiles of the development scores.")] = 20,
    looks: Annotated[str, typer.Option(help="development, or paper: 30 rounds of 1,000.")] = "development",
    most: Annotated[int, typer.Option(min=1, help="Events at most, with replacement.")] = 30_000,
    min_acceptance: Annotated[float, typer.Option(help="a_min.")] = 0.05,
    alpha_risk: Annotated[float, typer.Option(help="α_D.")] = 0.045,
    alpha_acceptance: Annotated[float, typer.Option(help="α_A.")] = 0.005,
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-6,
    trials: Annotated[int, typer.Option(min=1, help="Repetitions of stream and noise on the same split.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of split, stream and simulated noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Calibrate on a table of labelled records, and judge the certified threshold on held-out ones.

    A study: noise is simulated, and the output shows exact figures of the records. It is not private.
    """
    try:
        question = Question(
            claim=Claim(target, min_acceptance, alpha_risk, alpha_acceptance),
            epsilon=epsilon,
            delta=delta,
            rule=rule,
            release=release,
            method=noise,
            stream=ONCE if once else WITH_REPLACEMENT,
            thresholds=thresholds,
            looks=looks,
            most=most,
            fractions=parse_fractions(split),
            seed=seed,
            trials=trials,
        )
        names = [name.strip() for name in client.split(",") if name.strip()]
        records = read_records(path, client=names, score=score, loss=loss, group=group)
        document = file_document(study_file(records, question))
    except (AccountingError, ValueError, OSError) as error:
        raise fail(str(error), _EXIT_USAGE) from None
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        Console().print(_shown(document))


def file_document(study: FileStudy) -> dict[str, Any]:
    """The study as JSON values; ε = ∞ is null. Top-level figures are those of the first trial."""
    asked, first = study.question, study.outcome(0)
    document: dict[str, Any] = {
        "target_risk": asked.claim.target_risk,
        "epsilon": _finite(asked.epsilon),
        "delta": asked.delta,
        "rule": asked.rule,
        "release": asked.release,
        "noise_calibration": asked.method,
        "noise_scale": study.noise_scale,
        "min_acceptance": asked.claim.min_acceptance,
        "failure_probabilities": dict(study.rule.failure_probabilities(asked.claim)),
        "stream": asked.stream,
        "speaks_of": _SPEAKS_OF[asked.stream],
        "seed": asked.seed,
        "looks": list(study.looks),
        **_outcome(first),
        "violation": None if study.violated is None else bool(study.violated[0]),
        "privacy": _privacy(study, first),
        "records": {part: getattr(study.split, part).size for part in ("dev", "cal", "heldout")},
        "sites": _sites(study),
        "score_map": {
            "map": SCORE_MAP,
            "columns": list(study.score_map.names),
            "coefficients": list(study.score_map.coefficients),
            "low": study.score_map.low,
            "high": study.score_map.high,
            "thresholds": list(study.score_map.thresholds),
        },
    }
    if asked.trials > 1:
        document["repeats"] = _repeats(study)
    return document


def _outcome(made: Outcome) -> dict[str, Any]:
    heldout = made.heldout
    return {
        "certified": made.certified,
        "threshold": made.threshold,
        "raw_threshold": made.raw_threshold,
        "rounds": made.rounds,
        "events": made.events,
        "unique_items": made.unique_items,
        "reuse": made.reuse,
        "most_uses_of_an_item": made.uses_most,
        "transfer": made.transfer,
        "contrast_upper": made.contrast_upper,
        "acceptance_lower": made.acceptance_lower,
        "acceptance": made.acceptance,
        "calibration_risk": made.calibration_risk,
        "heldout_risk": heldout.mean if heldout else None,
        "heldout_risk_interval": [heldout.low, heldout.high] if heldout else None,
        "heldout_risk_method": f"{heldout.method}, 95 %, two-sided" if heldout else None,
        "heldout_accepted": made.heldout_accepted,
        "heldout_acceptance": made.heldout_acceptance,
    }


def _privacy(study: FileStudy, made: Outcome) -> dict[str, Any]:
    return {
        "unit": "one stream occurrence (zero-out of one slot)",
        "epsilon": _finite(study.question.epsilon),
        "delta": study.question.delta,
        "item_epsilon": _finite(made.item_epsilon),
        "group_epsilon": _finite(made.group_epsilon),
        "note": "item_epsilon and group_epsilon charge every use of the record, or group, that was used most; without "
        "a group column each record is its own group",
    }


def _sites(study: FileStudy) -> list[dict[str, Any]]:
    cal = study.split.cal
    present, counts = np.unique(cal.client, return_counts=True)
    return [
        {"client": cal.clients[k] or "all", "weight": float(w), "records": int(n)}
        for k, w, n in zip(present, study.items.weights, counts, strict=True)
    ]


def _repeats(study: FileStudy) -> dict[str, Any]:
    outcomes = [study.outcome(trial) for trial in range(study.question.trials)]
    made = [o for o in outcomes if o.certified]
    risks = [o.heldout.mean for o in made if o.heldout and o.heldout.mean is not None]

    def median(values: list[float]) -> float | None:
        return float(np.median(values)) if values else None

    return {
        "trials": len(outcomes),
        "certified": len(made),
        "median_events": median([float(o.events) for o in made]),
        "median_reuse": median([o.reuse for o in made]),
        "mean_acceptance": float(np.mean([o.acceptance for o in made])) if made else None,
        "mean_heldout_risk": float(np.mean(risks)) if risks else None,
        "heldout_risk_above_target": sum(risk > study.question.claim.target_risk for risk in risks),
        "violations": None if study.violated is None else int(study.violated.sum()),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(document: Mapping[str, Any]) -> Table:
    table = Table("", "", show_header=False, title="Certificate study on labelled records (not private)")
    for name, value in document.items():
        if name not in ("sites", "score_map", "looks", "repeats", "privacy", "records", "failure_probabilities"):
            table.add_row(name, _text(value))
    for name in ("privacy", "records", "repeats"):
        for key, value in document.get(name, {}).items():
            if key != "note":
                table.add_row(f"{name}: {key}", _text(value))
    return table


def _text(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
