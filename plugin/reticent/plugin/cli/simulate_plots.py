"""`reticent simulate --figures`: matplotlib comes with the extra `studies` and is imported late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reticent.accounting.studies.pools.question import RULES, Question
from reticent.accounting.studies.pools.results import Row
from reticent.plugin.cli.common import fail

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "require_plotting"]

_STYLES = {
    "bon": ("BoN", "black", "X", "--"),
    "privbon": ("PrivBoN", "#1f5fa8", "s", "-"),
    "privbon_gaussian": ("PrivBoN, Gaussian", "#5aa0d8", "v", "-"),
    "itp": ("ITP", "#8a8a8a", "^", "--"),
    "privitp": ("PrivITP", "#d9822b", "o", "-"),
}
_LIFT = "lift of accuracy over base, %"


def require_plotting(folder: Path) -> None:
    """End with a message where nothing can be drawn there, before any work is done."""
    if not folder.is_dir():
        raise fail(f"--figures: there is no folder {folder}", 2)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise fail("--figures needs matplotlib: pip install 'reticent[studies]'", 2) from None


def draw(made: Sequence[Row], question: Question, folder: Path) -> None:
    """`comparison` (the four panels of the paper's Figure 1), `noise`, `regularization` and `frontier`."""
    from matplotlib.figure import Figure

    figures: dict[str, tuple[tuple[float, float], Callable[[Figure], None]]] = {
        "comparison": ((10.0, 8.0), lambda figure: _comparison(figure, made, question)),
        "noise": ((10.0, 4.2), lambda figure: _ablation(figure, made, "noise_scale", "σ", ("privbon", "privitp"))),
        "regularization": (
            (10.0, 4.2),
            lambda figure: _ablation(figure, made, "regularization", "β", ("itp", "privitp")),
        ),
        "frontier": ((8.0, 5.0), lambda figure: _frontier(figure, made, question)),
    }
    for name, (size, paint) in figures.items():
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        for suffix in (".png", ".svg"):
            try:
                figure.savefig(folder / (name + suffix), dpi=150)
            except OSError as error:
                raise fail(f"--figures: {folder} cannot be written into: {error.strerror}", 2) from None


def _best(made: Sequence[Row], rule: str, name: str) -> float | None:
    """The parameter with which `rule` is most accurate at its largest n; None where the rule was not asked for."""
    own = [row for row in made if row.rule == rule]
    if not own:
        return None
    most = max(row.candidates for row in own)
    best = max((row for row in own if row.candidates == most), key=lambda row: row.accuracy)
    value: float | None = getattr(best, name)
    return value


def _curve(axes: Axes, own: Sequence[Row], value: str, error: str, label: str, style: tuple[str, str, str]) -> None:
    own = sorted((row for row in own if getattr(row, value) is not None), key=lambda row: row.candidates)
    if not own:
        return
    colour, marker, line = style
    n = [row.candidates for row in own]
    middle = np.array([getattr(row, value) for row in own])
    spread = np.array([getattr(row, error) for row in own])
    axes.plot(n, middle, color=colour, marker=marker, linestyle=line, markersize=5, label=label)
    axes.fill_between(n, middle - spread, middle + spread, color=colour, alpha=0.12, linewidth=0)


def _over_n(axes: Axes, made: Sequence[Row], ylabel: str, title: str) -> None:
    n = sorted({row.candidates for row in made if row.rule != "base"})
    axes.set_xscale("log", base=2)
    axes.set_xticks(n, [str(value) for value in n])
    axes.minorticks_off()
    axes.set_xlabel("candidates n")
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _comparison(figure: Figure, made: Sequence[Row], question: Question) -> None:
    (first, second), (third, fourth) = figure.subplots(2, 2)
    sigma = _best(made, "privbon", "noise_scale") or _best(made, "privitp", "noise_scale")
    beta = _best(made, "itp", "regularization") or _best(made, "privitp", "regularization")
    for rule, (name, *style) in _STYLES.items():
        own = [
            row
            for row in made
            if row.rule == rule and row.noise_scale in (None, sigma) and row.regularization in (None, beta)
        ]
        parameters = [f"σ = {sigma:g}"] if RULES[rule].noisy and sigma else []
        parameters += [f"β = {beta:g}"] if RULES[rule].regularized and beta else []
        label = f"{name} ({', '.join(parameters)})" if parameters else name
        shape = (style[0], style[1], style[2])
        _curve(first, own, "lift", "lift_error", label, shape)
        _curve(second, own, "proxy_reward", "proxy_error", label, shape)
    first.axhline(0.0, color="#8a8a8a", linewidth=1, linestyle=":")
    _over_n(first, made, _LIFT, "true reward (bands: standard error over prompts)")
    _over_n(second, made, "expected proxy reward", "proxy reward")
    _by_noise(third, made, beta)
    _queries(fourth, made, beta, question)


def _by_noise(axes: Axes, made: Sequence[Row], beta: float | None) -> None:
    itp = [row for row in made if row.rule == "itp" and row.regularization == beta]
    _curve(axes, itp, "lift", "lift_error", "ITP, not private", ("black", "^", "--"))
    own = [row for row in made if row.rule == "privitp" and row.regularization == beta]
    scales = sorted({row.noise_scale for row in own if row.noise_scale is not None})
    for scale, colour in zip(scales, _shades(len(scales)), strict=True):
        rows = [row for row in own if row.noise_scale == scale]
        _curve(axes, rows, "lift", "lift_error", f"PrivITP, σ = {scale:g}", (colour, "o", "-"))
    _over_n(axes, made, _LIFT, "PrivITP by noise" if beta is None else f"PrivITP by noise, β = {beta:g}")


def _queries(axes: Axes, made: Sequence[Row], beta: float | None, question: Question) -> None:
    """Queries of the budget by noise, at the n nearest to the paper's 16: realised charges against the worst case."""
    n = min(question.candidates, key=lambda value: abs(value - 16))
    room = question.budget.spendable(question.alpha)
    for rule, colour in (("privitp", "#d9822b"), ("privbon", "#1f5fa8")):
        own = [row for row in made if row.rule == rule and row.candidates == n and row.queries is not None]
        own = sorted((row for row in own if row.regularization in (None, beta)), key=lambda row: row.noise_scale or 0.0)
        if not own:
            continue
        scales = [row.noise_scale or 0.0 for row in own]
        name = _STYLES[rule][0]
        axes.plot(
            scales,
            [row.queries or 0.0 for row in own],
            "o-",
            color=colour,
            label=f"{name}, realised charges" if rule == "privitp" else name,
        )
        if rule == "privitp":
            worst = [room / row.worst_charge if row.worst_charge else 0.0 for row in own]
            axes.plot(scales, worst, "s--", color=colour, alpha=0.6, label=f"{name}, worst case every time")
    if axes.lines:
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(bottom=0.0)
        scales = sorted(question.noise_scales)
        axes.set_xticks(scales, [f"{scale:g}" for scale in scales])
        axes.minorticks_off()
    axes.set_xlabel("noise scale σ")
    axes.set_ylabel(f"queries, ε = {question.budget.epsilon:g}, δ = {question.budget.delta:g}")
    axes.set_title(f"queries of the budget, n = {n}, Δ = {question.sensitivity:g}", fontsize=10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _ablation(figure: Figure, made: Sequence[Row], name: str, symbol: str, rules: tuple[str, str]) -> None:
    """Lift over n, one curve a value of the parameter; the other parameter at its best."""
    for axes, rule in zip(figure.subplots(1, 2, sharey=True), rules, strict=True):
        own = [row for row in made if row.rule == rule]
        other = "regularization" if name == "noise_scale" else "noise_scale"
        held = _best(own, rule, other)
        own = [row for row in own if getattr(row, other) == held]
        values = sorted({getattr(row, name) for row in own})
        for value, colour in zip(values, _shades(len(values)), strict=True):
            rows = [row for row in own if getattr(row, name) == value]
            _curve(axes, rows, "lift", "lift_error", f"{symbol} = {value:g}", (colour, "o", "-"))
        kept = "" if held is None else f", {'β' if other == 'regularization' else 'σ'} = {held:g}"
        _over_n(axes, made, _LIFT, _STYLES[rule][0] + kept)


def _shades(count: int) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](share)) for share in np.linspace(0.0, 0.85, max(count, 1))[:count]]


