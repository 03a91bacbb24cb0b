"""The auditor finds every altered row, and what an honest ledger could not have written."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from reticent.accounting.audit import Report, verify
from reticent.accounting.journal import GENESIS, canonical, entry_hash
from reticent.accounting.ledger import ClaimRequest, dataset_scope, tenant_scope, user_scope
from reticent.accounting.store import SqliteLedger

USER = user_scope("d", "a", "u")
TABLES = ("journal", "datasets", "scopes", "reservations")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger with an entry of every kind and a reservation in every state."""
    path = tmp_path_factory.mktemp("audit") / "ledger.db"
    ledger = SqliteLedger(path, create=True)
    ledger.open_dataset("d", 2.5, "dp")
    for scope in (dataset_scope("d"), tenant_scope("d", "a"), USER):
        ledger.open_scope(scope, epsilon=1.0, delta=1e-6, overhead=7, granted=1000)
    ledger.grant(USER, 10, reason="more", actor="officer")
    for name in ("settled", "released", "forfeited", "open"):
        facts: dict[str, str | int | float] = {"rule": "privbon", "sigma": 0.1}
        claim = ClaimRequest(name, "d" * 64, 60.0) if name in ("settled", "open") else None
        ledger.reserve(name, USER, 100, lease_seconds=60, owner="o", details=facts, claim=claim)
    ledger.raise_reservation("settled", 120)
    ledger.settle("settled", 30, unprotected=True, answer=b"content")
    ledger.release("released", owner="o", reason="worker is down")
    ledger.mark_scored("forfeited")
    ledger.forfeit("forfeited", reason="worker died")
    ledger.extend_lease("open", 120)
    ledger.close()
    assert verify(path).findings == ()
    return path


def edit(path: Path, *statements: str, bindings: tuple[object, ...] = ()) -> None:
    """Change the file as somebody could who owns it: triggers, checks and foreign keys out of the way."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF; PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")
    connection.execute("BEGIN")
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement, bindings)
        assert connection.changes() > 0, statement
    connection.execute("COMMIT")
    connection.close()


def tampered(original: Path, tmp_path: Path, *statements: str, bindings: tuple[object, ...] = ()) -> Report:
    path = tmp_path / "copy.db"
    shutil.copy(original, path)
    edit(path, *statements, bindings=bindings)
    return verify(path)


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(connection.execute(sql).fetchall())
    finally:
        connection.close()


def another(value: object) -> object:
    """A value of the same type that differs as little as possible."""
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1)
    if isinstance(value, float):
        return value * (1 + 2**-52)
    return 1 if value is None else int(str(value)) + 1


@pytest.mark.parametrize("table", TABLES)
def test_a_change_of_any_value_of_any_row_is_found(original: Path, tmp_path: Path, table: str) -> None:
    columns = [row[1] for row in rows(original, f"PRAGMA table_info({table})")]
    missed = []
    for rowid, *values in rows(original, f"SELECT rowid, * FROM {table}"):
        for column, value in zip(columns, values, strict=True):
            new = another(value)
            if (column, value) == ("parent", None):
                new = "x"
            elif column == "seq":
                new = -value  # the next number is taken
            statement = f"UPDATE {table} SET {column} = ? WHERE rowid = {rowid}"
            if tampered(original, tmp_path, statement, bindings=(new,)).ok:
                missed.append((rowid, column))
    assert missed == []


@pytest.mark.parametrize("table", TABLES)
def test_a_row_removed_or_added_is_found(original: Path, tmp_path: Path, table: str) -> None:
    # The journal's last entry here prolonged a lease: also its loss shows in the tables.
    for (rowid,) in rows(original, f"SELECT rowid FROM {table}"):
        assert not tampered(original, tmp_path, f"DELETE FROM {table} WHERE rowid = {rowid}").ok
    key = {"journal": "seq", "datasets": "dataset_id", "scopes": "scope_id", "reservations": "reservation_id"}[table]
    columns = [row[1] for row in rows(original, f"PRAGMA table_info({table})")]
    values = ", ".join("99" if c == key == "seq" else "'x'" if c == key else c for c in columns)
    assert not tampered(original, tmp_path, f"INSERT INTO {table} SELECT {values} FROM {table} LIMIT 1").ok


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            "UPDATE claims SET answer = x'00' WHERE reservation_id = 'open'",
            "has an answer, and reservation 'open' is open",
        ),
        ("UPDATE claims SET claim_id = request_digest WHERE reservation_id = 'open'", "the journal says None"),
        ("UPDATE claims SET reservation_id = 'forfeited' WHERE reservation_id = 'open'", "the journal says 'open'"),
        ("UPDATE claims SET claim_id = 'x' || substr(claim_id, 2) WHERE reservation_id = 'open'", "SHA-256"),
        ("UPDATE claims SET request_digest = upper(request_digest)", "SHA-256"),
        (f"INSERT INTO claims VALUES ('{'e' * 64}', '{'d' * 64}', 'forfeited', NULL, 1)", "the journal says None"),
    ],
)
def test_a_claim_that_was_not_made_or_not_paid_for_is_found(
    original: Path, tmp_path: Path, statement: str, says: str
) -> None:
    assert any(says in finding.what for finding in tampered(original, tmp_path, statement).findings)


def test_an_erased_claim_and_another_answer_are_no_findings(original: Path, tmp_path: Path) -> None:
    """Answers are content, erased in time; the journal knows neither."""
    assert tampered(original, tmp_path, "DELETE FROM claims WHERE reservation_id = 'settled'").ok
    assert tampered(original, tmp_path, "UPDATE claims SET answer = x'00' WHERE reservation_id = 'settled'").ok


def test_two_rows_that_swapped_places_are_found(original: Path, tmp_path: Path) -> None:
    swap = ("UPDATE journal SET seq = -seq WHERE seq IN (6, 7)", "UPDATE journal SET seq = 13 + seq WHERE seq < 0")
    assert not tampered(original, tmp_path, *swap).ok


def test_an_entry_that_got_a_fitting_hash_is_found_by_the_next_one(original: Path, tmp_path: Path) -> None:
    """A grant's reason is in no table: only the link of the entry after it can tell."""
    ((seq, time_us, payload, previous),) = rows(
        original, "SELECT seq, time_us, payload, previous FROM journal WHERE kind = 'granted'"
    )
    new = payload.replace("more", "less")
    digest = entry_hash(seq, time_us, "granted", previous, new)
    change = f"UPDATE journal SET payload = ?, hash = ? WHERE seq = {seq}"
    report = tampered(original, tmp_path, change, bindings=(new, digest))
    assert [finding.where for finding in report.findings] == [f"journal {seq + 1}"]


