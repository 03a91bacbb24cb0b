"""The PostgreSQL store's schema: made and upgraded by Alembic, and compared with what the migrations make.

All of it is in the schema `reticent` of the database, so that a ledger can live beside other tables, and "is this
a ledger?" has an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from alembic import command
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from reticent.accounting.ledger_errors import LedgerDamaged, LedgerMissing, NotALedger, SchemaTooNew

__all__ = ["SCHEMA", "prepare_schema"]

SCHEMA: Final = "reticent"
_MIGRATIONS: Final = Path(__file__).with_name("postgres_migrations")
_THREADS: Final = threading.Lock()
_LOCK: Final = int.from_bytes(b"reticent", "big")  # of an advisory lock: one process migrates at a time

_CATALOG: Final = """
SELECT 'column', c.relname, a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), k.collname)
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN pg_collation k ON k.oid = a.attcollation
 WHERE c.relnamespace = %(schema)s AND c.relkind <> 'i'
UNION ALL
SELECT 'table', relname, relkind::text, concat_ws(' ', relrowsecurity, relhasrules)
  FROM pg_class WHERE relnamespace = %(schema)s AND relkind <> 'i'
UNION ALL
SELECT 'constraint', c.relname, n.conname, pg_get_constraintdef(n.oid)
  FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
 WHERE c.relnamespace = %(schema)s AND n.contype <> 'n'
UNION ALL
SELECT 'index', c.relname, i.relname, concat_ws(' ', x.indisvalid, pg_get_indexdef(i.oid))
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
 WHERE c.relnamespace = %(schema)s
UNION ALL
SELECT 'trigger', c.relname, CASE WHEN t.tgisinternal THEN p.proname || ' ' || n.conname ELSE t.tgname END,
       concat_ws(' ', t.tgenabled, CASE WHEN NOT t.tgisinternal THEN pg_get_triggerdef(t.oid) END)
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
  LEFT JOIN pg_constraint n ON n.oid = t.tgconstraint
 WHERE c.relnamespace = %(schema)s
UNION ALL
SELECT 'function', proname, pg_get_function_identity_arguments(oid), concat_ws(' ', prosecdef, prosrc)
  FROM pg_proc WHERE pronamespace = %(schema)s
"""

_VERSION_TABLE: Final = "alembic_version"
_DIALECT: Final = "postgresql+psycopg://"

Thing = tuple[str, str, str, str]


def prepare_schema(connect: Callable[[], psycopg.Connection[Any]], *, create: bool) -> None:
    """Bring the database to this version's schema and check it, on a connection of its own, which is closed.

    `LedgerMissing` for a database without a ledger unless `create`; `NotALedger`, `SchemaTooNew`, `LedgerDamaged`.
    Processes that start at the same time do this one after the other, and so do threads: Alembic's operations go to
    whichever connection the process named last.
    """
    raw = connect()
    try:
        raw.autocommit = False
        with (
            _THREADS,
            _unwrapped(),
            create_engine(_DIALECT, creator=lambda: raw, poolclass=NullPool).connect() as connection,
        ):
            _prepare(connection, create=create)
    finally:
        raw.close()


@contextmanager
def _unwrapped() -> Iterator[None]:
    """SQLAlchemy's errors carry statements; those of psycopg, which they wrap, do not."""
    try:
        yield
    except DBAPIError as error:
        raise error.orig if isinstance(error.orig, psycopg.Error) else error from None


def _prepare(connection: Connection, *, create: bool) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    with connection.begin():
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        _migrate(connection, config, script, create=create)
    with connection.begin() as trial:
        _check(connection, script)
        trial.rollback()


def _migrate(connection: Connection, config: Config, script: ScriptDirectory, *, create: bool) -> None:
    found = _version(connection)
    head = script.get_current_head()
    if found is None:
        _begin_schema(connection, create=create)
    elif found not in {revision.revision for revision in script.walk_revisions()}:
        if found.isdecimal() and int(found) > int(str(head)):
            raise SchemaTooNew(int(found), int(str(head)))
        raise LedgerDamaged(f"unknown schema version {found!r}")
    if found != head:
        config.attributes.update(connection=connection, version_schema=SCHEMA)
        command.upgrade(config, "head")


def _version(connection: Connection) -> str | None:
    if connection.exec_driver_sql(f"SELECT to_regclass('{SCHEMA}.{_VERSION_TABLE}')").scalar() is None:
        return None
    rows = connection.exec_driver_sql(f"SELECT version_num FROM {SCHEMA}.{_VERSION_TABLE}").scalars().all()  # noqa: S608
    if len(rows) != 1:
        raise LedgerDamaged(f"{len(rows)} schema versions instead of one")
    return str(rows[0])


def _begin_schema(connection: Connection, *, create: bool) -> None:
    exists = connection.exec_driver_sql(f"SELECT to_regnamespace('{SCHEMA}')").scalar()
    if exists is not None:
        parts = "SELECT relname FROM pg_class WHERE relnamespace = %(s)s UNION SELECT proname FROM pg_proc"
        if connection.exec_driver_sql(f"{parts} WHERE pronamespace = %(s)s", {"s": _oid(connection, SCHEMA)}).first():
            raise NotALedger(f"the database has a schema {SCHEMA!r} of something else")
    if not create:
        raise LedgerMissing("the database holds no ledger; a new one is made only on request")
    if exists is None:
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")


def _oid(connection: Connection, schema: str) -> int:
    return int(connection.exec_driver_sql("SELECT oid FROM pg_namespace WHERE nspname = %s", (schema,)).scalar_one())


def _things(connection: Connection) -> set[Thing]:
    """What the first schema of the search path holds, without its name."""
    schema = str(connection.exec_driver_sql("SELECT current_schema()").scalar_one())
    rows = connection.exec_driver_sql(_CATALOG, {"schema": _oid(connection, schema)})
    found = {(str(a), str(b), str(c), str(d).replace(f"{schema}.", "").replace("pg_temp.", "")) for a, b, c, d in rows}
    return {thing for thing in found if thing[1] != _VERSION_TABLE}


def _check(connection: Connection, script: ScriptDirectory) -> None:
    """`LedgerDamaged` if anything is missing, changed or added: a backstop may be gone.

    The model is made by the same migrations among this session's temporary tables, and rolled back by the caller: so
    both are described by the same server, and no other version's wording can be mistaken for a change.
    """
    real = _things(connection)
    connection.exec_driver_sql("SET LOCAL search_path = pg_temp")
    with Operations.context(MigrationContext.configure(connection)):
        for revision in reversed(list(script.walk_revisions())):
            revision.module.upgrade()
    differing = real ^ _things(connection)
    if differing:
        names = sorted({f"{kind} {table} {name}".strip() for kind, table, name, _ in differing})
        raise LedgerDamaged(f"not as the migrations made it: {', '.join(names)}")
    connection.exec_driver_sql(f"SET LOCAL search_path = {SCHEMA}")
    if connection.exec_driver_sql("SELECT count(*) FROM journal_head").scalar() != 1:
        raise LedgerDamaged("the journal has no head")
