"""`reticent rewards train`: a head with a certified sensitivity, or a differentially private one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from reticent.plugin.cli.common import fail, say
from reticent.plugin.cli.plan_plots import require_plotting
from reticent.plugin.cli.rewards_audit import audit_document, audit_table, audited
from reticent.plugin.cli.rewards_inputs import (
    ENCODER_HELP,
    EXIT_USAGE,
    encoder_named,
    features_of,
    mistakes_end_it,
    numbers,
    pairs_from,
)
from reticent.plugin.cli.rewards_views import Serving, draw_tradeoff, head_text, privacy_document, tradeoff_table
from reticent.rewards.head import LinearHead
from reticent.rewards.pairs import folds_by_prompt
from reticent.rewards.tradeoff import TradeoffRow, cross_validated
from reticent.rewards.training import DEFAULT_TOLERANCE, PrivacyWish, require_contrast, train_linear_head

__all__ = ["train"]


class NoiseOption(StrEnum):
    """Noise of a private head."""

    gaussian = "gaussian"
    laplace = "laplace"


def train(
    pairs: Annotated[
        Path, typer.Argument(metavar="PAIRS", help="JSON lines, plain or gzipped: prompt, chosen, rejected, person.")
    ],
    encoder: Annotated[str, typer.Option(help=ENCODER_HELP)],
    out: Annotated[Path, typer.Option(help="The head file to write.")],
    model: Annotated[Path | None, typer.Option(help="Folder of the encoder's model.")] = None,
    mu: Annotated[float, typer.Option(help="μ, the ridge: a larger one makes Δ smaller.")] = 0.1,
    scale: Annotated[float, typer.Option(help="s in r = R sigmoid(w·φ/s).")] = 0.5,
    reward_max: Annotated[float, typer.Option(help="R.")] = 1.0,
    pair_norm: Annotated[float, typer.Option(help="G, longer differences are shortened to it; at most 2.")] = 2.0,
    tolerance: Annotated[float, typer.Option(help="τ, declared bound on the gradient.")] = DEFAULT_TOLERANCE,
    pairs_per_person: Annotated[int | None, typer.Option(min=1, help="k, declared [default: counted].")] = None,
    private: Annotated[
        float | None, typer.Option(metavar="EPS", help="Train under differential privacy: ε of the head.")
    ] = None,
    private_delta: Annotated[float, typer.Option(help="δ of a private head, Gaussian noise.")] = 1e-6,
    noise: Annotated[
        NoiseOption, typer.Option(help="Of a private head: gaussian, (ε, δ), or laplace, pure ε.")
    ] = NoiseOption.gaussian,
    mus: Annotated[str, typer.Option(help="μ of the table of trade-offs.")] = "0.003,0.01,0.03,0.1,0.3",
    scales: Annotated[str, typer.Option(help="s of the table.")] = "0.1,0.5,2",
    noise_scale: Annotated[float, typer.Option(help="σ of PrivBoN in the table.")] = 0.1,
    candidates: Annotated[int, typer.Option(min=2, help="n of PrivBoN in the table.")] = 8,
    epsilon: Annotated[float, typer.Option(help="ε of the budget whose queries the table counts.")] = 50.0,
    delta: Annotated[float, typer.Option(help="δ of that budget.")] = 1e-6,
    folds: Annotated[int, typer.Option(min=2, help="Of the cross-validation, by prompt.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the folds.")] = 0,
    with_audit: Annotated[bool, typer.Option("--audit", help="Audit the head by retraining, 210 times.")] = False,
    drop_unusable: Annotated[
        bool, typer.Option("--drop-unusable", help="Leave out empty, equal and repeated pairs instead of refusing.")
    ] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for features, to be used again (confidential).")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy against Δ to this .png or .svg file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a reward head on preference pairs, with a proved bound on what one person can move.

    The head is trained on all pairs. Accuracies come from heads trained without a fifth of the prompts, and are figures
    of the data without noise: not private, and neither is a choice of μ or s made by them.
    """
    if plot is not None:
        require_plotting(plot)
    if not out.parent.is_dir():
        raise fail(f"--out: there is no folder {out.parent}", EXIT_USAGE)
    mu_grid = sorted({*numbers(mus, "--mus"), *numbers(str(mu), "--mu")})
    scale_grid = sorted({*numbers(scales, "--scales"), *numbers(str(scale), "--scale")})
    serving = Serving(noise_scale, candidates, epsilon, delta)
    wish = None if private is None else PrivacyWish(private, private_delta, noise.value)
    data, dropped = pairs_from(pairs, pairs_per_person, drop_unusable=drop_unusable)
    with mistakes_end_it(str(pairs)):
        dealt = folds_by_prompt(data, folds, seed)
        built = encoder_named(encoder, model, threads)
        features = features_of(data, built, cache)
        require_contrast(data, *features)
    with mistakes_end_it("training"):
        rows = list(
            cross_validated(
                features,
                dealt,
                mu_grid,
                scale_grid,
                pairs_per_person=data.pairs_per_person,
                pair_norm=pair_norm,
                gradient_tolerance=tolerance,
                reward_max=reward_max,
                privacy=wish,
                noise_scale=serving.noise_scale,
            )
        )
        queries = [serving.queries(reward_max, row.sensitivity) for row in rows]
        head = train_linear_head(
            data,
            built,
            mu,
            scale,
            reward_max=reward_max,
            pair_norm=pair_norm,
            gradient_tolerance=tolerance,
            features=features,
            privacy=wish,
        )
    with mistakes_end_it(f"--out {out}"):
        head.save(out)
    chosen = next(i for i, row in enumerate(rows) if (row.regularization, row.scale) == (mu, scale))
    report = audited(head, data, features) if with_audit else None
    if plot is not None:
        draw_tradeoff(rows, rows[chosen], plot)
    if as_json:
        document = _document(out, head, rows, queries, chosen, folds, len(dropped), serving)
        if report is not None:
            document["audit"] = audit_document(report)
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        Console().print(tradeoff_table(rows, queries, rows[chosen], serving))
        typer.echo(head_text(head, rows[chosen], queries[chosen], serving, out))
        if report is not None:
            Console().print(audit_table(report))
    if report is not None and report.violated:
        raise fail("a reward moved further than the bound: the sensitivity of this head does not hold")
    if head.private is not None:
        say("charge this training to the data set's budget once; every further call is a release of its own")