def _frontier(figure: Figure, made: Sequence[Row], question: Question) -> None:
    """Accuracy against the mean charge: every private combination, and those that no other one beats."""
    axes = figure.subplots()
    private = [row for row in made if RULES[row.rule].noisy and row.charge]
    for rule, (name, colour, marker, _) in _STYLES.items():
        own = [row for row in private if row.rule == rule]
        if own:
            axes.scatter(
                [row.charge or 0.0 for row in own],
                [row.accuracy for row in own],
                s=[14.0 + 8.0 * np.log2(row.candidates) for row in own],
                color=colour,
                marker=marker,
                alpha=0.6,
                label=f"{name} (larger: more candidates)",
            )
    best: list[Row] = []
    for row in sorted(private, key=lambda row: (row.charge or 0.0, -row.accuracy)):
        if not best or row.accuracy > best[-1].accuracy:
            best.append(row)
    if best:
        axes.step([row.charge or 0.0 for row in best], [row.accuracy for row in best], where="post", color="black")
        axes.set_xscale("log")
    for row in made:
        if row.rule == "base":
            axes.axhline(row.accuracy, color="#8a8a8a", linestyle=":", label="base sample")
    bon = [row.accuracy for row in made if row.rule == "bon"]
    if bon:
        axes.axhline(max(bon), color="#8a8a8a", linestyle="--", label="best BoN, not private")
    axes.set_xlabel(f"mean charge of a query, nats at α = {question.alpha:.3g}, Δ = {question.sensitivity:g}")
    axes.set_ylabel("accuracy")
    axes.set_title("privacy and utility; the line: no other private combination beats it", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
