"""Scores for the gate, one a file, and the registry that builds one from a configuration's facts."""

from __future__ import annotations

from collections.abc import Mapping

from reticent.rewards.errors import UnknownName

from .base import Need, Score, ScoreInputs, require_independent_of_rewards, score_facts
from .blend import Blend, fit_blend
from .evidence_lift import EvidenceLift
from .grounding import Grounding, fit_grounding
from .self_consistency import SelfConsistency
from .token_probability import TokenProbability

__all__ = [
    "SCORE_NAMES",
    "Blend",
    "EvidenceLift",
    "Grounding",
    "Need",
    "Score",
    "ScoreInputs",
    "SelfConsistency",
    "TokenProbability",
    "build_score",
    "fit_blend",
    "fit_grounding",
    "require_independent_of_rewards",
    "score_facts",
]

SCORE_NAMES: tuple[str, ...] = ("self_consistency", "token_probability", "evidence_lift", "grounding", "blend")


def build_score(name: str, constants: Mapping[str, object] | None = None) -> Score:
    """The score called `name`.

    Args:
        name: one of `SCORE_NAMES`.
        constants: as `Score.constants` gives them, whole; None takes the defaults (a blend has none).

    Raises:
        UnknownName: no such score.
        ValueError: constants that the score does not have, or of other values than this version's fixed ones.
    """
    score = _build(name, constants)
    if constants is not None and dict(constants) != dict(score.constants):
        raise ValueError(f"score {name!r} has the constants {dict(score.constants)}, not {dict(constants)}")
    return score


def _build(name: str, constants: Mapping[str, object] | None) -> Score:
    match name:
        case "self_consistency":
            return SelfConsistency()
        case "token_probability":
            return TokenProbability()
        case "evidence_lift":
            return EvidenceLift() if constants is None else EvidenceLift(_number(constants, "clip"))
        case "grounding":
            return Grounding() if constants is None else _grounding(constants)
        case "blend":
            return _blend(constants or {})
    raise UnknownName("score", name, SCORE_NAMES)


def _blend(constants: Mapping[str, object]) -> Blend:
    parts = constants.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ValueError("a blend needs a list of parts")
    built = []
    for part in parts:
        facts = part.get("score")
        if not isinstance(facts, dict) or not isinstance(facts.get("name"), str):
            raise ValueError("a part of a blend needs a score with its name")
        inner = facts.get("constants")
        if inner is not None and not isinstance(inner, dict):
            raise ValueError("constants must be an object")
        built.append((build_score(facts["name"], inner), _number(part, "coefficient")))
    return Blend(tuple(built), _number(constants, "intercept"))


def _grounding(constants: Mapping[str, object]) -> Grounding:
    coefficients = constants.get("coefficients")
    if not isinstance(coefficients, list):
        raise ValueError("coefficients must be a list")
    numbers = tuple(_number({"coefficient": c}, "coefficient") for c in coefficients)
    return Grounding(_number(constants, "intercept"), numbers)


def _number(values: Mapping[str, object], name: str) -> float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number: {value!r}")
    return float(value)
