"""Alembic's migrations of the PostgreSQL store, which `postgres_schema` applies: users neither call nor configure it.

Revisions are numbered "0001", "0002", ...; one that was published is never edited. Every statement must work in
whatever schema comes first in the search path: the schema check builds a model of the ledger among temporary tables.

SQLite has numbered SQL files instead (`migrate`): it is what a single machine uses, its schema changes need rebuilt
tables that Alembic's operations do not describe better than SQL does, and neither Alembic nor SQLAlchemy is among the
base dependencies. A test compares both stores' columns.
"""

__all__: list[str] = []
