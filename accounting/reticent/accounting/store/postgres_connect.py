"""Connections of the PostgreSQL store: where the server is, what a session must be, and errors without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from reticent.accounting.ledger_errors import InvalidArgument, LedgerUnavailable

__all__ = ["Address", "Connection", "connection_lost", "store_errors"]

_SCHEMES: Final = ("postgresql://", "postgres://")
_OLDEST: Final = 15
_DEFAULTS: Final = {
    "connect_timeout": "5",
    # A peer that vanished is noticed within a minute.
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "50000",
    "target_session_attrs": "read-write",
    "client_encoding": "UTF8",
}
_MUST_BE_ON: Final = {"fsync": ("on",), "full_page_writes": ("on",), "synchronous_commit": ("on", "remote_apply")}

# Every statement of the ledger finds its rows by an index. A plan that was made while a table was small must not
# read all of it, or join it by hash, when it has grown.
_PLANS: Final = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}

# Shut down by an operator or a crash, not yet up, or ended because it was idle for too long.
_SESSION_OVER: Final = frozenset(("57P01", "57P02", "57P03", "57P05", "25P03"))

Connection = psycopg.Connection[tuple[Any, ...]]


class Address:
    """Where a ledger's database is. It prints without its password, and takes it out of what the server says."""

    def __init__(self, url: str, *, application_name: str = "reticent-ledger") -> None:
        if not url.startswith(_SCHEMES):
            raise InvalidArgument("url", "postgresql://[user[:password]@][host][:port]/database")
        try:
            found = conninfo_to_dict(url)
        except psycopg.Error:  # what it says quotes parts of the URL, perhaps of a password with a / in it
            raise InvalidArgument("url", "a PostgreSQL URL, with special characters percent-encoded") from None
        self.url = url
        self._parameters: dict[str, Any] = {**_DEFAULTS, "application_name": application_name, **found}

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        given = self._parameters
        port = f":{given['port']}" if "port" in given else ""
        return f"postgresql://{given.get('host', '')}{port}/{given.get('dbname', '')}"

    def without_secrets(self, text: str) -> str:
        for name in ("password", "sslpassword"):
            secret = str(self._parameters.get(name) or "")
            if secret:
                text = text.replace(secret, "***")
        return text

    def connect(self) -> Connection:
        """A bare connection in autocommit mode; errors of psycopg pass through."""
        return psycopg.connect(make_conninfo(**self._parameters), autocommit=True)

    def session(self, schema: str, settings: dict[str, str]) -> Connection:
        """A connection that is fit for the ledger, with names looked up in `schema`; `LedgerUnavailable` if it isn't.

        A server that does not write a commit to its disk before it says so is refused, as is one that is too old.
        """
        connection = self.connect()
        try:
            _refuse_unfit(connection)
            for name, value in {"search_path": f"{schema}, pg_temp", **_PLANS, **settings}.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        except BaseException:
            connection.close()
            raise
        return connection


def _refuse_unfit(connection: Connection) -> None:
    major = connection.info.server_version // 10_000
    if major < _OLDEST:
        raise LedgerUnavailable(f"PostgreSQL {major} is too old, {_OLDEST} or newer is needed", "nothing_written")
    for name, allowed in _MUST_BE_ON.items():
        value = connection.execute("SELECT current_setting(%s)", (name,)).fetchall()[0][0]
        if value not in allowed:
            text = f"{name} is {value}: an answer could leave whose settlement a crash undoes"
            raise LedgerUnavailable(text, "nothing_written")


def connection_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Whether the session is over, so that what it had begun is over too, or will be soon."""
    return connection.closed or error.sqlstate in _SESSION_OVER


@contextmanager
def store_errors(address: Address) -> Iterator[None]:
    """Errors of the database become `LedgerUnavailable`, without what the server quotes of rows, or a password.

    Before a COMMIT is sent, and where the server has refused one, nothing was written.
    """
    try:
        yield
    except psycopg.Error as error:
        text = error.diag.message_primary or str(error).partition("\n")[0]
        told = address.without_secrets(f"{type(error).__name__}: {text}")
        raise LedgerUnavailable(told, "nothing_written") from None
