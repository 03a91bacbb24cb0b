"""Stores of the ledger. One transaction logic (`operations`), one set of tables a database."""

from reticent.accounting.store.sqlite import SqliteLedger

__all__ = ["SqliteLedger"]
