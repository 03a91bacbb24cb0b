"""Drills for a ledger: how fast it is (`bench`), and whether it holds while everything around it is killed (`chaos`).

They use the ledger's public protocol and nothing of a store's inside, so both stores are drilled in the same way. An
auditor can run them with this package alone.
"""

__all__: list[str] = []
