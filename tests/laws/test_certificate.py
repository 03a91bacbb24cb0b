"""Laws of certificate and fingerprint: recomputed on loading, bound to a configuration, refused after any change."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.calibration import Plan, Schedule, Site, SiteBatch, Transcript, make_release
from reticent.accounting.certificates import (
    Certificate,
    CertificateInvalid,
    NotCertified,
    issue,
    judge_transcript,
    verdicts_by_round,
)
from reticent.accounting.fingerprint import Fingerprint, canonical_json, differences, parse_json, sha256_hex

START = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
NOW = START + timedelta(hours=2)
LIFETIME = timedelta(days=30)
FACTS = {"model": {"name": "a", "revision": "1"}, "selection": {"rule": "privbon", "candidates": 8}, "grid": [0.2, 0.5]}


def calibrated_transcript(rounds: int = 2, risk_above_half: float = 0.05) -> Transcript:
    """Two sites, a score uniform on [0, 1], risk 0.9 below 0.5. Zeros stand in for the noise: every run is the same."""
    plan = Plan.calibrated(
        target_risk=0.3,
        thresholds=(0.2, 0.5, 0.8),
        sites=(Site("north", 0.5), Site("south", 0.5, drift=0.005)),
        epsilon=4.0,
        delta=1e-6,
        schedule=Schedule(600, 1.5, 3),
        loss="wrong answer",
        score="self-consistency",
        fingerprint=Fingerprint(FACTS),
    )
    transcript = Transcript(plan)
    for number in range(1, rounds + 1):
        for site in ("north", "south"):
            slots = plan.slots(number, site)
            scores = [(i + 0.5) / slots for i in range(slots)]
            losses = [
                float((i * 37) % 100 < 100 * (risk_above_half if s >= 0.5 else 0.9)) for i, s in enumerate(scores)
            ]
            batch = SiteBatch.from_records(plan, number, site, list(zip(scores, losses, strict=True)))
            transcript.append(make_release(plan, batch, noise=lambda: 0), START + timedelta(hours=number - 1))
    return transcript


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return issue(calibrated_transcript(), NOW, LIFETIME, unique_items=800).to_json()


def leaves(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def changed_at(document: dict[str, Any], path: tuple[str | int, ...], rehash: bool) -> dict[str, Any]:
    """The document with another value of the same type at `path`."""
    result = copy.deepcopy(document)
    *parents, last = path
    holder: Any = result
    for key in parents:
        holder = holder[key]
    old = holder[last]
    holder[last] = old + "x" if isinstance(old, str) else old * 1.001 + 0.001 if isinstance(old, float) else old + 1
    if rehash:
        result["digest"] = sha256_hex({key: value for key, value in result.items() if key != "digest"})
    return result


def test_a_certificate_survives_its_file_bit_for_bit(tmp_path: Path) -> None:
    certificate = issue(calibrated_transcript(), NOW, LIFETIME, unique_items=800)
    path = tmp_path / "certificate.json"
    certificate.save(path)
    again = Certificate.load(path)
    assert again == certificate
    assert again.digest == certificate.digest
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert again.threshold == 0.5
    assert again.verdict.certified == (1, 2)
    assert again.fingerprint == Fingerprint(FACTS)


def test_a_change_of_any_field_is_refused(document: dict[str, Any]) -> None:
    paths = list(leaves(document))
    assert len(paths) > 80
    for path in paths:
        with pytest.raises(CertificateInvalid):
            Certificate.from_json(changed_at(document, path, rehash=False))


# With its digest made right again, only what the operator states freely can be changed: nothing that the rule decided.
FREE = {("issued_at",), ("expires_at",), ("unique_items",)}


def test_a_change_of_any_field_is_refused_even_with_a_new_digest(document: dict[str, Any]) -> None:
    for path in leaves(document):
        if path == ("digest",) or path in FREE:
            continue
        with pytest.raises(CertificateInvalid):
            Certificate.from_json(changed_at(document, path, rehash=True))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"issued_at": "2030-01-31T12:00:00+00:00"}, "times"),
        ({"expires_at": "2030-01-31T13:00:00+00:00"}, "times"),
        ({"expires_at": "tomorrow"}, "malformed"),
        ({"expires_at": "2030-03-02T13:00:00+05:00"}, "malformed"),
        ({"expires_at": "2030-03-02T13:00:00"}, "malformed"),
        ({"unique_items": 0}, "malformed"),
        ({"unique_items": 10**6}, "malformed"),
        ({"unique_items": 1.0}, "malformed"),
        ({"transcript": None}, "malformed"),
        ({"verdict": {}}, "malformed"),
        ({"fingerprint_digest": "0" * 64}, "digest"),
        ({"format": "reticent-certificate/2"}, "malformed"),
        ({"extra": 1}, "malformed"),
    ],
)
def test_a_wrong_field_is_refused_with_its_reason(
    document: dict[str, Any], changes: dict[str, object], reason: str
) -> None:
    changed = {**copy.deepcopy(document), **changes}
    changed["digest"] = sha256_hex({key: value for key, value in changed.items() if key != "digest"})
    with pytest.raises(CertificateInvalid) as caught:
        Certificate.from_json(changed)
    assert caught.value.reason == reason


def test_a_verdict_for_a_transcript_that_certifies_nothing_is_refused(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    short = calibrated_transcript(rounds=1, risk_above_half=0.6)
    changed["transcript"], changed["transcript_head"] = short.to_json(), short.head
    changed["digest"] = sha256_hex({key: value for key, value in changed.items() if key != "digest"})
    with pytest.raises(CertificateInvalid) as caught:
        Certificate.from_json(changed)
    assert caught.value.reason == "not_certified"


def test_floats_may_differ_in_the_last_place_and_the_choice_may_not(document: dict[str, Any]) -> None:
    def with_verdict(field: str, change: Any) -> dict[str, Any]:
        changed = copy.deepcopy(document)
        changed["verdict"][field] = change(changed["verdict"][field])
        changed["digest"] = sha256_hex({key: value for key, value in changed.items() if key != "digest"})
        return changed

    nudged = with_verdict("contrast_upper", lambda row: [row[0], math.nextafter(row[1], -1.0), row[2]])
    loaded = Certificate.from_json(nudged)
    assert loaded.to_json() == nudged
    for field, change in (
        ("contrast_upper", lambda row: [row[0], row[1] - 1e-8, row[2]]),
        ("threshold", lambda value: math.nextafter(value, 0.0)),
        ("chosen", lambda _: 2),
        ("chosen", lambda _: 1.0),
        ("certified", lambda _: [1]),
        ("certified", lambda _: [0, 1, 2]),
        ("log_risk_evidence", lambda row: [row[0] + 1e-4, *row[1:]]),
        ("log_risk_evidence", lambda row: row[:2]),
    ):
        with pytest.raises(CertificateInvalid):
            Certificate.from_json(with_verdict(field, change))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"format": NaN}', '{"digest": 1, "digest": 2}', "[" * 99_999]
)
def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(text)
    with pytest.raises(CertificateInvalid) as caught:
        Certificate.load(path)
    assert caught.value.reason == "malformed"


def test_a_half_written_file_is_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document)
    for part in range(0, len(text), len(text) // 40):
        (tmp_path / "certificate.json").write_text(text[:part])
        with pytest.raises(CertificateInvalid):
            Certificate.load(tmp_path / "certificate.json")


def test_no_certificate_is_issued_without_a_certified_threshold() -> None:
    transcript = calibrated_transcript(rounds=1, risk_above_half=0.25)
    with pytest.raises(NotCertified) as caught:
        issue(transcript, NOW, LIFETIME)
    verdict = caught.value.verdict
    assert verdict == judge_transcript(transcript)
    assert caught.value.best_contrast_upper == min(verdict.contrast_upper[:3])
    assert caught.value.best_acceptance_lower == verdict.acceptance_lower[0]
    assert "after 600 events" in str(caught.value)
    empty = Transcript(transcript.plan)
    with pytest.raises(NotCertified) as caught:
        issue(empty, NOW, LIFETIME)
    assert caught.value.best_contrast_upper is None


def test_issuing_again_does_not_make_a_calibration_younger() -> None:
    transcript = calibrated_transcript()
    first = issue(transcript, NOW, LIFETIME)
    later = issue(transcript, NOW + timedelta(days=20), LIFETIME)
    assert first.expires_at == later.expires_at == START + timedelta(hours=1) + LIFETIME
    with pytest.raises(CertificateInvalid, match="times"):
        issue(transcript, NOW + timedelta(days=31), LIFETIME)
    with pytest.raises(CertificateInvalid, match="times"):
        issue(transcript, START, LIFETIME)
    with pytest.raises(CertificateInvalid, match="times"):
        issue(transcript, NOW.replace(tzinfo=None), LIFETIME)
    assert not first.is_expired(first.expires_at - timedelta(microseconds=1))
    assert first.is_expired(first.expires_at)


def test_later_releases_do_not_change_an_issued_certificate() -> None:
    transcript = calibrated_transcript()
    certificate = issue(transcript, NOW, LIFETIME)
    digest = certificate.digest
    plan = transcript.plan
    batch = SiteBatch.from_records(plan, 3, "north", [(0.9, 0.0)] * plan.slots(3, "north"))
    transcript.append(make_release(plan, batch), NOW)
    assert len(certificate.transcript.entries) == 4
    assert sha256_hex({k: v for k, v in certificate.to_json().items() if k != "digest"}) == digest


def test_verdicts_by_round_end_with_the_certificate_s() -> None:
    transcript = calibrated_transcript()
    history = verdicts_by_round(transcript)
    assert [number for number, _ in history] == [1, 2]
    assert history[-1][1] == judge_transcript(transcript)
    assert history[0][1].events == 600
    assert history[1][1].events == 900


def test_the_declaration_says_what_was_promised() -> None:
    certificate = issue(calibrated_transcript(), NOW, LIFETIME, unique_items=800)
    shown = certificate.declaration()
    json.dumps(shown, allow_nan=False)
    assert shown["loss"] == "wrong answer"
    assert (shown["target_risk"], shown["min_acceptance"]) == (0.3, 0.05)
    assert (shown["alpha_risk"], shown["alpha_acceptance"]) == (0.045, 0.005)
    assert (shown["epsilon"], shown["delta"]) == (4.0, 1e-6)
    assert shown["privacy_unit"] == "one stream occurrence (zero-out of one slot)"
    assert (shown["events"], shown["unique_items"], shown["releases"]) == (900, 800, 4)
    assert shown["events_by_site"] == {"north": 450, "south": 450}
    assert shown["transfer"] == pytest.approx(0.0025)
    assert shown["calibrated_at"] == "2030-01-31T13:00:00+00:00"
    assert shown["threshold"] == 0.5
    assert shown["contrast_upper"] == certificate.verdict.contrast_upper[1] <= 0
    assert shown["acceptance_lower"] == certificate.verdict.acceptance_lower[1] >= 0.05
    assert [m["weight"] for m in shown["mixture"]] == [0.5, 0.5]  # type: ignore[attr-defined]
    assert shown["fingerprint_digest"] == Fingerprint(FACTS).digest


def test_fingerprints_name_the_fields_that_differ() -> None:
    base = Fingerprint(FACTS)
    assert differences(base, Fingerprint(dict(reversed(FACTS.items())))) == ()
    other = Fingerprint(
        {
            "model": {"name": "a", "revision": "2"},
            "selection": {"rule": "privbon", "candidates": 8.0},
            "grid": [0.2, 0.6],
            "prompt": None,
        }
    )
    assert differences(base, other) == ("grid.1", "model.revision", "prompt", "selection.candidates")
    assert differences(other, base) == differences(base, other)
    assert differences(base, Fingerprint({**FACTS, "grid": [0.2]})) == ("grid",)
    assert base.digest != other.digest
    assert base != other


def test_a_fingerprint_does_not_change_with_what_it_was_made_from() -> None:
    facts: dict[str, Any] = {"model": {"name": "a"}}
    fingerprint = Fingerprint(facts)
    facts["model"]["name"] = "b"
    copy_of_facts: Any = fingerprint.facts
    copy_of_facts["model"]["name"] = "c"
    assert fingerprint.facts == {"model": {"name": "a"}}
    assert hash(fingerprint) == hash(Fingerprint({"model": {"name": "a"}}))


@pytest.mark.parametrize(
    "facts", [{}, {"a": math.nan}, {"a": [math.inf]}, {1: "a"}, {"a": {2: 3}}, {"a": object()}, {"a": b"x"}, {"a": {1}}]
)
def test_facts_without_a_canonical_form_are_refused(facts: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Fingerprint(facts)


def test_canonical_json_is_exact_and_ordered() -> None:
    value = {"b": 0.1 + 0.2, "a": [1, True, None, "é\n"], "c": {"z": -0.0, "y": 1e300}}
    text = canonical_json(value)
    assert text == '{"a":[1,true,null,"\\u00e9\\n"],"b":0.30000000000000004,"c":{"y":1e+300,"z":-0.0}}'
    assert canonical_json(parse_json(text)) == text
