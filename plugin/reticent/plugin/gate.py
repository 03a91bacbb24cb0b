"""The gate: an answer leaves only under a valid certificate for exactly this configuration, and if its score reaches
the certified threshold. In any doubt it abstains, and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from reticent.accounting.certificates import Certificate
from reticent.accounting.fingerprint import Fingerprint, differences
from reticent.rewards.scores import NoisyReward, Score, require_independent_of_rewards

__all__ = ["Gate", "GateVerdict"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GateVerdict:
    """What the gate says of one answer.

    Attributes:
        accepted: the certificate covers it and its score reaches the threshold.
        reason: why not: `no_certificate`, `certificate_expired`, `fingerprint_mismatch`, `score_below_threshold`,
            `not_selected` (a base answer), `no_valid_candidate` (none has the form that the request asks for); None
            when accepted.
        detail: for people: which fields differ, when it expired.
        certificate: the certificate that was consulted.
        fingerprint: digest of the running configuration, "" where none was asked about.
    """

    accepted: bool
    reason: str | None
    detail: str | None
    certificate: Certificate | None
    fingerprint: str = ""


class Gate:
    """Judges answers under the installed certificates.

    Of several that fit the running configuration and have not expired, the one whose calibration is the youngest
    holds; of equally old ones the one with the smaller target risk. The choice looks at no count and no threshold: a
    choice by acceptance would pick among certificates after the fact, and be wrong as often as any of them is.

    Args:
        score: the score that answers are judged by. It must not depend on D, but for a noisy reward that is charged.
        certificates: valid, recomputed certificates, in any order.
        clock: the time, for expiry.
        charged_noise: σ_g that every private rule charges for on top of its selection; None where none does.

    Raises:
        ScoreDependsOnRewards: a score that reads the reward, and is not the noisy reward with just that σ_g
            (privacy.md, 5).
    """

    def __init__(
        self,
        score: Score,
        certificates: Iterable[Certificate],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        charged_noise: float | None = None,
    ) -> None:
        charged = isinstance(score, NoisyReward) and score.noise_scale == charged_noise
        self.score = score if charged else require_independent_of_rewards(score)
        self._clock = clock
        self.install(certificates)

    def install(self, certificates: Iterable[Certificate]) -> None:
        """Replace the certificates, all at once: an answer is judged under those from before or those from after."""
        self.certificates = tuple(sorted(certificates, key=_preference))

    def now(self) -> datetime:
        """The time that expiry is judged by."""
        return self._clock()

    def find(self, facts: Mapping[str, Any]) -> GateVerdict:
        """The certificate for a configuration, or why there is none; `accepted` says that one holds now."""
        running = Fingerprint(facts)
        return replace(self._find(running), fingerprint=running.digest)

    def _find(self, running: Fingerprint) -> GateVerdict:
        installed = self.certificates  # Read once: `install` may put others in its place.
        if not installed:
            return GateVerdict(False, "no_certificate", "No certificate is installed.", None)
        fitting = [c for c in installed if c.fingerprint.digest == running.digest]
        now = self._clock()
        for certificate in fitting:
            if not certificate.is_expired(now):
                return GateVerdict(True, None, None, certificate)
        if fitting:
            latest = max(fitting, key=lambda c: c.expires_at)
            return GateVerdict(False, "certificate_expired", f"It expired on {latest.expires_at:%Y-%m-%d}.", latest)
        nearest = min(installed, key=lambda c: len(differences(c.fingerprint, running)))
        fields = ", ".join(differences(nearest.fingerprint, running))
        return GateVerdict(False, "fingerprint_mismatch", f"These differ from what was certified: {fields}.", nearest)

    def judge(self, facts: Mapping[str, Any], score: float | None) -> GateVerdict:
        """Whether an answer with this score may leave. A score that could not be computed (None) reaches nothing."""
        found = self.find(facts)
        if not found.accepted or found.certificate is None:
            return found
        if score is None or not score >= found.certificate.threshold:
            return replace(found, accepted=False, reason="score_below_threshold", detail="The answer did not reach it.")
        return found


def _preference(certificate: Certificate) -> tuple[float, float, str]:
    return (-certificate.calibrated_at.timestamp(), certificate.plan.target_risk, certificate.digest)
