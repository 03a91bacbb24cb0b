"""A process of its own that uses a ledger file; started by the tests beside it.

hammer PATH NAME CHARGE      reserve and settle CHARGE until the budget is exhausted; print how often it worked
serve PATH NAME LOG SEED     play a server until killed; LOG gets a line, on disk, for every answer released
"""

from __future__ import annotations

import os
import random
import sys

from reticent.accounting.ledger import user_scope
from reticent.accounting.ledger_errors import BudgetExhausted
from reticent.accounting.store import SqliteLedger

USER = user_scope("demo", "acme", "alice")


def hammer(path: str, name: str, charge: int) -> None:
    ledger = SqliteLedger(path)
    count = 0
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        try:
            ledger.reserve(f"{name}-{count}", USER, charge, lease_seconds=600, owner=name)
        except BudgetExhausted:
            break
        ledger.settle(f"{name}-{count}", charge)
        count += 1
    ledger.close()
    print(count)


def serve(path: str, name: str, log: str, seed: int) -> None:
    """Every way a request can go, in an order that the seed decides."""
    rng = random.Random(seed)
    ledger = SqliteLedger(path)
    released = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    print("ready", flush=True)
    for k in range(1_000_000):
        request = f"{name}-{k}"
        way = rng.choice(("settle", "settle", "raise", "release", "drop"))
        ledger.reserve(request, USER, 100, lease_seconds=600, owner=name, scored=way == "settle")
        if way == "release":
            ledger.release(request, owner=name, reason="worker is down")
        elif way != "drop":
            worst = ledger.raise_reservation(request, 150).worst_case if way == "raise" else 100
            charge = rng.randint(0, worst)
            ledger.settle(request, charge)
            os.write(released, f"{request} {charge}\n".encode())
            os.fsync(released)


if __name__ == "__main__":
    if sys.argv[1] == "hammer":
        hammer(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        serve(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
