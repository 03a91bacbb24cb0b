"""Why there is no certificate, or why one must not be used."""

from __future__ import annotations

from reticent.accounting.certificates.verdict import Verdict
from reticent.accounting.errors import AccountingError

__all__ = ["CertificateInvalid", "NotCertified"]


class CertificateInvalid(AccountingError, ValueError):  # noqa: N818 - reads as a verdict
    """A certificate file that must not be used.

    Attributes:
        reason: "malformed", "digest", "verdict", "not_certified" or "times".
        detail: which field, and how it differs.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"certificate invalid ({reason}): {detail}")
        self.reason = reason
        self.detail = detail


class NotCertified(AccountingError, ValueError):  # noqa: N818 - reads as a verdict
    """No threshold is certified: the server abstains. More events may change that; a better score more so.

    Attributes:
        verdict: with the bounds reached at every threshold.
        best_contrast_upper: smallest d̄ among the thresholds whose acceptance floor holds, or None.
        best_acceptance_lower: largest a̲ of all thresholds.
    """

    def __init__(self, claim_text: str, verdict: Verdict, min_acceptance: float) -> None:
        floor_held = [
            d for d, a in zip(verdict.contrast_upper, verdict.acceptance_lower, strict=True) if a >= min_acceptance
        ]
        self.verdict = verdict
        self.best_contrast_upper = min(floor_held, default=None)
        self.best_acceptance_lower = max(verdict.acceptance_lower)
        best = "no threshold keeps the floor" if self.best_contrast_upper is None else f"{self.best_contrast_upper:.4g}"
        super().__init__(
            f"no threshold is certified for {claim_text} after {verdict.events} events: smallest upper contrast bound "
            f"where the floor holds: {best} (0 or less is needed); largest lower acceptance bound: "
            f"{self.best_acceptance_lower:.4g}"
        )
