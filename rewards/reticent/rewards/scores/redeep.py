"""ReDeEP (Sun et al. 2024): attention to the context against what the feed-forward blocks bring from memory.

score = sigmoid(b + a_E·(mean external context score of chosen copying heads) + a_P·(mean parametric knowledge score of
chosen layers)). Heads, layers and coefficients are fitted on a development split and then fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reticent.rewards.bounds import sigmoid
from reticent.rewards.errors import ScoreInputMissing

from .base import Need, ScoreInputs
from .fitting import fit_logistic
from .quality import auc
from .redeep_statistics import ReDeEPForward, Statistics

__all__ = ["ReDeEP", "ReDeEPConstants", "fit_redeep"]


@dataclass(frozen=True)
class ReDeEPConstants:
    """What a fit chose.

    Attributes:
        heads: (layer, head) of the copying heads.
        layers: of the feed-forward blocks.
        centres, scales: of the two means, external first; scales positive.
        coefficients: of the standardised means, external first.
        intercept: the constant.

    Raises:
        ValueError: nothing chosen, or a number out of range.
    """

    heads: tuple[tuple[int, int], ...]
    layers: tuple[int, ...]
    centres: tuple[float, float]
    scales: tuple[float, float]
    coefficients: tuple[float, float]
    intercept: float

    def __post_init__(self) -> None:
        numbers = (*self.centres, *self.scales, *self.coefficients, self.intercept)
        if not self.heads or not self.layers or not all(map(math.isfinite, numbers)) or min(self.scales) <= 0:
            raise ValueError("redeep needs heads, layers, finite coefficients and positive scales")

    def score(self, found: Statistics) -> float:
        """The score of an answer with these statistics."""
        means = _means(found, self.heads, self.layers)
        terms = (
            a * (x - centre) / scale
            for a, x, centre, scale in zip(self.coefficients, means, self.centres, self.scales, strict=True)
        )
        return sigmoid(math.fsum([self.intercept, *terms]))


@dataclass(frozen=True)
class ReDeEP:
    """See the module. An answer without tokens, or longer with its prompt than the model is run on, scores 0.

    Args:
        forward: the base model, run by transformers in this process: an engine tells neither attention nor residuals.
        fitted: heads, layers and coefficients.

    Reads the rendered prompt, the evidence and the answer. Costs one pass of the base model, on the CPU where the
    engine is on a device.
    """

    forward: ReDeEPForward = field(compare=False)
    fitted: ReDeEPConstants
    revision: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "revision", self.forward.passes.revision)

    @property
    def name(self) -> str:
        return "redeep"

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    @property
    def constants(self) -> Mapping[str, object]:
        fitted = self.fitted
        return {
            "model": self.revision,
            "share": self.forward.share,
            "heads": [list(head) for head in fitted.heads],
            "layers": list(fitted.layers),
            "centres": list(fitted.centres),
            "scales": list(fitted.scales),
            "coefficients": list(fitted.coefficients),
            "intercept": fitted.intercept,
        }

    def compute(self, inputs: ScoreInputs) -> float:
        if not inputs.prompt:
            raise ScoreInputMissing(self.name, "the rendered prompt")
        found = self.forward.statistics(
            inputs.prompt, inputs.evidence, inputs.answer, self.fitted.heads, self.fitted.layers
        )
        return 0.0 if found is None else self.fitted.score(found)


def fit_redeep(
    found: Sequence[Statistics],
    right: Sequence[bool],
    copying: Mapping[tuple[int, int], float],
    *,
    heads: int = 8,
    layers: int = 3,
    ridge: float = 1e-2,
) -> ReDeEPConstants:
    """Choose heads and layers and fit the coefficients on a development split.

    Args:
        found: the statistics of the split's answers, all with the same heads and layers.
        right: whether each answer is right.
        copying: copying score of the heads; the more copying half are candidates (at least `heads` of them).
        heads, layers: how many to choose: heads whose external score is larger for right answers, layers whose
            parametric score is larger for wrong ones, by AUC.
        ridge: as of `fit_logistic`.

    Raises:
        ValueError: lengths differ, one class only, or nothing to choose from.
    """
    if len(found) != len(right) or len(set(right)) != 2 or heads < 1 or layers < 1:
        raise ValueError("a fit needs one verdict an answer, both right and wrong ones, and heads and layers to choose")
    ordered = sorted(copying, key=lambda head: (-copying[head], head))
    pool = ordered[: max(heads, math.ceil(len(ordered) / 2))]

    def of_head(head: tuple[int, int]) -> float:
        return auc([s.external[head] for s in found], right)

    def of_layer(layer: int) -> float:
        return auc([-s.parametric[layer] for s in found], right)

    chosen = tuple(sorted(sorted(pool, key=lambda head: (-of_head(head), head))[:heads]))
    blocks = tuple(sorted(sorted(found[0].parametric, key=lambda layer: (-of_layer(layer), layer))[:layers]))
    columns = list(zip(*(_means(s, chosen, blocks) for s in found), strict=True))
    centres = tuple(round(math.fsum(column) / len(column), 6) for column in columns)
    scales = tuple(
        max(1e-6, round(math.sqrt(math.fsum((x - c) ** 2 for x in column) / len(column)), 6))
        for column, c in zip(columns, centres, strict=True)
    )
    rows = [[(x - c) / s for x, c, s in zip(row, centres, scales, strict=True)] for row in zip(*columns, strict=True)]
    intercept, coefficients = fit_logistic(rows, right, ridge)
    return ReDeEPConstants(
        chosen,
        blocks,
        (centres[0], centres[1]),
        (scales[0], scales[1]),
        (coefficients[0], coefficients[1]),
        intercept,
    )


def _means(found: Statistics, heads: Sequence[tuple[int, int]], layers: Sequence[int]) -> tuple[float, float]:
    return (
        math.fsum(found.external[head] for head in heads) / len(heads),
        math.fsum(found.parametric[layer] for layer in layers) / len(layers),
    )
