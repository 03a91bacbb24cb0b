"""`reticent scores fit`: the constants of a score from a development split, as a file that a configuration can name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from reticent.plugin.cli.common import fail, say
from reticent.plugin.cli.scores_inputs import Reader
from reticent.plugin.cli.scores_items import Item, ItemsInvalid, read_items
from reticent.plugin.cli.scores_run import CausalOption, EntailmentOption, ItemsArgument, LimitOption, progress
from reticent.rewards.errors import EncoderUnavailable, RewardsError
from reticent.rewards.scores import (
    EntailedByEvidence,
    Grounding,
    SameEntailment,
    SameWords,
    Score,
    ScoreInputs,
    fit_blend,
    fit_franq,
    fit_grounding,
    fit_sconu,
    score_facts,
)
from reticent.rewards.scores.blend import Blend
from reticent.rewards.scores.causal_passes import CausalPasses
from reticent.rewards.scores.entailment import EntailmentModel
from reticent.rewards.scores.equivalence import Equivalence, SameEmbedding
from reticent.rewards.scores.redeep import ReDeEP, fit_redeep
from reticent.rewards.scores.redeep_statistics import ReDeEPForward
from reticent.rewards.scores.registry import ScoreModels, build_score

__all__ = ["fit"]

FITTED = ("blend", "franq", "grounding", "redeep", "sconu")


def fit(
    items: ItemsArgument,
    score: Annotated[str, typer.Option(help=f"One of {', '.join(FITTED)}.")],
    out: Annotated[Path, typer.Option(help="JSON file for the score.")],
    model: CausalOption = None,
    entailment: EntailmentOption = None,
    same: Annotated[str, typer.Option(help="sconu: words, embedding or entailment.")] = "embedding",
    part: Annotated[list[str] | None, typer.Option(help="blend: its scores. May be repeated.")] = None,
    heads: Annotated[int, typer.Option(min=1, help="redeep: copying heads to choose.")] = 8,
    layers: Annotated[int, typer.Option(min=1, help="redeep: feed-forward blocks to choose.")] = 3,
    every: Annotated[int, typer.Option(min=1, help="redeep: look at every so many-th feed-forward block.")] = 1,
    limit: LimitOption = None,
) -> None:
    """Fit on the development half of the items (`split` of `reticent scores run`); the other half is not read."""
    if score not in FITTED:
        raise fail(f"only {', '.join(FITTED)} are fitted, not {score!r}")
    models = ScoreModels(entailment=entailment, causal=model)
    try:
        labelled = [item for item in read_items(items, limit) if item.split == "development" and item.right is not None]
        right = [bool(item.right) for item in labelled]
        makers: dict[str, Callable[[], Score]] = {
            "blend": lambda: _blend(labelled, right, part or [], models),
            "franq": lambda: _franq(labelled, right, models),
            "grounding": lambda: fit_grounding(_inputs(labelled, Grounding(), None), right),
            "redeep": lambda: _redeep(labelled, right, model, heads, layers, every),
            "sconu": lambda: _sconu(labelled, right, same, models),
        }
        fitted = makers[score]()
    except (ItemsInvalid, RewardsError, ValueError) as error:
        raise fail(str(error)) from None
    out.write_text(json.dumps(score_facts(fitted), indent=1) + "\n", encoding="utf-8")
    say(f"{score} fitted on {len(labelled)} development answers: {out}")


def _inputs(items: list[Item], score: Score, model: Path | None) -> list[ScoreInputs]:
    reader = Reader(score.needs, model)
    return [reader.inputs(item) for item in progress(items, "development answers")]


def _franq(items: list[Item], right: list[bool], models: ScoreModels) -> Score:
    faithfulness: Score = (
        Grounding() if models.entailment is None else EntailedByEvidence(EntailmentModel(models.entailment))
    )
    return fit_franq(faithfulness, _inputs(items, build_score("franq"), models.causal), right)


def _blend(items: list[Item], right: list[bool], names: list[str], models: ScoreModels) -> Score:
    parts = [build_score(name, None, models) for name in names]
    whole = Blend(tuple((one, 1.0) for one in parts), 0.0)
    return fit_blend(parts, _inputs(items, whole, models.causal), right)


def _sconu(items: list[Item], right: list[bool], same: str, models: ScoreModels) -> Score:
    rule: Equivalence
    if same == "words":
        rule = SameWords()
    elif same == "entailment":
        if models.entailment is None:
            raise EncoderUnavailable("entailment", "no folder is named for it (--entailment)")
        rule = SameEntailment(EntailmentModel(models.entailment))
    elif same == "embedding":
        from reticent.rewards.encoders.minilm import MiniLmEmbedder

        rule = SameEmbedding(MiniLmEmbedder(models.embedder))
    else:
        raise ValueError(f"answers are the same by words, embedding or entailment, not by {same!r}")
    return fit_sconu(rule, [Reader(frozenset()).inputs(item) for item in items], right)


def _redeep(items: list[Item], right: list[bool], model: Path | None, heads: int, layers: int, every: int) -> Score:
    if model is None:
        raise EncoderUnavailable("redeep", "it needs the folder of the base model (--model)")
    forward = ReDeEPForward(CausalPasses(model, attentions=True))
    scores = forward.copying_scores()
    copying = {(i, h): float(scores[i, h]) for i in range(forward.layer_count) for h in range(forward.head_count)}
    blocks = range(0, forward.layer_count, every)
    found, verdicts = [], []
    for item, good in progress(list(zip(items, right, strict=True)), "development answers"):
        one = Reader(frozenset()).inputs(item)
        statistics = forward.statistics(one.prompt, one.evidence, one.answer, list(copying), blocks)
        if statistics is not None:
            found.append(statistics)
            verdicts.append(good)
    return ReDeEP(forward, fit_redeep(found, verdicts, copying, heads=heads, layers=layers))
