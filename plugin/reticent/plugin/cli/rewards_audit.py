"""`reticent rewards audit`: retrain a head on changed pairs and compare every movement with its certified bound."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from reticent.plugin.cli.common import fail, say
from reticent.plugin.cli.rewards_inputs import encoder_named, features_of, mistakes_end_it, pairs_from
from reticent.rewards.encoders import FeatureMatrix
from reticent.rewards.head import LinearHead
from reticent.rewards.head_audit import KINDS, AuditReport, audit_head
from reticent.rewards.pairs import PreferencePairs

__all__ = ["audit", "audit_document", "audit_table", "audited"]

_EXIT_VIOLATED = 1


def audit(
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="The head file.")],
    pairs: Annotated[Path, typer.Option(help="The pairs that it was trained on.")],
    retrainings: Annotated[int, typer.Option(min=len(KINDS), help="How many times to train again.")] = 210,
    candidates: Annotated[int, typer.Option(min=1, help="Candidates whose rewards are compared each time.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the random changes and candidates.")] = 0,
    divide_bound_by: Annotated[
        float, typer.Option(min=1.0, help="Judge by a smaller bound: with 10 the audit must fail.")
    ] = 1.0,
    model: Annotated[Path | None, typer.Option(help="Folder of the encoder's model.")] = None,
    pairs_per_person: Annotated[int | None, typer.Option(min=1, help="k [default: the head's].")] = None,
    drop_unusable: Annotated[
        bool, typer.Option("--drop-unusable", help="Leave out empty, equal and repeated pairs, as in training.")
    ] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for features, to be used again.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try to break a head's sensitivity: exit code 1 if any reward moves further than the bound.

    One person's pairs are left out, flipped, or replaced, at random and to hurt. It shows exact figures of the pairs.
    """
    with mistakes_end_it(str(head)):
        loaded = LinearHead.load(head)
    declared = loaded.certificate.facts.pairs_per_person if pairs_per_person is None else pairs_per_person
    data, _ = pairs_from(pairs, declared, drop_unusable=drop_unusable)
    encoder = encoder_named(loaded.encoder, model, threads)
    with mistakes_end_it(str(head)):
        loaded.require_encoder(encoder)
        features = features_of(data, encoder, cache)
    report = audited(loaded, data, features, retrainings, candidates, seed, divide_bound_by)
    if as_json:
        typer.echo(json.dumps(audit_document(report), indent=2, allow_nan=False))
    else:
        Console().print(audit_table(report))
    if report.violated:
        raise fail("a reward moved further than the bound: the sensitivity of this head does not hold", _EXIT_VIOLATED)


def audited(
    head: LinearHead,
    pairs: PreferencePairs,
    features: tuple[FeatureMatrix, FeatureMatrix],
    retrainings: int = 210,
    candidates: int = 20_000,
    seed: int = 0,
    divide_bound_by: float = 1.0,
) -> AuditReport:
    """The audit with a line of progress now and then, or an end with a message."""

    def progress(done: int, total: int) -> None:
        if done % 50 == 0:
            say(f"{done} of {total} retrainings")

    with mistakes_end_it("audit"):
        return audit_head(
            head,
            pairs,
            features,
            retrainings=retrainings,
            candidates=candidates,
            seed=seed,
            divide_bound_by=divide_bound_by,
            progress=progress,
        )


def audit_document(report: AuditReport) -> dict[str, Any]:
    """For `--json`."""
    return {
        "violated": report.violated,
        "retrainings": report.retrainings,
        "candidates": report.candidates,
        "largest_reward_movement": report.reward_movement,
        "bound": report.sensitivity,
        "share_of_bound": report.reward_movement / report.sensitivity,
        "largest_weight_movement": report.weight_movement,
        "weight_bound": report.movement_bound,
        "bound_divided_by": report.divided_by,
        "kinds": [asdict(kind) for kind in report.kinds],
    }


def audit_table(report: AuditReport) -> Table:
    """A row a kind, and the bound beneath."""
    table = Table(title="Audit by retraining (not private)", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("one person's pairs", no_wrap=True)
    for name in ("retrainings", "largest movement of a reward", "of w"):
        table.add_column(name, justify="right")
    for kind in report.kinds:
        table.add_row(kind.kind, str(kind.retrainings), f"{kind.reward_movement:.3g}", f"{kind.weight_movement:.3g}")
    table.add_section()
    bound = "bound" if report.divided_by == 1 else f"bound / {report.divided_by:g}"
    table.add_row("largest", str(report.retrainings), f"{report.reward_movement:.3g}", f"{report.weight_movement:.3g}")
    table.add_row(bound, "", f"{report.sensitivity:.3g}", f"{report.movement_bound:.3g}")
    table.add_row(
        "largest / bound",
        "",
        f"{report.reward_movement / report.sensitivity:.3f}",
        f"{report.weight_movement / report.movement_bound:.3f}",
    )
    return table
