"""`reticent ledger`: what a privacy officer does with the ledger: read it, verify it, grant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from reticent.accounting.ledger import JournalHead, Ledger, Statement
from reticent.accounting.ledger_errors import LedgerError, LedgerMissing
from reticent.accounting.store.locate import is_postgres, open_ledger, verify_ledger
from reticent.accounting.units import to_nano_rounded_down
from reticent.plugin.cli.common import LedgerLocation, fail
from reticent.plugin.cli.ledger_drills import bench, chaos
from reticent.plugin.cli.ledger_log import log
from reticent.plugin.location import without_password

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Budgets and the journal of charges.")


@app.command("create")
def create(location: LedgerLocation) -> None:
    """Make an empty ledger; refuse where a file, or a ledger in the database, stands already."""
    name = without_password(location)
    if not _is_database(location):
        path = Path(location)
        if path.exists():
            raise fail(f"{path} exists; nothing was done")
        path.parent.mkdir(parents=True, exist_ok=True)
    elif _is_there(location):
        raise fail(f"{name} holds a ledger; nothing was done")
    _open(location, create=True).close()
    typer.echo(f"{name}: made. Keep it, and its backups, as long as the data sets that it accounts for.")


def _is_database(location: str) -> bool:
    """Whether it names a PostgreSQL database; an end with a message where it names what no ledger can be in."""
    try:
        return is_postgres(location)
    except LedgerError as error:
        raise fail(str(error)) from None


@app.command("show")
def show(location: LedgerLocation) -> None:
    """Every scope's account: its ε with all grants, and what of it is spent, held by open requests, and left.

    `lost` counts reservations that were forfeited at their worst case. An ε in brackets bounds nothing any more; the
    lines below say why.
    """
    ledger = _open(location)
    try:
        statements = ledger.list_scopes()
    except LedgerError as error:
        raise fail(str(error)) from None
    finally:
        ledger.close()
    title = f"{without_password(location)} (nats at the data set's order)"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("scope", overflow="fold", min_width=16)
    for name in ("ε", "granted", "spent", "held", "left", "answers", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for s in statements:
        amounts = (f"{value / 1e9:.4f}" for value in (s.granted, s.spent, s.reserved, s.remaining))
        epsilon = f"{s.guaranteed / 1e9:g}"
        table.add_row(s.scope_id, f"({epsilon})" if s.void else epsilon, *amounts, str(s.settled), str(s.forfeited))
    Console().print(table)
    for s in statements:
        if s.void:
            typer.echo(_void(s))


def _void(s: Statement) -> str:
    answers = "1 answer was" if s.unprotected == 1 else f"{s.unprotected} answers were"
    return f"VOID {s.scope_id}: {answers} chosen by rewards without noise. Its ε bounds nothing, for ever."


@app.command("verify")
def verify(
    location: LedgerLocation,
    anchor: Annotated[
        str | None,
        typer.Option(help="SEQ:HASH of an earlier last entry, kept elsewhere: shows a cut or rewritten end."),
    ] = None,
) -> None:
    """Recompute every balance from the journal with independent code; exit 1 on any finding."""
    try:
        report = verify_ledger(location, _anchor(anchor))
    except LedgerError as error:
        raise fail(str(error)) from None
    for finding in report.findings:
        typer.echo(f"FINDING {finding.where}: {finding.what}")
    if report.findings:
        raise typer.Exit(1)
    typer.echo(
        f"{without_password(location)}: {report.seq} journal entries, {report.scopes} scopes: every balance agrees"
    )
    typer.echo(f"anchor {report.seq}:{report.hash}")


@app.command("grant")
def grant(
    location: LedgerLocation,
    scope: Annotated[str, typer.Argument(help="Scope id, as `show` prints it.")],
    nats: Annotated[float, typer.Argument(help="What to add, in nats; it raises the scope's ε by as much, for ever.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the journal.")],
    actor: Annotated[str, typer.Option(help="Who grants it; kept in the journal.")],
) -> None:
    """Add to a budget. The guarantee that is shown from then on is the sum."""
    ledger = _open(location)
    try:
        statement = ledger.grant(scope, to_nano_rounded_down(nats), reason=reason, actor=actor)
    except (LedgerError, ValueError) as error:
        raise fail(str(error)) from None
    finally:
        ledger.close()
    typer.echo(
        f"{scope}: remaining {statement.remaining / 1e9:.6f} nats, guarantee now ε = {statement.guaranteed / 1e9:.6f}"
    )
    if statement.void:
        typer.echo(_void(statement))


app.command("log")(log)
app.command("bench")(bench)
app.command("chaos")(chaos)


def _anchor(text: str | None) -> JournalHead | None:
    if text is None:
        return None
    seq, _, digest = text.partition(":")
    if not seq.isdigit() or len(digest) != 64:
        raise fail("an anchor is SEQ:HASH, as `verify` prints it")
    return JournalHead(int(seq), digest)


def _is_there(location: str) -> bool:
    try:
        open_ledger(location).close()
    except LedgerMissing:
        return False
    except (LedgerError, OSError) as error:
        raise fail(str(error)) from None
    return True


def _open(location: str, *, create: bool = False) -> Ledger:
    try:
        return open_ledger(location, create=create)
    except (LedgerError, OSError) as error:
        raise fail(str(error)) from None