def rewritten(original: Path, tmp_path: Path, change: Callable[[list[list[Any]]], None], *more: str) -> Report:
    """Change entries ([time_us, kind, payload as dict]) and forge all positions, links and hashes to fit."""
    path = tmp_path / "copy.db"
    shutil.copy(original, path)
    entries = [
        [time_us, kind, json.loads(payload)]
        for time_us, kind, payload in rows(path, "SELECT time_us, kind, payload FROM journal ORDER BY seq")
    ]
    change(entries)
    edit(path, "DELETE FROM journal")
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN")
    previous = GENESIS
    for seq, (time_us, kind, payload) in enumerate(entries, 1):
        text = payload if isinstance(payload, str) else canonical(payload)
        digest = entry_hash(seq, time_us, kind, previous, text)
        connection.execute("INSERT INTO journal VALUES (?,?,?,?,?,?)", (seq, time_us, kind, text, previous, digest))
        previous = digest
    for statement in more:
        connection.execute(statement)
    connection.execute("COMMIT")
    connection.close()
    return verify(path)


def of_kind(entries: list[list[Any]], kind: str, name: str | None = None) -> list[Any]:
    return next(e for e in entries if e[1] == kind and name in (None, e[2].get("reservation")))


def test_a_forged_chain_with_honest_content_passes_only_without_an_anchor(original: Path, tmp_path: Path) -> None:
    honest = verify(original)

    def less_charged(entries: list[list[Any]]) -> None:
        of_kind(entries, "settled")[2]["charge"] = 29

    assert not rewritten(original, tmp_path, less_charged).ok
    forged = rewritten(
        original,
        tmp_path,
        less_charged,
        "UPDATE scopes SET spent = spent - 1",
        "UPDATE reservations SET charge = 29 WHERE reservation_id = 'settled'",
    )
    assert forged.ok
    assert forged.hash != honest.hash
    anchored = verify(tmp_path / "copy.db", anchor=(honest.seq, honest.hash))
    assert [f.where for f in anchored.findings] == ["journal"]
    assert verify(original, anchor=(honest.seq, honest.hash)).ok


def test_a_journal_that_lost_its_end_is_found_with_an_anchor(original: Path, tmp_path: Path) -> None:
    honest = verify(original)
    last = "UPDATE reservations SET expires_us = (SELECT time_us FROM journal WHERE seq = opened_seq) + 60000000"
    report = rewritten(original, tmp_path, lambda entries: entries.__delitem__(-1), f"{last} WHERE state = 'open'")
    assert report.ok
    assert not verify(tmp_path / "copy.db", anchor=(honest.seq, honest.hash)).ok


def _set(kind: str, name: str | None, field: str, value: object) -> Callable[[list[list[Any]]], None]:
    def change(entries: list[list[Any]]) -> None:
        of_kind(entries, kind, name)[2][field] = value

    return change


def _claim_of(name: str, other: str) -> Callable[[list[list[Any]]], None]:
    """`other`, made before `name`, is made for the same claim."""

    def change(entries: list[list[Any]]) -> None:
        of_kind(entries, "reserved", other)[2]["claim"] = of_kind(entries, "reserved", name)[2]["claim"]

    return change


