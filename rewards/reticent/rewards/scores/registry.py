"""From a name and constants to a score: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reticent.rewards.errors import EncoderUnavailable, UnknownName

from .base import Score
from .blend import Blend
from .conu import ConU, SConU
from .entailment import EntailmentModel
from .equivalence import Equivalence, SameEmbedding, SameEntailment, SameWords
from .evidence_lift import EvidenceLift
from .external import External
from .franq import EntailedByEvidence, Franq, Sureness
from .grounding import Grounding
from .noisy_reward import NoisyReward
from .self_consistency import SelfConsistency
from .selfcheck import SelfCheckNgram, SelfCheckNli
from .semantic_entropy import SemanticEntropy
from .token_entropy import TokenEntropy
from .token_probability import TokenProbability

__all__ = ["SCORE_NAMES", "ScoreModels", "build_score"]

SCORE_NAMES: tuple[str, ...] = (
    "self_consistency",
    "token_probability",
    "evidence_lift",
    "grounding",
    "blend",
    "token_entropy",
    "semantic_entropy",
    "selfcheck",
    "franq",
    "redeep",
    "conu",
    "sconu",
    "external",
    "noisy_reward",
)


@dataclass(frozen=True)
class ScoreModels:
    """Folders of the models that scores may need. Where they stand is not part of a score; what is in them is.

    Attributes:
        entailment: an entailment model, for `semantic_entropy`, `conu`, `sconu`, `selfcheck` and `franq` that use one.
        causal: the base model as transformers saves it, for `redeep`.
        embedder: MiniLM's folder; None takes the installed package.
    """

    entailment: Path | None = None
    causal: Path | None = None
    embedder: Path | None = None


def build_score(name: str, constants: Mapping[str, object] | None = None, models: ScoreModels | None = None) -> Score:
    """The score called `name`.

    Args:
        name: one of `SCORE_NAMES`.
        constants: as `Score.constants` gives them, whole; None takes the defaults (`blend`, `redeep`, `sconu`,
            `external` and `noisy_reward` have none).
        models: folders of models; a score whose constants name another model than stands there is refused.

    Raises:
        UnknownName: no such score.
        EncoderUnavailable: a model that it needs is not there.
        ValueError: constants that the score does not have, or of other values than this version's fixed ones.
    """
    score = _build(name, constants, models or ScoreModels())
    if constants is not None and dict(constants) != dict(score.constants):
        raise ValueError(f"score {name!r} has the constants {dict(score.constants)}, not {dict(constants)}")
    return score


def _build(name: str, constants: Mapping[str, object] | None, models: ScoreModels) -> Score:
    known = constants or {}
    match name:
        case "self_consistency":
            return SelfConsistency()
        case "token_probability":
            return TokenProbability()
        case "token_entropy":
            return TokenEntropy()
        case "evidence_lift":
            return EvidenceLift() if constants is None else EvidenceLift(_number(constants, "clip"))
        case "grounding":
            return Grounding() if constants is None else _grounding(constants)
        case "blend":
            return _blend(known, models)
        case "semantic_entropy":
            return SemanticEntropy(_equivalence(known, models))
        case "conu":
            return ConU(_equivalence(known, models))
        case "sconu":
            return SConU(_equivalence(known, models), _numbers(known, "calibration"))
        case "selfcheck":
            return _selfcheck(known, models)
        case "franq":
            return _franq(known, models)
        case "redeep":
            return _redeep(known, models)
        case "external":
            return External(_text(known, "verifier"), _text(known, "revision"))
        case "noisy_reward":
            return NoisyReward(_number(known, "noise_scale"))
    raise UnknownName("score", name, SCORE_NAMES)


def _equivalence(constants: Mapping[str, object], models: ScoreModels) -> Equivalence:
    """The rule that `same` describes; embeddings where nothing does."""
    same = _mapping(constants, "same") if "same" in constants else {"kind": "embedding"}
    threshold = {"threshold": _number(same, "threshold")} if "threshold" in same else {}
    match same.get("kind"):
        case "words":
            return SameWords(**threshold)
        case "embedding":
            from reticent.rewards.encoders.minilm import MiniLmEmbedder

            return SameEmbedding(MiniLmEmbedder(models.embedder), **threshold)
        case "entailment":
            return SameEntailment(_entailment(models), **threshold)
    raise ValueError(f"answers are the same by words, embedding or entailment, not by {same.get('kind')!r}")


def _entailment(models: ScoreModels) -> EntailmentModel:
    if models.entailment is None:
        raise EncoderUnavailable("entailment", "no folder is named for it")
    return EntailmentModel(models.entailment)


def _selfcheck(constants: Mapping[str, object], models: ScoreModels) -> Score:
    if constants.get("variant") == "nli":
        return SelfCheckNli(_entailment(models))
    if not constants:
        return SelfCheckNgram()
    over: Literal["mean", "min"] = "min" if constants.get("over") == "min" else "mean"
    return SelfCheckNgram(int(_number(constants, "order")), over)


def _franq(constants: Mapping[str, object], models: ScoreModels) -> Franq:
    if not constants:
        return Franq(Grounding())
    facts = _mapping(constants, "faithfulness")
    if facts.get("name") == "entailed_by_evidence":
        faithfulness: Score = EntailedByEvidence(_entailment(models))
    else:
        faithfulness = _inner(facts, models)
    report: Literal["factuality", "faithfulness"] = (
        "faithfulness" if constants.get("report") == "faithfulness" else "factuality"
    )
    sureness = [
        Sureness(*_numbers(constants, part)) if constants.get(part) is not None else Sureness()
        for part in ("faithful", "unfaithful")
    ]
    return Franq(faithfulness, sureness[0], sureness[1], report)


def _redeep(constants: Mapping[str, object], models: ScoreModels) -> Score:
    from .causal_passes import CausalPasses
    from .redeep import ReDeEP, ReDeEPConstants
    from .redeep_statistics import ReDeEPForward

    if models.causal is None:
        raise EncoderUnavailable("redeep", "it needs the folder of the base model")
    heads = constants.get("heads")
    if not isinstance(heads, list):
        raise ValueError("redeep needs the constants of a fit (reticent scores fit)")
    pairs = tuple((int(layer), int(head)) for layer, head in heads)
    two = {name: _numbers(constants, name) for name in ("centres", "scales", "coefficients")}
    if any(len(values) != 2 for values in two.values()):
        raise ValueError("redeep has two centres, scales and coefficients")
    fitted = ReDeEPConstants(
        pairs,
        tuple(int(layer) for layer in _numbers(constants, "layers")),
        (two["centres"][0], two["centres"][1]),
        (two["scales"][0], two["scales"][1]),
        (two["coefficients"][0], two["coefficients"][1]),
        _number(constants, "intercept"),
    )
    forward = ReDeEPForward(CausalPasses(models.causal, attentions=True), _number(constants, "share"))
    return ReDeEP(forward, fitted)


def _blend(constants: Mapping[str, object], models: ScoreModels) -> Blend:
    parts = constants.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ValueError("a blend needs a list of parts")
    built = []
    for part in parts:
        facts = part.get("score")
        if not isinstance(facts, dict):
            raise ValueError("a part of a blend needs a score with its name")
        built.append((_inner(facts, models), _number(part, "coefficient")))
    return Blend(tuple(built), _number(constants, "intercept"))


def _inner(facts: Mapping[str, object], models: ScoreModels) -> Score:
    """A score inside another one."""
    inner = facts.get("constants")
    if inner is not None and not isinstance(inner, dict):
        raise ValueError("constants must be an object")
    return build_score(_text(facts, "name"), inner, models)


def _grounding(constants: Mapping[str, object]) -> Grounding:
    return Grounding(_number(constants, "intercept"), _numbers(constants, "coefficients"))


def _mapping(values: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = values.get(name)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object")
    return value


def _text(values: Mapping[str, object], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text: {value!r}")
    return value


def _numbers(values: Mapping[str, object], name: str) -> tuple[float, ...]:
    value = values.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    return tuple(_number({name: each}, name) for each in value)


def _number(values: Mapping[str, object], name: str) -> float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number: {value!r}")
    return float(value)
