"""Rewards and scores of `reticent`: what judges candidates, and how far one person's data can move its judgement.

* `bounds`, `sensitivity`, `head`, `training`, `pairs`, `tradeoff`: bounded rewards with a certified sensitivity;
* `encoders`: frozen features; `backends`: what computes rewards;
* `worker`, `process`, `client`: the process that alone sees rewards, and how the server asks it;
* `scores`: what the gate reads, none of which may depend on the preference data.

Nothing heavy is imported here: torch and transformers load when an encoder that needs them is built.
"""

from .bounds import ClipBound, RewardBound, SigmoidBound, bound_from_dict
from .encoders.base import Subject
from .errors import RewardsError, WorkerError, WorkerFailed, WorkerRefused, WorkerUnavailable
from .head import LinearHead, SensitivityCertificate
from .ports import RewardBackend
from .sensitivity import HeadFacts, sensitivity_rounded_up

__all__ = [
    "ClipBound",
    "HeadFacts",
    "LinearHead",
    "RewardBackend",
    "RewardBound",
    "RewardsError",
    "SensitivityCertificate",
    "SigmoidBound",
    "Subject",
    "WorkerError",
    "WorkerFailed",
    "WorkerRefused",
    "WorkerUnavailable",
    "bound_from_dict",
    "sensitivity_rounded_up",
]
