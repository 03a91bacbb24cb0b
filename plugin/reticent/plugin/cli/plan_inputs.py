"""What `reticent plan` is asked: options, then the configuration, then defaults; mechanisms made of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import typer

from reticent.accounting.charges.privbon import PrivBoN
from reticent.accounting.charges.privbon_gaussian import PrivBoNGaussian
from reticent.accounting.charges.privitp import PrivITP, default_truncation
from reticent.accounting.errors import require_integer
from reticent.accounting.filter import Guarantee, PrivacyFilter
from reticent.accounting.lattice import RewardLattice
from reticent.accounting.planning.compare import Grid, default_grid
from reticent.accounting.planning.queries import Budget
from reticent.plugin.cli.common import fail, load_or_exit

__all__ = ["Given", "Question", "bad_input", "bounds_of", "budget_of", "from_configuration", "grid_of", "settle"]

_CANDIDATES, _MOST_CANDIDATES = 8, 4096
_DELTA = 1e-6


def bad_input(message: str) -> typer.Exit:
    """Say what is wrong with the command line; raise the result (exit code 2)."""
    return fail(message, 2)


@dataclass(frozen=True)
class Given:
    """What was given, by API name; None for what was not."""

    rule: Literal["privbon", "privitp"] | None = None
    reward_max: float | None = None
    sensitivity: float | None = None
    noise_scale: float | None = None
    threshold_noise: float | None = None
    reward_noise: float | None = None
    regularization: float | None = None
    truncation: float | None = None
    candidates: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    guarantee: Guarantee | None = None
    order: float | None = None

    def over(self, other: Given) -> Given:
        """This, and what only `other` has."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        return Given(**{k: v if v is not None else getattr(other, k) for k, v in mine.items()})


def from_configuration(path: Path, given: Given) -> Given:
    """What a server with this configuration uses, under what the command line gives.

    R and Δ come from the reward head's file, by `rewards.sensitivity`; β, σ and L from `selection`; the budget and α
    from `dataset`. Errors end the command with a message.
    """
    from reticent.plugin.core import sensitivity_of
    from reticent.plugin.rewards_source import load_reward_model
    from reticent.plugin.settings import ConfigurationError

    settings = load_or_exit(path)
    rule = given.rule or ("privitp" if settings.selection.rule in ("privitp", "itp") else "privbon")
    noises = settings.selection.privitp
    split = rule == "privitp" and given.noise_scale is None
    server = Given(
        rule=rule,
        # Given noise scales replace the configured ones together, so that no two of them contradict each other.
        noise_scale=settings.selection.noise_scale if rule == "privbon" else None,
        threshold_noise=noises.threshold_noise if split else None,
        reward_noise=noises.reward_noise if split else None,
        regularization=noises.regularization,
        truncation=noises.truncation,
        candidates=settings.selection.candidates,
        epsilon=settings.dataset.epsilon,
        delta=settings.dataset.delta,
        guarantee=settings.dataset.guarantee,
        order=settings.dataset.order,
    )
    if given.reward_max is None or given.sensitivity is None:
        try:
            head = load_reward_model(settings.rewards)
        except ConfigurationError as error:
            raise bad_input(f"{error}; give --reward-max and --sensitivity") from None
        server = Given(reward_max=head.reward_max, sensitivity=sensitivity_of(settings.rewards, head)).over(server)
    return given.over(server)


