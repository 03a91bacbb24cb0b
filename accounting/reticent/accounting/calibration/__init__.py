"""Calibration: plan → release (at the site) → transcript → aggregate. What the certificates read, and nothing else."""

from reticent.accounting.calibration.aggregate import Aggregate, aggregate
from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.documents import InvalidDocumentError
from reticent.accounting.calibration.entries import Entry, Notice, ReleaseRefusedError, RoundError
from reticent.accounting.calibration.plan import Plan, Schedule, Site
from reticent.accounting.calibration.recruitment import Recruitment
from reticent.accounting.calibration.release import (
    RecordInvalidError,
    Release,
    SiteBatch,
    WrongBatchSizeError,
    make_release,
)
from reticent.accounting.calibration.transcript import Transcript

__all__ = [
    "Aggregate",
    "Claim",
    "Entry",
    "InvalidDocumentError",
    "Notice",
    "Plan",
    "RecordInvalidError",
    "Recruitment",
    "Release",
    "ReleaseRefusedError",
    "RoundError",
    "Schedule",
    "Site",
    "SiteBatch",
    "Transcript",
    "WrongBatchSizeError",
    "aggregate",
    "make_release",
]