def _document(
    out: Path,
    head: LinearHead,
    rows: list[TradeoffRow],
    queries: list[float],
    chosen: int,
    folds: int,
    dropped: int,
    serving: Serving,
) -> dict[str, Any]:
    facts, row = head.certificate.facts, rows[chosen]
    accuracy = row.heldout_accuracy
    return {
        "head": str(out),
        "identifier": head.identifier,
        "encoder": head.encoder,
        "encoder_revision": head.encoder_revision,
        "dimension": head.dimension,
        **asdict(facts),
        "sensitivity": head.sensitivity,
        "formula": head.certificate.formula,
        "heldout_accuracy": accuracy,
        "heldout_accuracy_error": math.sqrt(accuracy * (1 - accuracy) / facts.pairs),
        "heldout_method": f"{folds}-fold cross-validation by prompt; the head itself is trained on all pairs",
        "heldout_selection_accuracy": row.selection_accuracy,
        "heldout_private_accuracy": row.private_accuracy,
        "unusable_lines_left_out": dropped,
        "private": privacy_document(head),
        "queries": None if head.private is not None else queries[chosen],
        "serving": asdict(serving),
        "tradeoff": [{**asdict(row), "queries": count} for row, count in zip(rows, queries, strict=True)],
        "note": "accuracies are figures of the data without noise: not private",
    }
