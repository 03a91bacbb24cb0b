"""A certificate: a transcript's verdict at one time, bound to a configuration, in one document that can be recomputed.

Loading never believes the verdict in the file. It replays the transcript, judges it anew and compares: indices,
counts and the chosen threshold exactly; bounds and log evidences to 1e-9 (relative, or absolute below 1; for log
evidences, which are small differences of numbers as large as N, absolute below N/1000), because exp and log1p may
differ in the last place between machines. On one machine they agree bit for bit. Decisions of the e-process keep a
margin of at least 1e-9 (`rounding_margin`), those of the other rules one of the rounding error (`boundaries.rounding`);
such a difference changes one only at the margin's very edge, and the file is then refused.

The document hash and the transcript's chain find damage and careless edits, and every lie about the verdict is found by
recomputing it. They do not tell who wrote the file: one who invents whole releases can write a consistent
certificate, so keep certificates where only the operator can write.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from reticent.accounting.calibration.aggregate import Aggregate
from reticent.accounting.calibration.documents import (
    InvalidDocumentError,
    read_fields,
    read_file,
    read_int,
    read_object,
    read_text,
    read_time,
    write_atomically,
)
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.transcript import Transcript
from reticent.accounting.certificates.errors import CertificateInvalid, NotCertified
from reticent.accounting.certificates.rules import serving_rule
from reticent.accounting.certificates.verdict import Verdict, judge_sums, sums_of
from reticent.accounting.fingerprint import Fingerprint, canonical_json, sha256_hex

__all__ = [
    "CERTIFICATE_FORMAT",
    "PRIVACY_UNIT",
    "Certificate",
    "certifies",
    "issue",
    "judge_transcript",
    "verdicts_by_round",
]

CERTIFICATE_FORMAT = "reticent-certificate/1"
PRIVACY_UNIT = "one stream occurrence (zero-out of one slot)"
_TOLERANCE = 1e-9
_FIELDS = (
    "format",
    "transcript",
    "transcript_head",
    "verdict",
    "fingerprint_digest",
    "unique_items",
    "issued_at",
    "expires_at",
    "digest",
)


@dataclass(frozen=True)
class Certificate:
    """A verdict that was recomputed from its transcript. Made by `issue` or `Certificate.load`, not by hand.

    Attributes:
        transcript: plan and noised releases.
        verdict: at the end of the transcript; `verdict.chosen` is never None.
        issued_at, expires_at: UTC.
        unique_items: distinct items among the events, as the operator counts them, or None if not declared.
    """

    transcript: Transcript = field(repr=False, compare=False)
    verdict: Verdict = field(repr=False)
    issued_at: datetime
    expires_at: datetime
    unique_items: int | None

    @property
    def plan(self) -> Plan:
        """The registered plan."""
        return self.transcript.plan

    @property
    def fingerprint(self) -> Fingerprint:
        """The configuration that was calibrated. A server with any other must abstain."""
        return self.plan.fingerprint

    @property
    def threshold(self) -> float:
        """The certified threshold: accept an answer when its score is at least this."""
        if self.verdict.threshold is None:
            raise CertificateInvalid("not_certified", "no threshold is certified")
        return self.verdict.threshold

    @cached_property
    def aggregate(self) -> Aggregate:
        """Sums, events and transfer of the whole transcript."""
        return self.transcript.aggregate()

    @property
    def calibrated_at(self) -> datetime:
        """When the last release arrived.

        The lifetime counts from here, so issuing again does not make a calibration younger.
        """
        return self.transcript.entries[-1].received_at

    def is_expired(self, now: datetime) -> bool:
        """True from `expires_at` on. `now` needs a time zone."""
        return now >= self.expires_at

    def declaration(self) -> dict[str, object]:
        """What a deployed certificate shows in public. JSON values; everything in it is noised or was never private."""
        plan, verdict, total = self.plan, self.verdict, self.aggregate
        chosen = 0 if verdict.chosen is None else verdict.chosen
        names = [site.name for site in plan.sites]
        return {
            "loss": plan.loss,
            "score": plan.score,
            "rule": plan.rule,
            "release": plan.release,
            "failure_probabilities": dict(serving_rule(plan.rule, plan.release).failure_probabilities(plan.claim)),
            "threshold": self.threshold,
            "target_risk": plan.target_risk,
            "min_acceptance": plan.min_acceptance,
            "alpha_risk": plan.alpha_risk,
            "alpha_acceptance": plan.alpha_acceptance,
            "contrast_upper": verdict.contrast_upper[chosen],
            "acceptance_lower": verdict.acceptance_lower[chosen],
            "mixture": [
                {"site": site.name, "weight": site.weight, "realised_weight": realised, "drift": site.drift}
                for site, realised in zip(plan.sites, total.realised_weights, strict=True)
            ],
            "transfer": total.transfer,
            "max_unfilled": plan.max_unfilled,
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "noise_scale": plan.noise_scale,
            "privacy_unit": PRIVACY_UNIT,
            "events": total.events,
            "events_by_site": dict(zip(names, total.events_by_site, strict=True)),
            "unique_items": self.unique_items,
            "releases": total.releases,
            "calibrated_at": self.calibrated_at.isoformat(),
            "issued_at": self.issued_at.isoformat(),
            "expires_at": self.expires_at.isoformat(),
            "plan_digest": plan.digest,
            "fingerprint_digest": self.fingerprint.digest,
            "digest": self.digest,
            **({} if plan.subgroup is None else {"subgroup": plan.subgroup.to_json()}),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of everything else in the document."""
        return sha256_hex(self._content())

    def to_json(self) -> dict[str, object]:
        """The document as JSON values."""
        return {**self._content(), "digest": self.digest}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate, replacing the file as a whole, so that a running server never reads half of one."""
        write_atomically(path, canonical_json(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read a certificate and recompute it. Expiry and fingerprint are the gate's questions, not asked here.

        Raises:
            OSError: the file cannot be read.
            CertificateInvalid: anything in it that is not as `issue` would have written it.
        """
        try:
            value = read_file(path, "certificate")
        except InvalidDocumentError as error:
            raise CertificateInvalid("malformed", str(error)) from error
        return cls.from_json(value)

    @classmethod
    def from_json(cls, value: object) -> Certificate:
        """As `load`, from JSON values."""
        try:
            return cls._from_fields(read_fields(value, "certificate", _FIELDS))
        except InvalidDocumentError as error:
            raise CertificateInvalid("malformed", str(error)) from error

    @classmethod
    def _from_fields(cls, doc: Mapping[str, object]) -> Certificate:
        if doc["format"] != CERTIFICATE_FORMAT:
            raise InvalidDocumentError("certificate.format", f"is {doc['format']!r}, not {CERTIFICATE_FORMAT!r}")
        content = {name: item for name, item in doc.items() if name != "digest"}
        digest = sha256_hex(content)
        if doc["digest"] != digest:
            raise CertificateInvalid("digest", f"the document says {doc['digest']!r}, its content gives {digest}")
        transcript = Transcript.from_json(doc["transcript"])
        items = doc["unique_items"]
        certificate = cls(
            transcript=transcript,
            verdict=judge_transcript(transcript),
            issued_at=read_time(doc["issued_at"], "certificate.issued_at"),
            expires_at=read_time(doc["expires_at"], "certificate.expires_at"),
            unique_items=None if items is None else read_int(items, "certificate.unique_items"),
        )
        for name, expected in (
            ("transcript_head", transcript.head),
            ("fingerprint_digest", certificate.fingerprint.digest),
        ):
            if read_text(doc[name], f"certificate.{name}") != expected:
                raise CertificateInvalid("digest", f"{name} is not that of the transcript in the document")
        _check(certificate)
        stored = _agreeing_verdict(read_object(doc["verdict"], "certificate.verdict"), certificate.verdict)
        return replace(certificate, verdict=stored)

    def _content(self) -> dict[str, object]:
        return {
            "format": CERTIFICATE_FORMAT,
            "transcript": self.transcript.to_json(),
            "transcript_head": self.transcript.head,
            "verdict": _verdict_json(self.verdict),
            "fingerprint_digest": self.fingerprint.digest,
            "unique_items": self.unique_items,
            "issued_at": self.issued_at.isoformat(),
            "expires_at": self.expires_at.isoformat(),
        }


