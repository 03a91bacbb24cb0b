"""What a score reads of an item in bulk: prompts by the template, and forward passes of the base model where needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reticent.plugin.cli.scores_items import Item
from reticent.plugin.embedded.task import EVIDENCE_TEMPLATE
from reticent.rewards.errors import EncoderUnavailable
from reticent.rewards.scores import Need, Score, ScoreInputs
from reticent.rewards.scores.causal_passes import CausalPasses

__all__ = ["Passes", "Reader", "prompts", "union_of_needs"]

_PASSES: frozenset[Need] = frozenset({"log_probabilities", "top_log_probabilities", "teacher_forced"})


def union_of_needs(scores: Iterable[Score]) -> frozenset[Need]:
    """What all of them need."""
    return frozenset[Need]().union(*(score.needs for score in scores))


def prompts(item: Item, template: str = EVIDENCE_TEMPLATE) -> tuple[str, str]:
    """The user message with the evidence and with it removed; the question alone where there is no evidence."""
    if not item.evidence:
        return item.question, item.question
    before, _, after = template.partition("{evidence}")
    before, after = (part.replace("{question}", item.question) for part in (before, after))
    return before + "\n".join(item.evidence) + after, before + after


@dataclass
class Passes:
    """How many forward passes of the base model were run, and of how many tokens of answers."""

    count: int = 0


class Reader:
    """Makes a score's inputs from items.

    Args:
        needs: what the scores at hand need.
        model: folder of the base model, needed for passes.
        template: of the user message.

    Raises:
        EncoderUnavailable: a pass is needed and no model is named.
    """

    def __init__(self, needs: frozenset[Need], model: Path | None = None, template: str = EVIDENCE_TEMPLATE) -> None:
        self._needs = needs
        self._template = template
        self.passes = Passes()
        self._model: CausalPasses | None = None
        if needs & _PASSES:
            if model is None:
                raise EncoderUnavailable("causal", "these scores need passes of the base model (--model FOLDER)")
            self._model = CausalPasses(model)

    def inputs(self, item: Item) -> ScoreInputs:
        """The inputs, with one pass, or two where the evidence is to be removed."""
        prompt, bare = prompts(item, self._template)
        logs: tuple[float, ...] = ()
        top: tuple[tuple[float, ...], ...] | None = None
        ratios: tuple[float, ...] | None = None
        if self._model is not None:
            told = self._model.answer_pass(prompt, item.answer)
            logs, top = told.log_probabilities, told.top
            self.passes.count += 1
            if "teacher_forced" in self._needs:
                without = self._model.answer_pass(bare, item.answer).log_probabilities
                self.passes.count += 1
                if len(without) == len(logs):
                    ratios = tuple(a - b for a, b in zip(logs, without, strict=True))
        return ScoreInputs(
            question=item.question,
            evidence=item.evidence,
            answer=item.answer,
            others=item.others,
            mean_log_probability=sum(logs) / len(logs) if logs else None,
            lift_log_ratios=ratios,
            prompt=prompt,
            top_log_probabilities=top,
            verifier=item.verifier,
        )
