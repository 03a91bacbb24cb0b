"""A process of its own that uses a ledger file; started by the tests beside it.

hammer PATH NAME CHARGE      reserve and settle CHARGE until the budget is exhausted; print how often it worked
claim PATH NAME COUNT        answer the requests with keys 0 ... COUNT - 1, unless they are; print how many it did
serve PATH NAME LOG SEED     play a server until killed; LOG gets a line, on disk, for every answer released
"""

from __future__ import annotations

import os
import random
import sys

from reticent.accounting.ledger import ClaimRequest, user_scope
from reticent.accounting.ledger_errors import AnswerPending, AnswerRecorded, BudgetExhausted
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


def claim(path: str, name: str, count: int) -> None:
    ledger = SqliteLedger(path)
    print("ready", flush=True)
    sys.stdin.readline()
    answered = 0
    for k in range(count):
        wanted = ClaimRequest(f"key {k}", "0" * 64, 3600.0)
        try:
            ledger.reserve(f"{name}-{k}", USER, 5, lease_seconds=600, owner=name, claim=wanted)
        except (AnswerPending, AnswerRecorded):
            continue
        ledger.settle(f"{name}-{k}", 1, answer=name.encode())
        answered += 1
    ledger.close()
    print(answered)


def serve(path: str, name: str, log: str, seed: int) -> None:
    """Every way a request can go, in an order that the seed decides."""
    rng = random.Random(seed)
    ledger = SqliteLedger(path)
    released = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    print("ready", flush=True)
    for k in range(1_000_000):
        request = f"{name}-{k}"
        way = rng.choice(("settle", "settle", "raise", "release", "drop"))
        wanted = ClaimRequest(request, "0" * 64, 3600.0)
        ledger.reserve(request, USER, 100, lease_seconds=600, owner=name, scored=way == "settle", claim=wanted)
        if way == "release":
            ledger.release(request, owner=name, reason="worker is down")
        elif way != "drop":
            worst = ledger.raise_reservation(request, 150).worst_case if way == "raise" else 100
            charge = rng.randint(0, worst)
            ledger.settle(request, charge, answer=str(charge).encode())
            os.write(released, f"{request} {charge}\n".encode())
            os.fsync(released)


if __name__ == "__main__":
    if sys.argv[1] == "hammer":
        hammer(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1] == "claim":
        claim(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        serve(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
