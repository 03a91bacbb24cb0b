"""Alembic's environment: runs on the connection that `postgres_schema` made and locked, in its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table_schema=context.config.attributes["version_schema"],
)
context.run_migrations()