def _again(kind: str) -> Callable[[list[list[Any]]], None]:
    return lambda entries: entries.append(of_kind(entries, kind))


def _text(text: str) -> Callable[[list[list[Any]]], None]:
    def change(entries: list[list[Any]]) -> None:
        of_kind(entries, "released")[2] = text

    return change


def _new(kind: str, **payload: object) -> Callable[[list[list[Any]]], None]:
    return lambda entries: entries.append([1, kind, payload])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("reserved", "open", "worst_case", 1001), "overspent"),
        (_set("raised", None, "worst_case", 5000), "overspent"),
        (_set("raised", None, "worst_case", 99), "a raise that lowers"),
        (_set("settled", None, "charge", 121), "held 120, was charged 121"),
        (_set("forfeited", None, "charge", 99), "another amount"),
        (_set("reserved", "released", "scored", True), "released although"),
        (_set("reserved", "open", "scopes", [USER, "dataset:d"]), "not one chain"),
        (_set("reserved", "open", "scopes", []), "in no scope"),
        (_set("reserved", "open", "scopes", [[]]), "unknown scope"),
        (_set("lease_extended", None, "expires_us", 0), "shortened"),
        (_set("granted", None, "amount", 0), "grant of nothing"),
        (_set("granted", None, "amount", -1), "out of range"),
        (_set("granted", None, "amount", 1.0), "not a int"),
        (_set("granted", None, "amount", True), "not a int"),
        (_set("granted", None, "extra", 1), "fields"),
        (_set("dataset_opened", None, "order", "1.0"), "above 1"),
        (_set("dataset_opened", None, "order", "2.50"), "above 1"),
        (_set("dataset_opened", None, "order", "two"), "not a number"),
        (_set("dataset_opened", None, "guarantee", "pure"), "unknown guarantee"),
        (_set("scope_opened", None, "delta", 0.0), "out of range"),
        (_set("scope_opened", None, "scope", "planet:d"), "not the id"),
        (_set("scope_opened", None, "scope", "tenant:d/z/y"), "not the id"),
        (_set("settled", None, "unprotected", False), "not true"),
        (_set("settled", None, "unprotected", 1), "not a bool"),
        (_set("released", None, "unprotected", True), "fields"),
        (_set("reserved", "open", "claim", "A" * 64), "not a SHA-256"),
        (_set("reserved", "open", "claim", 1), "not a SHA-256"),
        (_set("reserved", "open", "claim", None), "not a SHA-256"),
        (_claim_of("open", "forfeited"), "held by an open reservation"),
        (_again("settled"), "was settled before"),
        (_again("reserved"), "made twice"),
        (_again("scope_opened"), "opened twice"),
        (_again("dataset_opened"), "opened twice"),
        (_again("ledger_created"), "entry 1"),
        (_new("refunded", reservation="settled"), "unknown kind"),
        (_new("scored", reservation="nobody"), "unknown reservation"),
        (_text('{"reservation": "released","reason":"x"}'), "canonical"),
        (_text('{"reason":"x","reason":"y","reservation":"released"}'), "canonical"),
        (_text("[1]"), "canonical"),
        (_text('{"reason":NaN,"reservation":"released"}'), "not JSON"),
        (_text("{"), "not JSON"),
    ],
)
def test_what_a_sound_ledger_cannot_have_written_is_found(
    original: Path, tmp_path: Path, change: Callable[[list[list[Any]]], None], says: str
) -> None:
    report = rewritten(original, tmp_path, change)
    assert any(says in finding.what for finding in report.findings), report.findings


def test_a_file_that_is_no_ledger_is_a_finding_and_stays_as_it_is(tmp_path: Path) -> None:
    assert not verify(tmp_path / "missing.db").ok
    assert not (tmp_path / "missing.db").exists()
    for content in (b"", b"not a database" * 100):
        path = tmp_path / "odd.db"
        path.write_bytes(content)
        assert not verify(path).ok
        assert path.read_bytes() == content


@pytest.mark.parametrize("pragma", ["user_version = 0", "user_version = 9", "application_id = 0"])
def test_a_changed_file_header_is_found(original: Path, tmp_path: Path, pragma: str) -> None:
    path = tmp_path / "copy.db"
    shutil.copy(original, path)
    apsw.Connection(str(path)).execute(f"PRAGMA {pragma}")
    assert not verify(path).ok


def test_the_hash_is_that_of_the_documented_text() -> None:
    """By hand, from the docstring of `journal`."""
    payload = '{"a":0.1,"b":"\\u00e9"}'
    assert canonical({"b": "é", "a": 0.1}) == payload
    text = b"reticent-journal-1\n7\n1700000000000000\ngranted\n" + b"0" * 64 + b"\n" + payload.encode()
    assert entry_hash(7, 1_700_000_000_000_000, "granted", GENESIS, payload) == hashlib.sha256(text).hexdigest()
