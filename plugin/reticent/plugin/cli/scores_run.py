"""`reticent scores run` and `reticent scores draw`: scores, and the candidates that some of them compare with, in
bulk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from reticent.plugin.cli.common import fail, say
from reticent.plugin.cli.scores_inputs import Reader, prompts, union_of_needs
from reticent.plugin.cli.scores_items import Item, ItemsInvalid, as_line, read_items
from reticent.plugin.cli.scores_table import GrowingTable, TableMismatch, digest_of
from reticent.plugin.embedded.task import EVIDENCE_TEMPLATE
from reticent.rewards.errors import RewardsError, ScoreInputMissing
from reticent.rewards.scores import Franq, Score, ScoreModels, build_score, score_facts
from reticent.rewards.scores.causal_passes import CausalPasses

__all__ = ["CausalOption", "EntailmentOption", "ItemsArgument", "LimitOption", "draw", "progress", "read_score", "run"]

T = TypeVar("T")

ItemsArgument = Annotated[Path, typer.Argument(metavar="ITEMS", help="JSON lines, plain or gzipped.")]
CausalOption = Annotated[Path | None, typer.Option("--model", help="Folder of the base model (transformers).")]
EntailmentOption = Annotated[Path | None, typer.Option("--entailment", help="Folder of an entailment model.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Read only so many lines.")]


def progress(things: Sequence[T], what: str) -> Iterator[T]:
    """Yield `things` under a progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield from bar.track(things, description=what)


def read_score(text: str, models: ScoreModels) -> Score:
    """A score by name, or from a JSON file `{"name", "constants"}` as `reticent scores fit` writes it.

    Raises:
        RewardsError, ValueError: no such score, or one whose constants or models are wrong.
    """
    if not text.endswith(".json"):
        return build_score(text, None, models)
    try:
        value = json.loads(Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{text} cannot be read: {error.strerror}") from None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"{text} must have a name and constants")
    return build_score(value["name"], value.get("constants"), models)


def run(
    items: ItemsArgument,
    out: Annotated[Path, typer.Option(help="CSV file; one that is there is continued.")],
    score: Annotated[list[str], typer.Option(help="Name of a score, or a JSON file of one. May be repeated.")],
    model: CausalOption = None,
    entailment: EntailmentOption = None,
    limit: LimitOption = None,
) -> None:
    """Compute scores of many answers; go on where an interrupted run stopped.

    Columns: id, group, split, right, one a score (empty where an answer lacks what the score reads), and the parts of
    franq apart.
    """
    models = ScoreModels(entailment=entailment, causal=model)
    try:
        found = read_items(items, limit)
        scores = {_column(name): read_score(name, models) for name in score}
        columns = ("id", "group", "split", "right", *_columns(scores))
        made_with = {
            "scores": {name: score_facts(each) for name, each in scores.items()},
            "items": digest_of([as_line(item) for item in found]),
            "template": EVIDENCE_TEMPLATE,
        }
        reader = Reader(union_of_needs(scores.values()), model)
        with GrowingTable(out, columns, made_with) as table:
            left = [item for item in found if item.id not in table.done]
            if len(left) < len(found):
                say(f"{len(found) - len(left)} of {len(found)} answers are there already")
            for item in progress(left, "scores"):
                table.append(_row(item, scores, reader))
    except (ItemsInvalid, TableMismatch, RewardsError, ValueError) as error:
        raise fail(str(error)) from None
    say(f"{len(left)} answers, {reader.passes.count} passes of the base model for them: {out}")


def _column(name: str) -> str:
    return Path(name).stem if name.endswith(".json") else name


def _columns(scores: dict[str, Score]) -> Iterable[str]:
    for name, score in scores.items():
        yield name
        if isinstance(score, Franq):
            yield from (f"{name}_faithfulness", f"{name}_factuality")


def _row(item: Item, scores: dict[str, Score], reader: Reader) -> dict[str, Any]:
    inputs = reader.inputs(item)
    row: dict[str, Any] = {"id": item.id, "group": item.group, "split": item.split, "right": item.right}
    for name, score in scores.items():
        try:
            row[name] = score.compute(inputs)
            parts = score.parts(inputs) if isinstance(score, Franq) else {}
        except ScoreInputMissing:
            row[name], parts = None, {}
        if isinstance(score, Franq):
            row |= {f"{name}_{part}": parts.get(part) for part in ("faithfulness", "factuality")}
    return row


def draw(
    items: ItemsArgument,
    out: Annotated[Path, typer.Option(help="JSON lines with `others`; a file that is there is continued.")],
    model: Annotated[Path, typer.Option(help="Folder of the base model (transformers).")],
    count: Annotated[int, typer.Option(min=1, help="Answers to draw for each question.")] = 5,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.01)] = 0.7,
    seed: int = 1,
    limit: LimitOption = None,
) -> None:
    """Draw other answers to each question, which scores compare with; items of one group and question share them."""
    settings = {"count": count, "tokens": tokens, "temperature": temperature, "seed": seed, "limit": limit}
    meta = out.with_name(out.name + ".meta.json")
    try:
        found = read_items(items, limit)
        known = json.dumps({"items": digest_of([as_line(item) for item in found]), **settings}, indent=1)
        if out.exists() and (not meta.exists() or meta.read_text(encoding="utf-8") != known):
            raise TableMismatch(f"{out} was drawn from other items or with other settings: take another file")
        meta.write_text(known, encoding="utf-8")
        done = _keep_whole_lines(out)
        passes = CausalPasses(model)
        last: tuple[str, tuple[str, ...]] | None = None
        with out.open("a", encoding="utf-8") as file:
            for item in progress(found[done:], "draws"):
                prompt, _ = prompts(item)
                if last is None or last[0] != prompt:
                    # A seed of the item's own, so that a continued run draws what an uninterrupted one would.
                    own = int(digest_of([str(seed), prompt])[:8], 16)
                    drawn = passes.sample(prompt, count, max_new_tokens=tokens, temperature=temperature, seed=own)
                    last = (prompt, tuple(drawn))
                file.write(as_line(replace(item, others=last[1])))
                file.flush()
    except (ItemsInvalid, TableMismatch, RewardsError) as error:
        raise fail(str(error)) from None
    say(f"{len(found)} items with {count} other answers each: {out}")


def _keep_whole_lines(path: Path) -> int:
    """Drop a line that an interruption cut off; return how many whole lines are left."""
    if not path.exists():
        return 0
    whole = path.read_bytes()
    keep = whole[: whole.rfind(b"\n") + 1]
    if len(keep) < len(whole):
        path.write_bytes(keep)
    return keep.count(b"\n")