@dataclass(frozen=True)
class Question:
    """Everything that every plan needs, checked, and what was given of the rules' own parameters.

    `sensitivity` is that of rewards on the lattice, which charges use; it exceeds Δ by less than a granule.
    """

    rule: Literal["privbon", "privitp"]
    reward_max: float
    sensitivity: float
    candidates: int
    budget: Budget
    order: float | None
    given: Given

    def privbon(self, *, gaussian: bool) -> PrivBoN | PrivBoNGaussian:
        """The mechanism with --noise-scale."""
        given = self.given
        if given.noise_scale is None:
            raise bad_input("privbon needs --noise-scale")
        for option in ("threshold_noise", "reward_noise"):
            if getattr(given, option) is not None:
                raise bad_input(f"--{option.replace('_', '-')} is of privitp; privbon has --noise-scale")
        if gaussian:
            granule = float(RewardLattice(self.reward_max, self.sensitivity).granule)
            return PrivBoNGaussian(self.reward_max, self.sensitivity, self.candidates, given.noise_scale, granule)
        return PrivBoN(self.reward_max, self.sensitivity, self.candidates, given.noise_scale)

    def privitp(self) -> PrivITP:
        """The mechanism with --noise-scale split in halves, or with --threshold-noise and --reward-noise."""
        given = self.given
        sigma_X, sigma_Z = given.threshold_noise, given.reward_noise
        if given.noise_scale is not None:
            if sigma_X is not None or sigma_Z is not None:
                raise bad_input("give --noise-scale, or --threshold-noise and --reward-noise, not both")
            sigma_X = sigma_Z = 0.5 * given.noise_scale
        if sigma_X is None or sigma_Z is None:
            raise bad_input("privitp needs --noise-scale, or --threshold-noise and --reward-noise")
        if given.regularization is None:
            raise bad_input("privitp needs --regularization")
        L = given.truncation if given.truncation is not None else default_truncation(self.candidates)
        return PrivITP(
            self.reward_max,
            self.sensitivity,
            self.candidates,
            given.regularization,
            sigma_X,
            sigma_Z,
            L,
            granule=0.0,
        )


def settle(given: Given) -> Question:
    """Fill in defaults and check what every plan needs. Errors: `InvalidQuantityError`, or an end with a message."""
    for name in ("sensitivity", "epsilon"):
        if getattr(given, name) is None:
            raise bad_input(f"--{name} is missing; give it, or --config")
    reward_max = given.reward_max if given.reward_max is not None else 1.0
    lattice = RewardLattice(reward_max, given.sensitivity or 0.0)
    candidates = require_integer(
        "candidates", _CANDIDATES if given.candidates is None else given.candidates, 1, _MOST_CANDIDATES
    )
    epsilon, delta = given.epsilon or 0.0, _DELTA if given.delta is None else given.delta
    budget = budget_of(epsilon, delta, given.order, given.guarantee or "dp")
    return Question(
        rule=given.rule or "privbon",
        reward_max=lattice.reward_max,
        sensitivity=lattice.sensitivity,
        candidates=candidates,
        budget=budget,
        order=given.order,
        given=given,
    )


def budget_of(epsilon: float, delta: float, order: float | None, guarantee: Guarantee = "dp") -> Budget:
    """The budget, checked. Errors: `InvalidQuantityError`, `BudgetTooSmallError`."""
    # Without an α, one for which the overhead leaves something, to check ε and δ; at a given α that must be so too.
    generous = 1.0 + 1e4 / epsilon if 0.0 < epsilon < 1e6 else 2.0
    PrivacyFilter(epsilon, delta, generous if order is None else order, guarantee)
    return Budget(epsilon, delta, guarantee)


def grid_of(question: Question, given: Given) -> Grid:
    """The grid to compare over: the default one, with every axis whose parameter is `given` held at that value."""
    grid = default_grid(question.reward_max, question.candidates)

    def axis(value: float | None, default: tuple[float, ...]) -> tuple[float, ...]:
        return default if value is None else (value,)

    return Grid(
        axis(given.noise_scale, grid.privbon_scales),
        axis(given.threshold_noise, grid.threshold_noises),
        axis(given.reward_noise, grid.reward_noises),
        axis(given.regularization, grid.regularizations),
        axis(given.truncation, grid.truncations),
    )


def bounds_of(text: str | None) -> tuple[float, float] | None:
    """`LOW,HIGH` as two numbers."""
    if text is None:
        return None
    parts = text.split(",")
    try:
        low, high = (float(part) for part in parts)
    except ValueError:
        raise bad_input(f"--reward-bounds must be LOW,HIGH, two numbers, not {text!r}") from None
    return low, high
