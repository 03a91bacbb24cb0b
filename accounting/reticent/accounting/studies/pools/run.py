"""All cells of a question on every prompt of a pool, one prompt after another, with a checkpoint.

Memory: the pool's rewards, one prompt's work (tens of MB for 10,000 answers), and one small table a prompt. A prompt's
randomness comes from the seed and its own place, so that a run that was interrupted ends as if it had not been.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.privitp import PrivITP
from reticent.accounting.errors import InvalidQuantityError
from reticent.accounting.planning.laws import Floats
from reticent.accounting.studies.pools.blocks import BATCHES, Blocks
from reticent.accounting.studies.pools.files import Pool
from reticent.accounting.studies.pools.groups import COLUMNS, Groups, group
from reticent.accounting.studies.pools.noisy_best import (
    MOST_ANSWERS_EXACT,
    bootstrap_best,
    distinct_best,
    sampled_best,
)
from reticent.accounting.studies.pools.order_statistics import best_of_n_weights
from reticent.accounting.studies.pools.pessimism import CHARGE, CHARGE_SQUARE, MEASURES, Smoothing, itp, privitp
from reticent.accounting.studies.pools.question import Cell, Question
from reticent.accounting.studies.pools.round_charges import RoundCharges, certified_charges, quick_charges

__all__ = ["CheckpointError", "Evaluation", "evaluate"]

_SAVE_EVERY = 20.0


class CheckpointError(ValueError):
    """The file `path` is no checkpoint of this run; `reason` in words."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"checkpoint {path}: {reason}")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Attributes:
    question: what was asked.
    prompts: (P, cells, measures), NaN for measures that a rule has not; base columns in `base`.
    base: (P, 4) columns of one base sample.
    batches: (batches, cells, measures) means over the prompts in independent repetitions of what is sampled.
    worst: (cells,) most that one query may cost, nats.
    largest_prompt: answers of the prompt that has most.
    """

    question: Question
    prompts: Floats
    base: Floats
    batches: Floats
    worst: Floats
    largest_prompt: int


@dataclass(frozen=True, eq=False)
class _Job:
    """Cells of one rule that share work: all n of one (σ, β)."""

    rule: str
    places: list[int]
    cells: list[Cell]
    mechanisms: list[PrivBoN | PrivBoNGaussian | PrivITP | None]
    smoothing: Smoothing | None
    charges: list[RoundCharges]


def evaluate(
    pool: Pool,
    question: Question,
    *,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: Path | None = None,
) -> Evaluation:
    """Every cell on every prompt.

    Args:
        progress: told the prompts done and all prompts.
        checkpoint: file that is written now and then, and continued from where it is there.

    Errors: `InvalidQuantityError` where a prompt has fewer answers than distinct candidates are asked for;
    `CheckpointError`.
    """
    most = max(question.candidates)
    if question.distinct and any(cell.rule != "base" for cell in question.cells) and most > pool.fewest:
        required = f"at most {pool.fewest}, the answers of the prompt that has fewest, or drawn with replacement"
        raise InvalidQuantityError("candidates", most, required)
    jobs, worst = _jobs(question)
    state = _State.start(pool, question, checkpoint)
    saved = time.monotonic()
    while state.done < len(pool):
        _prompt(pool, question, jobs, worst, state)
        if progress is not None:
            progress(state.done, len(pool))
        if checkpoint is not None and (time.monotonic() - saved > _SAVE_EVERY or state.done == len(pool)):
            state.save(checkpoint)
            saved = time.monotonic()
    return Evaluation(question, state.prompts, state.base, state.batches / len(pool), worst, pool.most)


def _jobs(question: Question) -> tuple[list[_Job], Floats]:
    worst = np.zeros(len(question.cells))
    together: dict[tuple[object, ...], list[int]] = {}
    for place, cell in enumerate(question.cells):
        together.setdefault((cell.rule, cell.noise_scale, cell.regularization), []).append(place)
    jobs = []
    costs = certified_charges if question.certified else quick_charges
    for places in together.values():
        cells = [question.cells[place] for place in places]
        mechanisms = [question.mechanism(cell) for cell in cells]
        smoothing, charges = None, []
        for place, mechanism in zip(places, mechanisms, strict=True):
            if isinstance(mechanism, PrivITP):
                smoothing = smoothing or Smoothing.of(mechanism)
                charges.append(costs(mechanism, smoothing.grid, question.alpha))
                worst[place] = charges[-1].worst
            elif mechanism is not None:
                worst[place] = mechanism.charge(question.alpha)
        jobs.append(_Job(cells[0].rule, places, cells, mechanisms, smoothing, charges))
    return jobs, worst


def _prompt(pool: Pool, question: Question, jobs: list[_Job], worst: Floats, state: _State) -> None:
    index = state.done
    groups = group(pool.rewards[index], pool.truths[index])
    rng = np.random.default_rng([question.seed, index])
    blocks = Blocks(groups, question.candidates, distinct=question.distinct, draws=question.draws, rng=rng)
    found = np.full((BATCHES, len(question.cells), MEASURES), np.nan)
    for job in jobs:
        for place, values in zip(job.places, _job(job, groups, blocks, question, rng), strict=True):
            found[:, place, : values.shape[-1]] = values
        for place, mechanism in zip(job.places, job.mechanisms, strict=True):
            if isinstance(mechanism, PrivBoN | PrivBoNGaussian):
                charge = worst[place]  # the same for every outcome
                found[:, place, CHARGE], found[:, place, CHARGE_SQUARE] = charge, charge * charge
    state.prompts[index], state.base[index] = found.mean(axis=0), groups.base
    state.batches += found
    state.done += 1


def _job(job: _Job, groups: Groups, blocks: Blocks, question: Question, rng: np.random.Generator) -> list[Floats]:
    """For each cell (batches or 1, columns or measures)."""
    candidates = [cell.candidates for cell in job.cells]
    sigma, beta = job.cells[0].noise_scale, job.cells[0].regularization
    if job.rule == "base":
        return [groups.base[None]]
    if job.rule == "bon":
        weights = [best_of_n_weights(groups, n, distinct=question.distinct) for n in candidates]
        return [(row @ groups.means)[None] for row in weights]
    if job.rule == "itp" and beta is not None:
        return [itp(groups, blocks, n, beta) for n in candidates]
    if job.smoothing is not None:
        mechanisms = [mechanism for mechanism in job.mechanisms if isinstance(mechanism, PrivITP)]
        return privitp(groups, blocks, mechanisms, job.smoothing, job.charges)
    if sigma is None:
        raise InvalidQuantityError("noise_scale", sigma, f"given for {job.rule}")
    gaussian = job.rule == "privbon_gaussian"
    if not question.distinct:
        return list(bootstrap_best(groups, candidates, sigma, gaussian=gaussian)[:, None])
    if groups.size <= MOST_ANSWERS_EXACT:
        return list(distinct_best(groups, candidates, sigma, gaussian=gaussian)[:, None])
    return [sampled_best(groups, blocks.members(n), sigma, rng, gaussian=gaussian) for n in candidates]


@dataclass(eq=False)
class _State:
    """What a run has so far."""

    mark: str
    done: int
    prompts: Floats
    base: Floats
    batches: Floats

    @classmethod
    def start(cls, pool: Pool, question: Question, checkpoint: Path | None) -> _State:
        cells = len(question.cells)
        mark = _mark(pool, question)
        if checkpoint is not None and checkpoint.exists():
            return cls._load(checkpoint, mark)
        shape = (len(pool), cells, MEASURES)
        return cls(mark, 0, np.zeros(shape), np.zeros((len(pool), COLUMNS)), np.zeros((BATCHES, cells, MEASURES)))

    @classmethod
    def _load(cls, path: Path, mark: str) -> _State:
        try:
            with np.load(path, allow_pickle=False) as saved:
                if str(saved["mark"]) != mark:
                    raise CheckpointError(path, "belongs to another pool or other options; name another file")
                return cls(mark, int(saved["done"]), saved["prompts"], saved["base"], saved["batches"])
        except (OSError, KeyError, EOFError, zipfile.BadZipFile):
            raise CheckpointError(path, "cannot be read") from None
        except ValueError as error:
            raise error if isinstance(error, CheckpointError) else CheckpointError(path, "cannot be read") from None

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        spare = path.with_name(path.name + ".part")
        try:
            with spare.open("wb") as file:
                np.savez(
                    file, mark=self.mark, done=self.done, prompts=self.prompts, base=self.base, batches=self.batches
                )
            os.replace(spare, path)
        except OSError as error:
            raise CheckpointError(path, f"cannot be written: {error.strerror}") from None


def _mark(pool: Pool, question: Question) -> str:
    """A digest of the pool's numbers and of the question."""
    digest = hashlib.sha256(repr(question).encode())
    for rewards, truths in zip(pool.rewards, pool.truths, strict=True):
        digest.update(rewards.tobytes())
        digest.update(truths.tobytes())
    return digest.hexdigest()
