"""`reticent ledger`: what a privacy officer does with the ledger: read it, verify it, grant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from reticent.accounting.audit import verify as verify_journal
from reticent.accounting.ledger_errors import LedgerError
from reticent.accounting.store.sqlite import SqliteLedger
from reticent.accounting.units import to_nano_rounded_down
from reticent.plugin.cli.common import fail

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Budgets and the journal of charges.")

LedgerPath = Annotated[Path, typer.Argument(help="The ledger's file.")]


@app.command("create")
def create(path: LedgerPath) -> None:
    """Make an empty ledger; refuse where a file stands already."""
    if path.exists():
        raise fail(f"{path} exists; nothing was done")
    path.parent.mkdir(parents=True, exist_ok=True)
    SqliteLedger(path, create=True).close()
    typer.echo(f"{path}: made. Keep it, and its backups, as long as the data sets that it accounts for.")


@app.command("show")
def show(path: LedgerPath) -> None:
    """Every scope's account: its ε with all grants, and what of it is spent, held by open requests, and left.

    `lost` counts reservations that were forfeited at their worst case.
    """
    table = Table(title=f"{path} (nats at the data set's order)", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("scope", overflow="fold", min_width=16)
    for name in ("ε", "granted", "spent", "held", "left", "answers", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    ledger = _open(path)
    for s in ledger.list_scopes():
        amounts = (f"{value / 1e9:.4f}" for value in (s.granted, s.spent, s.reserved, s.remaining))
        table.add_row(s.scope_id, f"{s.guaranteed / 1e9:g}", *amounts, str(s.settled), str(s.forfeited))
    ledger.close()
    Console().print(table)


@app.command("verify")
def verify(
    path: LedgerPath,
    anchor: Annotated[
        str | None,
        typer.Option(help="SEQ:HASH of an earlier last entry, kept elsewhere: shows a cut or rewritten end."),
    ] = None,
) -> None:
    """Recompute every balance from the journal with independent code; exit 1 on any finding."""
    report = verify_journal(path, anchor=_anchor(anchor))
    for finding in report.findings:
        typer.echo(f"FINDING {finding.where}: {finding.what}")
    if report.findings:
        raise typer.Exit(1)
    typer.echo(f"{path}: {report.seq} journal entries, {report.scopes} scopes: every balance agrees")
    typer.echo(f"anchor {report.seq}:{report.hash}")


@app.command("grant")
def grant(
    path: LedgerPath,
    scope: Annotated[str, typer.Argument(help="Scope id, as `show` prints it.")],
    nats: Annotated[float, typer.Argument(help="What to add, in nats; it raises the scope's ε by as much, for ever.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the journal.")],
    actor: Annotated[str, typer.Option(help="Who grants it; kept in the journal.")],
) -> None:
    """Add to a budget. The guarantee that is shown from then on is the sum."""
    ledger = _open(path)
    try:
        statement = ledger.grant(scope, to_nano_rounded_down(nats), reason=reason, actor=actor)
    except (LedgerError, ValueError) as error:
        raise fail(str(error)) from None
    finally:
        ledger.close()
    typer.echo(
        f"{scope}: remaining {statement.remaining / 1e9:.6f} nats, guarantee now ε = {statement.guaranteed / 1e9:.6f}"
    )


def _anchor(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    seq, _, digest = text.partition(":")
    if not seq.isdigit() or len(digest) != 64:
        raise fail("an anchor is SEQ:HASH, as `verify` prints it")
    return int(seq), digest


def _open(path: Path) -> SqliteLedger:
    try:
        return SqliteLedger(path)
    except (LedgerError, OSError) as error:
        raise fail(str(error)) from None
