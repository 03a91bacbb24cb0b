"""Certificates: one rule a file, and the document that binds a verdict to its transcript."""

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.certificate import (
    Certificate,
    issue,
    judge_transcript,
    verdicts_by_round,
)
from reticent.accounting.certificates.eprocess import Verdict, judge
from reticent.accounting.certificates.errors import CertificateInvalid, NotCertified

__all__ = [
    "Certificate",
    "CertificateInvalid",
    "Claim",
    "NotCertified",
    "Verdict",
    "issue",
    "judge",
    "judge_transcript",
    "verdicts_by_round",
]
