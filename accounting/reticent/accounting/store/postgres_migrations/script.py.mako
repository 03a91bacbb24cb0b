"""${message}

Never edit a revision that was published: add the next one.
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    op.execute("")
