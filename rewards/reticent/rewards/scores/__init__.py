"""Scores for the gate, one a file, and the registry that builds one from a configuration's facts.

What needs torch (`causal_passes`, `redeep`) is imported by name where it is used.
"""

from __future__ import annotations

from .base import (
    TOP_LOG_PROBABILITIES,
    Need,
    Score,
    ScoreInputs,
    require_independent_of_rewards,
    score_facts,
)
from .blend import Blend, fit_blend
from .conu import ConU, SConU, fit_sconu
from .equivalence import Equivalence, SameEmbedding, SameEntailment, SameWords, clusters
from .evidence_lift import EvidenceLift
from .external import External
from .franq import EntailedByEvidence, Franq, Sureness, fit_franq
from .grounding import Grounding, fit_grounding
from .noisy_reward import NoisyReward
from .quality import auc, auc_error
from .registry import SCORE_NAMES, ScoreModels, build_score
from .self_consistency import SelfConsistency
from .selfcheck import SelfCheckNgram, SelfCheckNli
from .semantic_entropy import SemanticEntropy
from .token_entropy import TokenEntropy
from .token_probability import TokenProbability

__all__ = [
    "SCORE_NAMES",
    "TOP_LOG_PROBABILITIES",
    "Blend",
    "ConU",
    "EntailedByEvidence",
    "Equivalence",
    "EvidenceLift",
    "External",
    "Franq",
    "Grounding",
    "Need",
    "NoisyReward",
    "SConU",
    "SameEmbedding",
    "SameEntailment",
    "SameWords",
    "Score",
    "ScoreInputs",
    "ScoreModels",
    "SelfCheckNgram",
    "SelfCheckNli",
    "SelfConsistency",
    "SemanticEntropy",
    "Sureness",
    "TokenEntropy",
    "TokenProbability",
    "auc",
    "auc_error",
    "build_score",
    "clusters",
    "fit_blend",
    "fit_franq",
    "fit_grounding",
    "fit_sconu",
    "require_independent_of_rewards",
    "score_facts",
]