def judge_transcript(transcript: Transcript, through_round: int | None = None) -> Verdict:
    """The registered rule's verdict on a transcript, after `through_round` or at its end."""
    plan, total = transcript.plan, transcript.aggregate(through_round)
    sums, transfer = sums_of(total)
    return judge_sums(serving_rule(plan.rule, plan.release), plan.claim, plan.thresholds, sums, transfer)


def certifies(transcript: Transcript) -> bool:
    """Whether a transcript certifies some threshold by now: where a calibration may stop."""
    return judge_transcript(transcript).chosen is not None


def verdicts_by_round(transcript: Transcript) -> tuple[tuple[int, Verdict], ...]:
    """The verdict after each round from which a release arrived.

    All of them hold together: the rule is valid at every time.
    """
    return tuple((number, judge_transcript(transcript, number)) for number in transcript.rounds())


def issue(
    transcript: Transcript, now: datetime, lifetime: timedelta, *, unique_items: int | None = None
) -> Certificate:
    """Issue a certificate for a transcript, valid until `lifetime` after its last release.

    The certificate keeps a copy: later releases do not change it.

    Raises:
        NotCertified: no threshold is certified; carries the bounds that were reached.
        CertificateInvalid: `now` has no time zone or lies before the last release, or the certificate would have
            expired already, or `unique_items` is not between 1 and the number of events.
    """
    copy = Transcript.from_json(transcript.to_json())
    verdict = judge_transcript(copy)
    if verdict.chosen is None:
        plan = copy.plan
        raise NotCertified(
            f"risk {plan.target_risk:g} and acceptance {plan.min_acceptance:g}", verdict, plan.min_acceptance
        )
    if now.utcoffset() is None:
        raise CertificateInvalid("times", "the time of issue needs a time zone")
    expires_at = copy.entries[-1].received_at + lifetime
    certificate = Certificate(copy, verdict, now.astimezone(UTC), expires_at, unique_items)
    _check(certificate)
    return certificate


