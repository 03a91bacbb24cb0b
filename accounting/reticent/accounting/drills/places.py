"""Where a drill's ledger lives: a temporary SQLite file, a temporary PostgreSQL server, or a place that is given."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from reticent.accounting.ledger import Ledger, dataset_scope, scope_chain, tenant_scope, user_scope
from reticent.accounting.store.locate import is_postgres, open_ledger

if TYPE_CHECKING:
    from reticent.accounting.drills.temporary_postgres import PostgresServer

__all__ = ["DATASET", "Place", "Store", "drill_place", "new_ledger", "open_scopes"]

Store = Literal["sqlite", "postgresql"]

DATASET: Final = "drill"
_LARGE: Final = 10**17


@dataclass(frozen=True)
class Place:
    """A drill's ledger: its location, a folder on the disk that it writes to (None where that is elsewhere), and the
    server, where the drill has one to itself."""

    location: str
    folder: Path | None
    server: PostgresServer | None = None


@contextlib.contextmanager
def drill_place(
    store: Store, location: str | None, server_settings: Mapping[str, str] | None = None
) -> Iterator[Place]:
    """A place with no ledger in it yet; what is temporary is removed at the end.

    Args:
        store: the kind of ledger.
        location: a file that does not exist yet, or the URL of an empty database; None for a temporary one.
        server_settings: `postgresql.conf` of a temporary server.

    Raises:
        ValueError: `location` is of the other kind, or there is something already.
        PostgresUnavailable: no server can be started.
        LedgerUnavailable: the extra `postgres` is not installed.
    """
    if location is not None:
        if ("://" in location) != (store == "postgresql"):
            raise ValueError(f"not a place for a {store} ledger")
        path = Path(location).absolute() if store == "sqlite" else None
        if path is not None and path.exists():
            raise ValueError(f"{path} exists; a drill makes a ledger of its own")
        yield Place(str(path or location), path.parent if path else None)
    elif store == "postgresql":
        is_postgres("postgresql://")  # says which packages are missing
        from reticent.accounting.drills.temporary_postgres import running_server

        with running_server(settings=server_settings) as server:
            yield Place(server.new_database(), server.folder, server)
    else:
        with tempfile.TemporaryDirectory(prefix="reticent-drill-") as folder:
            yield Place(str(Path(folder) / "ledger.db"), Path(folder))


def open_scopes(ledger: Ledger, users: Mapping[str, int]) -> None:
    """Open the drill's data set and these users' scopes (`tenant/user`), each with its budget, in 1e-9 nat."""
    ledger.open_dataset(DATASET, 2.5, "dp", actor="drill")
    budgets = {dataset_scope(DATASET): _LARGE}
    for name, granted in users.items():
        tenant, user = name.split("/")
        budgets |= {tenant_scope(DATASET, tenant): _LARGE, user_scope(DATASET, tenant, user): granted}
    for scope in sorted(budgets, key=lambda scope: len(scope_chain(scope))):
        granted = budgets[scope]
        ledger.open_scope(scope, epsilon=granted / 1e9, delta=0.01, overhead=0, granted=granted, actor="drill")


def new_ledger(place: Place) -> Ledger:
    """Make the ledger of a place.

    Raises:
        ValueError: a ledger was there already.
    """
    ledger = open_ledger(place.location, create=True)
    if ledger.head().seq > 1:
        ledger.close()
        raise ValueError("there is a ledger already; a drill makes one of its own")
    return ledger
