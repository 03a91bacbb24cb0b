"""A ledger's location is a file or a database; what is missing to open it is named, and its password never."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reticent.accounting import ledger_errors as errors
from reticent.accounting.journal import JournalHead
from reticent.accounting.store import locate

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer


def test_a_location_is_a_file_or_a_database(emptied_postgres_url: str, tmp_path: Path) -> None:
    places: tuple[str | Path, ...] = (tmp_path / "a.db", str(tmp_path / "b.db"), emptied_postgres_url)
    for place in places:
        ledger = locate.open_ledger(place, create=True)
        ledger.open_dataset("d", 2.0, "dp")
        head = ledger.head()
        ledger.close()
        assert locate.verify_ledger(place, head).ok
        assert not locate.verify_ledger(place, JournalHead(head.seq, "1" * 64)).ok
    with pytest.raises(errors.InvalidArgument, match="mysql"):
        locate.open_ledger("mysql://user:secret@host/db")


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.LedgerUnavailable, match=r"reticent\[postgres\]"):
        locate.open_ledger("postgresql:///db")


def test_a_password_is_nowhere_to_be_read(postgres_server: PostgresServer) -> None:
    from reticent.accounting.store.postgres import PostgresLedger
    from reticent.accounting.store.postgres_connect import Address

    secret = "s3cr3t-of-the-ledger"
    ledger_url = postgres_server.url("missing", password=secret)
    broken = f"postgresql://u:{secret}/x@host:{secret}/db"
    for url in (ledger_url, broken):
        with pytest.raises((errors.LedgerUnavailable, errors.InvalidArgument)) as caught:
            PostgresLedger(url)
        assert secret not in "".join(traceback.format_exception(caught.value, chain=True))
        assert secret not in str(locate.verify_ledger(url))
    assert secret not in repr(Address(ledger_url))
    assert Address(ledger_url).without_secrets(f"a {secret} b") == "a *** b"
