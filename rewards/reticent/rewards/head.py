"""The certified linear head: r = R·sigmoid(w·φ/s), with the proof obligations of its sensitivity in the same file.

A head file is as confidential as the preference data: the weights are not private, and the data's hash lets anyone
who guesses the data confirm the guess. Only `LinearHead.public_facts` may leave the worker. A privately trained head
(`private_training.py`) is a file of the second format: with its privacy claim, and without the hash.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.fingerprint import parse_json, sha256_hex

from .bounds import sigmoid
from .encoders.base import Encoder
from .errors import EncoderMismatch, HeadAltered, HeadInvalid, SensitivityMismatch, WidthMismatch
from .private_training import PrivateTraining
from .sensitivity import FORMULA, HeadFacts, sensitivity_rounded_up

__all__ = ["LinearHead", "SensitivityCertificate", "new_identifier"]

_FORMAT, _PRIVATE_FORMAT = "reticent-head-1", "reticent-head-2"
_UNIT = 2.0**-53
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SensitivityCertificate:
    """Why no one person's data moves a reward of this head by more than `sensitivity`.

    Attributes:
        facts: N, k, μ, G, τ, s, R.
        sensitivity: Δ, in the unit of rewards, 0 < Δ ≤ R.
        data_sha256: hash of the preference data. Confidential; None in a private head, whose claim it would break.
        formula: the bound in words; must be this version's.
    """

    facts: HeadFacts
    sensitivity: float
    data_sha256: str | None
    formula: str = FORMULA

    def __post_init__(self) -> None:
        if self.formula != FORMULA:
            raise HeadInvalid(f"unknown formula {self.formula!r}, this version knows {FORMULA!r}")
        if self.data_sha256 is not None and not _HEX.fullmatch(self.data_sha256):
            raise HeadInvalid("data_sha256 is not a SHA-256")
        computed = sensitivity_rounded_up(self.facts)
        if self.sensitivity != computed:
            raise SensitivityMismatch(self.sensitivity, computed)

    @staticmethod
    def of(facts: HeadFacts, data_sha256: str | None) -> SensitivityCertificate:
        """The certificate that `facts` give."""
        return SensitivityCertificate(facts, sensitivity_rounded_up(facts), data_sha256)


def new_identifier() -> str:
    """A random name for a newly trained head: 128 bits from the operating system, so it tells nothing about D."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class LinearHead:
    """Weights with their encoder and certificate.

    Attributes:
        weights: w, finite.
        encoder: name of the encoder and feature map ("minilm/grounded").
        encoder_revision: its SHA-256 at training.
        certificate: the sensitivity and all it rests on, s and R included.
        identifier: random name; stands for this head wherever its contents must not be shown.
        private: the claim of a privately trained head, or None. Once training is paid for, what is computed from such
            a head costs nothing. `sensitivity` holds for it too (the same noise, other pairs), so a server that knows
            nothing of this field charges for every answer as for any head: too much, never too little.

    Raises:
        HeadInvalid: no weights, a weight that is not finite, or weights so large that rounding in `reward` could
            exceed the share of τ that the certificate keeps for it; a private claim that the numbers do not give; a
            private head with the hash of its data, or another without.
    """

    weights: tuple[float, ...]
    encoder: str
    encoder_revision: str
    certificate: SensitivityCertificate
    identifier: str
    private: PrivateTraining | None = None

    def __post_init__(self) -> None:
        if not self.weights or not all(math.isfinite(weight) for weight in self.weights):
            raise HeadInvalid("weights must be finite, and there must be at least one")
        if not self.rounding_is_covered:
            raise HeadInvalid("the weights are so large that rounding is not covered by the gradient tolerance")
        if (self.private is None) != (self.certificate.data_sha256 is not None):
            raise HeadInvalid("a head carries the hash of its data, or was trained privately: one of the two")
        if self.private is not None:
            self.private.require_covers(self.certificate.facts, len(self.weights))

    @property
    def rounding_is_covered(self) -> bool:
        """Whether two evaluations of w·φ/s and the sigmoid stay within half of 2τ/μ of their exact values.

        A dot product of width d errs by at most d·u·‖w‖‖φ‖ (u = 2⁻⁵³, first order), quotient and sigmoid by a few u
        of their values; in units of w·φ, with slope 1/(4s), that is below (d + 4)·u·‖w‖ + 16·s·u for one evaluation.
        Training reaches τ/2 at most, so the other half of 2τ/μ is free for both evaluations.
        """
        facts = self.certificate.facts
        norm = math.sqrt(math.fsum(weight * weight for weight in self.weights))
        one = (len(self.weights) + 4) * _UNIT * norm + 16 * facts.scale * _UNIT
        return 2 * one <= facts.gradient_tolerance / facts.regularization

    @property
    def dimension(self) -> int:
        return len(self.weights)

    @property
    def reward_max(self) -> float:
        return self.certificate.facts.reward_max

    @property
    def sensitivity(self) -> float:
        """Δ: most that one person's data moves one reward."""
        return self.certificate.sensitivity

    @property
    def serving_is_free(self) -> bool:
        """Whether rewards of this head are post-processing of a release that was paid for when it was trained.

        Then any selection by them costs nothing, also one without noise, provided the data set's budget was charged
        `private.charge(certificate.facts, order)` for the training.
        """
        return self.private is not None

    def reward(self, features: NDArray[np.float64]) -> list[float]:
        """Rewards of rows of features, each in [0, R].

        Each row is summed on its own, in a fixed order, so a reward does not depend on its batch.

        Args:
            features: shape (n, d), rows of norm at most 1, as encoders make them.

        Raises:
            WidthMismatch: d is not the number of weights.
            ValueError: a row is not finite or longer than 1: the certificate says nothing about such rows.
        """
        rows = np.asarray(features, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise WidthMismatch(self.dimension, rows.shape[1] if rows.ndim == 2 else -1)
        if rows.size and not float(np.max(np.sum(rows * rows, axis=1))) <= 1.0:
            raise ValueError("a row of features is not finite or is longer than 1")
        facts = self.certificate.facts
        w = np.array(self.weights)
        return [facts.reward_max * sigmoid(float(np.sum(row * w)) / facts.scale) for row in rows]

    def require_encoder(self, encoder: Encoder) -> None:
        """Refuse any encoder but the one that the head was trained on.

        Raises:
            EncoderMismatch: another name or revision.
            WidthMismatch: another width.
        """
        if (encoder.name, encoder.revision) != (self.encoder, self.encoder_revision):
            raise EncoderMismatch(
                f"{self.encoder} {self.encoder_revision[:12]}", f"{encoder.name} {encoder.revision[:12]}"
            )
        if encoder.dimension != self.dimension:
            raise WidthMismatch(self.dimension, encoder.dimension)

    def public_facts(self) -> dict[str, object]:
        """What may stand in a fingerprint or a report: nothing that is computed from the preference data but N."""
        private = {} if self.private is None else {"private": asdict(self.private)}
        return {
            "backend": "head",
            "identifier": self.identifier,
            "encoder": self.encoder,
            "encoder_revision": self.encoder_revision,
            "formula": self.certificate.formula,
            "sensitivity": self.sensitivity,
            **asdict(self.certificate.facts),
            **private,
        }

    def to_dict(self) -> dict[str, object]:
        """JSON form, with the hash of everything else as `content_sha256`."""
        certificate: dict[str, object] = {
            "formula": self.certificate.formula,
            "sensitivity": self.sensitivity,
            **asdict(self.certificate.facts),
        }
        body: dict[str, object] = {
            "format": _FORMAT if self.private is None else _PRIVATE_FORMAT,
            "identifier": self.identifier,
            "encoder": self.encoder,
            "encoder_revision": self.encoder_revision,
            "weights": list(self.weights),
            "certificate": certificate,
        }
        if self.private is None:
            certificate["data_sha256"] = self.certificate.data_sha256
        else:
            body["private"] = asdict(self.private)
        return {**body, "content_sha256": sha256_hex(body)}

    def save(self, path: Path) -> None:
        """Write the head, readable by its owner only, whole or not at all."""
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(self.to_dict(), indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    @staticmethod
    def load(path: Path) -> LinearHead:
        """Read a head and verify it: form, content hash, sensitivity.

        Raises:
            FileNotFoundError: no such file.
            HeadAltered: the contents do not have the hash that the file states.
            SensitivityMismatch: the stated Δ is not what N, k, μ, G, τ, s, R give.
            HeadInvalid: anything else that is not a head.
        """
        try:
            value = parse_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise HeadInvalid(f"not a head: {error}") from error
        if not isinstance(value, dict):
            raise HeadInvalid("not a head: no JSON object")
        return LinearHead.from_dict(value)

    @staticmethod
    def from_dict(value: Mapping[str, object]) -> LinearHead:
        """The head of a JSON object, verified as by `load`."""
        body = {name: part for name, part in value.items() if name != "content_sha256"}
        if body.get("format") not in (_FORMAT, _PRIVATE_FORMAT):
            raise HeadInvalid(f"not a head of format {_FORMAT} or {_PRIVATE_FORMAT}")
        is_private = body["format"] == _PRIVATE_FORMAT
        try:
            computed = sha256_hex(body)
        except ValueError as error:
            raise HeadInvalid(str(error)) from error
        stored = value.get("content_sha256")
        if stored != computed:
            raise HeadAltered(str(stored), computed)
        expected = {"format", "identifier", "encoder", "encoder_revision", "weights", "certificate"}
        expected |= {"private"} if is_private else set()
        if body.keys() != expected:
            raise HeadInvalid(f"fields are {', '.join(sorted(body))}, not {', '.join(sorted(expected))}")
        texts = {name: body[name] for name in ("identifier", "encoder", "encoder_revision")}
        if not all(isinstance(text, str) and text for text in texts.values()):
            raise HeadInvalid(f"{', '.join(texts)} must be strings")
        return LinearHead(
            weights=_numbers(body["weights"]),
            encoder=str(body["encoder"]),
            encoder_revision=str(body["encoder_revision"]),
            certificate=_certificate(body["certificate"], is_private=is_private),
            identifier=str(body["identifier"]),
            private=_private(body["private"]) if is_private else None,
        )


def _numbers(value: object) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise HeadInvalid("weights must be a list")
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in value):
        raise HeadInvalid("weights must be numbers")
    return tuple(float(x) for x in value)


def _certificate(value: object, *, is_private: bool) -> SensitivityCertificate:
    names = {field.name for field in fields(HeadFacts)}
    others = {"formula", "sensitivity"} if is_private else {"formula", "sensitivity", "data_sha256"}
    if not isinstance(value, dict) or value.keys() != names | others:
        raise HeadInvalid("the certificate does not have the expected fields")
    try:
        facts = HeadFacts(**{name: value[name] for name in names})
    except ValueError as error:
        raise HeadInvalid(str(error)) from error
    stated, data, formula = value["sensitivity"], value.get("data_sha256"), value["formula"]
    if not (isinstance(stated, float | int) and isinstance(data, str | None) and isinstance(formula, str)):
        raise HeadInvalid("sensitivity must be a number, data_sha256 and formula strings")
    return SensitivityCertificate(facts, stated, data, formula)


def _private(value: object) -> PrivateTraining:
    if not isinstance(value, dict) or value.keys() != {field.name for field in fields(PrivateTraining)}:
        raise HeadInvalid("the private claim does not have the expected fields")
    return PrivateTraining(**value)
