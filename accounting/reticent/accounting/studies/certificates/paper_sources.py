"""Populations for the paper's tables: fitted synthetic laws, and real records where a folder holds them.

The paper's own scores (RAGTruth by Mistral-7B, HaluEval by Qwen2.5-7B) are not published with it, so its cells are
stood for by laws fitted to its figures, and real records of other models and scores stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.studies.certificates.files import frozen_items
from reticent.accounting.studies.certificates.item_streams import Items
from reticent.accounting.studies.certificates.populations import Population, fitted_cell, tilted_cell
from reticent.accounting.studies.certificates.splits import Fractions, fit_score_map, split_records
from reticent.accounting.studies.certificates.tables import LabelledRecords, read_records

__all__ = ["FRANK_FILE", "RAGTRUTH_FILE", "Source", "frank", "frozen_draw", "ragtruth", "subset", "synthetic"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

FRANK_FILE = "frank_scores_labels.csv"
RAGTRUTH_FILE = "redeep_ragtruth_llama2_7b.csv"

_THRESHOLDS, _MIN_ACCEPTANCE = 20, 0.05
_HELDOUT = 320


@dataclass(frozen=True)
class Source:
    """What calibration records are drawn from.

    Attributes:
        name: shown beside the figures.
        population: laws of the sites; of the frozen records where there are items.
        items: the frozen records, or None for a law.
        heldout_bins, heldout_loss: held-out records.
    """

    name: str
    population: Population
    items: Items | None = field(repr=False)
    heldout_bins: Index = field(repr=False)
    heldout_loss: Array = field(repr=False)


def synthetic(name: str, seed: int) -> Source:
    """A fitted law ("c1", "halueval" or "c1_lift") with 320 held-out draws of its own."""
    population = _lift_cell() if name == "c1_lift" else fitted_cell(name)
    bins, loss = population.draw(_HELDOUT, np.random.default_rng([seed, 4]))
    return Source(f"synthetic {name}", population, None, bins, loss)


def frozen_draw(source: Source, count: int, seed: int) -> Source:
    """A law's source with `count` of its draws as frozen records, the same number at each site."""
    rng, K = np.random.default_rng([seed, 5, count]), source.population.sites
    drawn = [source.population.site(k).draw(count // K, rng) for k in range(K)]
    bins, loss = (np.concatenate(column) for column in zip(*drawn, strict=True))
    site = np.repeat(np.arange(K), count // K)
    items = Items(bins, loss, site, source.population.weights, source.population.size)
    return replace(source, items=items, population=items.population(source.name))


def subset(source: Source, count: int, seed: int) -> Source:
    """Some of a source's frozen records, at random; every site keeps its share, and at least one record.

    Raises:
        ValueError: the source has no records.
    """
    items = source.items
    if items is None:
        raise ValueError(f"{source.name} is a law and has no records")
    rng = np.random.default_rng([seed, 6, count])
    kept = []
    for k in range(items.sites):
        rows = rng.permutation(np.flatnonzero(items.site == k))
        kept.append(rows[: max(1, round(count * float(items.weights[k])))])
    rows = np.concatenate(kept)
    weights = np.bincount(items.site[rows], minlength=items.sites) / len(rows)
    part = Items(items.bins[rows], items.loss[rows], items.site[rows], weights, items.thresholds)
    return replace(source, items=part, population=part.population(source.name))


def frank(folder: Path, seed: int) -> Source | None:
    """FRANK: nine sites (model and data set), `BertScore P Art`, loss 1 - human factuality, split by article."""
    path = folder / FRANK_FILE
    if not path.is_file():
        return None
    records = read_records(
        path, client=("model_name", "dataset"), score="BertScore P Art", loss="1-human_factuality", group="hash"
    )
    return _real("FRANK", records, Fractions(0.2, 0.5, 0.3), seed)


def ragtruth(folder: Path, seed: int) -> Source | None:
    """RAGTruth answers of Llama-2-7B: one site, ReDeEP statistics joined on development, in the paper's proportions."""
    path = folder / RAGTRUTH_FILE
    if not path.is_file():
        return None
    records = read_records(path, client=(), score="ecs_mean,ecs_min,-pks_mean,-pks_max", loss="hallucinated")
    return _real("RAGTruth, Llama-2-7B", records, Fractions(0.15, 0.55, 0.3), seed)


def _real(name: str, records: LabelledRecords, fractions: Fractions, seed: int) -> Source:
    split = split_records(records, fractions, seed)
    score_map = fit_score_map(split.dev, _THRESHOLDS, _MIN_ACCEPTANCE)
    items = frozen_items(split.cal, score_map)
    return Source(name, items.population(name), items, score_map.bins(split.heldout), split.heldout.loss)


def _lift_cell() -> Population:
    """C1 with information lift: mean loss .155 + .51 q at the fraction q from the top of the score.

    Fitted to table 2 by the two numbers: at the best threshold acceptance .286 and risk .228 (table 13 prints .287 and
    .228), and Fed-SRC-C fires in about 200, 64-74 and 2-3 of 200 trials at ε = ∞, 8 and 4 (printed: 200, 62, 2), after
    19,500 events on average without noise (printed: 19,160). Sites differ as in `cells.json`.
    """
    m = _THRESHOLDS
    from_top = (m - np.arange(m + 1.0) + 0.5) / (m + 1)
    mean_loss = np.clip(0.155 + 0.51 * from_top, 0.0, 1.0)
    return tilted_cell("c1_lift", mean_loss, (-0.4, -0.2, 0.0, 0.2, 0.4), (0.2, -0.1, -0.2, -0.1, 0.2))
