"""Certificates of a running server: renewed, withdrawn and broken files, and what is shown of them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reticent.accounting.certificates import Certificate
from reticent.plugin import renewal
from reticent.plugin.certificate_files import CertificateFiles
from reticent.plugin.gate import Gate
from reticent.plugin.standing import STANDINGS
from reticent.rewards.scores import SelfConsistency
from tests.fakes.build import World, certificate, chat_body, facts_for, make_settings, run, until, world

CHAT = "/v1/chat/completions"
SHOWN = "/v1/reticent/certificate"
FACTS: dict[str, Any] = {"base_model": {"name": "small", "revision": "1"}, "grid": [1, 2]}


@asynccontextmanager
async def watched(folder: Path, *paths: Path, **changes: Any) -> AsyncIterator[World]:
    settings = {"gate.certificates": list(paths), "gate.reload_seconds": 0.05, **changes}
    async with world(folder, settings) as w:
        yield w


async def status(w: World, tenant: str = "strict", **more: Any) -> str:
    async with w.client(tenant) as client:
        body = (await client.post(CHAT, json=chat_body(**more))).json()
    return str(body["reticent"]["certificate"]["status"])


async def shown(w: World, tenant: str = "strict") -> list[dict[str, Any]]:
    async with w.client(tenant) as client:
        data: list[dict[str, Any]] = (await client.get(SHOWN)).json()["data"]
    return data


def test_a_running_server_takes_a_new_certificate_and_gives_up_one_whose_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "c.json"

    async def story() -> None:
        facts = facts_for(make_settings(tmp_path))
        old, new = certificate(facts, age=timedelta(days=3)), certificate(facts, thresholds=(0.3, 0.4, 0.8))
        async with watched(tmp_path, path) as w:
            unusable = {"certificate": "c.json"}
            assert await status(w) == "no_certificate"
            assert w.metric("reticent_certificate_file_unusable", **unusable) == 1
            old.save(path)
            await until(lambda: w.core.gate.certificates != ())
            assert await status(w) == "accepted"
            assert w.metric("reticent_certificate_file_unusable", **unusable) == 0
            assert 3 * 86400 - 60 < w.metric("reticent_certificate_age_seconds", **unusable) < 3 * 86400 + 600
            (first,) = await shown(w)
            assert (first["status"], first["digest"]) == ("accepting", old.digest)
            new.save(path)
            await until(lambda: w.core.gate.certificates[0].digest == new.digest)
            assert [(c["status"], c["digest"]) for c in await shown(w)] == [("accepting", new.digest)]
            expiry = w.metric("reticent_certificate_expiry_timestamp_seconds", **unusable)
            assert expiry == new.expires_at.timestamp()
            path.unlink()
            await until(lambda: w.core.gate.certificates == ())
            assert await status(w) == "no_certificate"
            assert [(c["status"], c["digest"]) for c in await shown(w)] == [("withdrawn", new.digest)]
            assert w.core.metrics.registry.get_sample_value("reticent_certificate_age_seconds", unusable) is None
            for result, count in (("loaded", 2), ("withdrawn", 1), ("broken", 0)):
                assert w.metric("reticent_certificate_reloads_total", result=result) == count

    run(story())


def test_a_broken_new_file_leaves_the_old_certificate_in_force_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c.json"

    async def story() -> None:
        held = certificate(facts_for(make_settings(tmp_path)))
        held.save(path)
        async with watched(tmp_path, path) as w:
            text = path.read_text()
            path.write_text(text.replace('"target_risk":0.3', '"target_risk":0.2'))
            await until(lambda: w.metric("reticent_certificate_reloads_total", result="broken") == 1)
            await asyncio.sleep(0.3)
            assert await status(w) == "accepted"
            assert w.metric("reticent_certificate_reloads_total", result="broken") == 1
            assert w.metric("reticent_certificate_file_unusable", certificate="c.json") == 1
            path.write_text(text)
            await until(lambda: w.metric("reticent_certificate_file_unusable", certificate="c.json") == 0)
            assert w.core.gate.certificates[0].digest == held.digest

    with caplog.at_level(logging.ERROR, "reticent"):
        run(story())
    assert sum("stays in force" in record.getMessage() for record in caplog.records) == 1


def test_a_request_in_flight_is_judged_under_one_certificate(tmp_path: Path) -> None:
    path = tmp_path / "c.json"

    async def story() -> None:
        facts = facts_for(make_settings(tmp_path))
        held = [certificate(facts, age=timedelta(days=n), thresholds=(0.2, 0.3 + n / 10, 0.9)) for n in (1, 2, 3)]
        async with watched(tmp_path, path) as w, w.client("lenient") as client:
            held[0].save(path)
            await until(lambda: w.core.gate.certificates != ())
            answers = []
            for turn in range(12):
                held[turn % 3].save(path)
                answers.append((await client.post(CHAT, json=chat_body(user=f"u{turn}"))).json()["reticent"])
                await asyncio.sleep(0.02)
            known = {c.digest: (c.threshold, c.expires_at.isoformat()) for c in held}
            for answer in answers:
                found = answer["certificate"]
                assert (found["threshold"], found["expires_at"]) == known[found["digest"]]
                accepted = answer["score"] >= found["threshold"]
                assert found["status"] == ("accepted" if accepted else "score_below_threshold")

    run(story())


def test_a_certificate_that_expires_while_the_server_runs_accepts_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "c.json"

    async def story() -> None:
        facts = facts_for(make_settings(tmp_path))
        certificate(facts, age=timedelta(days=1), lifetime=timedelta(days=1, seconds=1.5)).save(path)
        async with watched(tmp_path, path) as w:
            assert await status(w) == "accepted"
            await asyncio.sleep(1.6)
            assert await status(w) == "certificate_expired"
            assert [c["status"] for c in await shown(w)] == ["expired"]

    run(story())


def test_sighup_reads_the_files_at_once_in_a_process_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    monkeypatch.setattr(renewal, "_has_terminal", lambda: False)

    async def story() -> None:
        facts = facts_for(make_settings(tmp_path))
        async with watched(tmp_path, path, **{"gate.reload_seconds": 3600}) as w:
            certificate(facts).save(path)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: w.core.gate.certificates != ())
            assert await status(w) == "accepted"

    before = signal.getsignal(signal.SIGHUP)
    run(story())
    assert signal.getsignal(signal.SIGHUP) in (before, signal.SIG_DFL)


def test_with_a_terminal_sighup_keeps_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_has_terminal", lambda: True)

    async def story() -> None:
        async with watched(tmp_path, tmp_path / "c.json"):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL

    run(story())


def test_a_watch_that_ends_by_a_fault_withdraws_everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c.json"

    async def story() -> None:
        certificate(facts_for(make_settings(tmp_path))).save(path)
        async with watched(tmp_path, path) as w:
            assert await status(w) == "accepted"

            def fails(**_: object) -> tuple[tuple[str, str], ...]:
                raise RuntimeError("secret text")

            w.core.renewal.files.refresh = fails  # type: ignore[method-assign]
            await until(lambda: w.core.gate.certificates == ())
            assert await status(w) == "no_certificate"

    with caplog.at_level(logging.CRITICAL, "reticent"):
        run(story())
    told = [record.getMessage() for record in caplog.records]
    assert any("RuntimeError" in text for text in told)
    assert not any("secret" in text for text in told)


def test_what_is_shown_tells_whether_the_certificate_holds_for_this_caller(tmp_path: Path) -> None:
    names = [tmp_path / f"{i}.json" for i in range(5)]

    async def story() -> None:
        settings = make_settings(tmp_path)
        facts = facts_for(settings)
        rule = facts_for(settings, tenant="open", reticent={"rule": "bon", "candidates": 3}, temperature=0.1)
        moved = {**facts, "base_model": {"name": "small", "revision": "2"}}
        made = [
            certificate(facts),
            certificate(facts, age=timedelta(days=2)),
            certificate(rule),
            certificate(moved),
            certificate(facts, age=timedelta(days=9), lifetime=timedelta(days=8)),
        ]
        for path, one in zip(names, made, strict=True):
            one.save(path)
        async with watched(tmp_path, *names) as w:
            by_digest = {c["digest"]: c for c in await shown(w)}
            told = [by_digest[c.digest] for c in made]
            assert [c["status"] for c in told] == ["accepting", "superseded", "mismatch", "mismatch", "expired"]
            assert "selection.rule" in told[2]["differs"]
            assert told[3]["differs"] == ["base_model.revision"]
            assert told[0]["asks"]["selection"] == facts["selection"]
            assert {c["status"] for c in told} <= set(STANDINGS)
            # This tenant may ask for that rule.
            assert {c["digest"]: c["status"] for c in await shown(w, "open")}[made[2].digest] == "accepting"
            for item in told:
                assert "true" not in item["statement"].lower()
                assert not any(value is True for value in item.values())
                for name in (
                    *("loss", "mixture", "target_risk", "min_acceptance", "alpha_risk", "alpha_acceptance"),
                    *("epsilon", "delta", "privacy_unit", "events", "unique_items", "transfer", "calibrated_at"),
                    *("expires_at", "fingerprint_digest", "rule", "failure_probabilities"),
                ):
                    assert name in item, name

    run(story())


def test_a_certificate_made_over_evidence_is_shown_as_accepting_requests_with_evidence(tmp_path: Path) -> None:
    path = tmp_path / "c.json"

    async def story() -> None:
        settings = make_settings(tmp_path)
        evidence: dict[str, Any] = {"reticent": {"evidence": ["The hall has a clock."], "candidates": 2}}
        asks: dict[str, Any] = {**evidence, "temperature": 1.0, "logit_bias": {"7": 1.5}, "stop": ["\n"]}
        certificate(facts_for(settings, **asks)).save(path)
        async with watched(tmp_path, path) as w:
            assert [c["status"] for c in await shown(w)] == ["accepting"]
            assert await status(w, **asks) == "accepted"
            assert await status(w) == "fingerprint_mismatch"

    run(story())


def test_a_file_that_comes_back_broken_after_its_withdrawal_puts_nothing_in_force(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    files = CertificateFiles([path])
    certificate(FACTS).save(path)
    good = path.read_bytes()
    steps: list[tuple[bytes | None, tuple[str, ...], int]] = [
        (good, ("loaded",), 1),
        (b"broken", ("broken",), 1),
        (b"broken", (), 1),
        (None, ("withdrawn",), 0),
        (None, (), 0),
        (b"broken", ("broken",), 0),
        (b"broken", (), 0),
        (b"", ("broken",), 0),
        (good, ("loaded",), 1),
        (None, ("withdrawn",), 0),
        (good, ("loaded",), 1),
        (good, (), 1),
    ]
    for content, events, installed in steps:
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
        assert tuple(event for _, event in files.refresh()) == events
        assert len(files.installed) == installed
        assert len(files.withdrawn) == (1 - installed)


def test_a_file_that_cannot_be_read_for_a_while_withdraws_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    certificate(FACTS).save(path)
    files = CertificateFiles([path])
    files.refresh()
    path.unlink()
    path.mkdir()  # There, and not to be read; the tests may run as root, whom no mode keeps out.
    assert files.refresh() == (("c.json", "broken"),)
    assert len(files.installed) == 1


def test_a_file_that_looks_unchanged_is_not_read_again_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    first, second = certificate(FACTS), certificate(FACTS)
    first.save(path)
    size = path.stat().st_size
    files = CertificateFiles([path])
    files.refresh()
    assert files.files[0].stamp is None, "it was written this very moment: it is read again"
    second.save(path)
    assert path.stat().st_size == size
    assert files.refresh() == (("c.json", "loaded"),)
    assert files.installed[0].digest == second.digest


def test_files_of_one_name_have_labels_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "c.json", tmp_path / "b" / "c.json", tmp_path / "d.json"]
    assert [file.label for file in CertificateFiles(paths).files] == ["c.json#0", "c.json#1", "d.json"]


def test_certificates_that_cannot_be_used_are_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, spoilt, old = tmp_path / "good.json", tmp_path / "spoilt.json", tmp_path / "old.json"
    certificate(FACTS).save(good)
    spoilt.write_text(good.read_text().replace('"target_risk":0.3', '"target_risk":0.2'))
    certificate(FACTS, age=timedelta(days=5), lifetime=timedelta(days=2)).save(old)
    files = CertificateFiles([spoilt, tmp_path / "missing.json", old, good])
    with caplog.at_level(logging.ERROR, "reticent"):
        files.refresh()
    assert [c.digest for c in files.installed] == [Certificate.load(old).digest, Certificate.load(good).digest]
    reported = "\n".join(record.getMessage() for record in caplog.records)
    for name in ("spoilt.json", "missing.json", "old.json"):
        assert name in reported
    assert "good.json" not in reported
    gate = Gate(SelfConsistency(), files.installed, lambda: datetime.now(UTC))
    assert gate.judge(FACTS, 1.0).accepted


def test_the_gate_uses_the_threshold_of_the_requests_subgroup_and_abstains_for_an_uncertified_one(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        changes = {
            "tenants.0.policy": {"subgroups": ["expert", "novice", "press"]},
            "tenants.1.policy.subgroups": ["novice"],
        }
        settings = make_settings(tmp_path, changes)
        made = {
            name: certificate(facts_for(settings, reticent={"subgroup": name}), thresholds=(0.1, line, 0.9))
            for name, line in (("expert", 0.2), ("novice", 0.6))
        }
        marginal = certificate(facts_for(make_settings(tmp_path)))
        async with world(tmp_path, changes, certificates=[*made.values(), marginal]) as w, w.client() as client:
            for name, one in made.items():
                body = (await client.post(CHAT, json=chat_body(reticent={"subgroup": name}))).json()
                found = body["reticent"]["certificate"]
                assert (found["threshold"], found["digest"]) == (one.threshold, one.digest)
                assert body["reticent"]["subgroup"] == name
            assert await status(w, reticent={"subgroup": "press"}) == "fingerprint_mismatch"
            # Leaving it out does not lead to the certificate for all.
            refused = await client.post(CHAT, json=chat_body())
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reticent.subgroup")
            strange = await client.post(CHAT, json=chat_body(reticent={"subgroup": "other"}))
            assert (strange.status_code, strange.json()["error"]["param"]) == (403, "reticent.subgroup")
            # A tenant of one subgroup need not name it; one of none cannot.
            async with w.client("lenient") as one_group:
                body = (await one_group.post(CHAT, json=chat_body())).json()
                assert body["reticent"]["subgroup"] == "novice"
                assert body["reticent"]["certificate"]["digest"] == made["novice"].digest
            async with w.client("open") as none:
                body = (await none.post(CHAT, json=chat_body())).json()
                assert body["reticent"]["certificate"]["digest"] == marginal.digest
                assert "subgroup" not in body["reticent"]
                assert (await none.post(CHAT, json=chat_body(reticent={"subgroup": "novice"}))).status_code == 403
            told = {c["digest"]: c for c in await shown(w)}
            assert [told[c.digest]["status"] for c in made.values()] == ["accepting", "accepting"]
            assert told[marginal.digest]["differs"] == ["subgroup"]
            assert "subgroup expert" in told[made["expert"].digest]["statement"]

    run(story())
