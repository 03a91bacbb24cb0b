"""Certificates: rules (one a file), and the document that binds a verdict to its transcript."""

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.certificates.certificate import (
    Certificate,
    certifies,
    issue,
    judge_transcript,
    verdicts_by_round,
)
from reticent.accounting.certificates.errors import CertificateInvalid, NotCertified
from reticent.accounting.certificates.rules import RULES, RuleNotForServingError, serving_rule
from reticent.accounting.certificates.verdict import Verdict, judge, judge_sums, sums_of

__all__ = [
    "RULES",
    "Certificate",
    "CertificateInvalid",
    "Claim",
    "NotCertified",
    "RuleNotForServingError",
    "Verdict",
    "certifies",
    "issue",
    "judge",
    "judge_sums",
    "judge_transcript",
    "serving_rule",
    "sums_of",
    "verdicts_by_round",
]