def _check(certificate: Certificate) -> None:
    if certificate.verdict.chosen is None:
        raise CertificateInvalid("not_certified", "the transcript certifies no threshold")
    if not certificate.calibrated_at <= certificate.issued_at < certificate.expires_at:
        raise CertificateInvalid(
            "times",
            f"calibrated {certificate.calibrated_at.isoformat()}, issued {certificate.issued_at.isoformat()} and "
            f"expires {certificate.expires_at.isoformat()} must follow one another",
        )
    items = certificate.unique_items
    if items is not None and not 1 <= items <= certificate.verdict.events:
        raise CertificateInvalid("malformed", f"unique_items must lie between 1 and the events, got {items}")


def _verdict_json(verdict: Verdict) -> dict[str, object]:
    """The verdict as JSON values; a rule without log evidences leaves their fields out."""
    values = {name: list(item) if isinstance(item, tuple) else item for name, item in asdict(verdict).items()}
    if verdict.log_risk_required is not None:
        return values
    return {name: item for name, item in values.items() if not name.startswith("log_")}


def _agreeing_verdict(stored: Mapping[str, object], computed: Verdict) -> Verdict:
    """The stored verdict, if it is the computed one up to the tolerance.

    The stored numbers are kept so that the document and its digest stay what they are when another machine saves or
    shows it. The threshold decides, so it is compared exactly.
    """
    expected = _verdict_json(computed)
    if stored.keys() != expected.keys():
        raise CertificateInvalid("malformed", f"the verdict has the fields {sorted(stored)}, not {sorted(expected)}")
    for name, value in expected.items():
        least = max(1.0, 1e-3 * computed.events) if name.startswith("log_") else 1.0
        if not _agree(stored[name], value, least) or (name == "threshold" and stored[name] != value):
            raise CertificateInvalid("verdict", f"{name} is {stored[name]!r}, the transcript gives {value!r}")
    values = {name: tuple(item) if isinstance(item, list) else item for name, item in stored.items()}
    return replace(computed, **values)  # type: ignore[arg-type]


def _agree(stored: object, computed: object, least: float) -> bool:
    """Floats to the tolerance (relative, of at least the size `least`), the rest exactly, lists element by element."""
    if isinstance(computed, list):
        return (
            isinstance(stored, list)
            and len(stored) == len(computed)
            and all(_agree(x, y, least) for x, y in zip(stored, computed, strict=True))
        )
    if isinstance(computed, float):
        return isinstance(stored, float) and abs(stored - computed) <= _TOLERANCE * max(least, abs(computed))
    return type(stored) is type(computed) and stored == computed
