"""A number in [0, 1] that a verifier service sends for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reticent.rewards.errors import ScoreInputMissing

from .base import Need, ScoreInputs, within_unit

__all__ = ["External"]


@dataclass(frozen=True)
class External:
    """The verifier's number, clipped to [0, 1]; NaN is 0.

    Args:
        verifier: the verifier's name, not empty.
        revision: what changes whenever its numbers may change: a commit, or a hash of its weights.

    What the caller must guarantee
    ------------------------------
    The verifier's answer depends on question, evidence and answer alone: not on D (it must not have been trained on the
    preferences), not on earlier requests. It sees the chosen answer before the charge is settled (its worst case is
    held by then), so it stands on the server's side of the trust boundary.

    Raises:
        ValueError: an empty name or revision.
    """

    verifier: str
    revision: str

    def __post_init__(self) -> None:
        if not (self.verifier.strip() and self.revision.strip()):
            raise ValueError("an external score needs the verifier's name and revision")

    @property
    def name(self) -> str:
        return "external"

    @property
    def depends_on_rewards(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"verifier"})

    @property
    def constants(self) -> Mapping[str, object]:
        return {"verifier": self.verifier, "revision": self.revision}

    def compute(self, inputs: ScoreInputs) -> float:
        if inputs.verifier is None:
            raise ScoreInputMissing(self.name, "the verifier's number")
        return within_unit(inputs.verifier)
