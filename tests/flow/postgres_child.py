"""A process of its own with many threads on a PostgreSQL ledger; started by `test_ledger_postgres_flow`.

hammer URL NAME CHARGE THREADS   reserve and settle CHARGE until the budget is exhausted; print how often it worked
sweep URL                        forfeit what has expired, again and again, until nothing is open; print how many
"""

from __future__ import annotations

import sys
import threading

from reticent.accounting.ledger import user_scope
from reticent.accounting.ledger_errors import BudgetExhausted
from reticent.accounting.store.postgres import PostgresLedger

USER = user_scope("demo", "acme", "alice")


def hammer(url: str, name: str, charge: int, threads: int) -> None:
    ledger = PostgresLedger(url)
    counts = [0] * threads

    def work(k: int) -> None:
        while True:
            request = f"{name}-{k}-{counts[k]}"
            try:
                ledger.reserve(request, USER, charge, lease_seconds=600, owner=name)
            except BudgetExhausted:
                return
            ledger.settle(request, charge)
            counts[k] += 1

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    print("ready", flush=True)
    sys.stdin.readline()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ledger.close()
    print(sum(counts))


def sweep(url: str) -> None:
    ledger = PostgresLedger(url)
    count = 0
    print("ready", flush=True)
    sys.stdin.readline()
    while ledger.open_reservations():
        count += len(ledger.forfeit_expired())
    ledger.close()
    print(count)


if __name__ == "__main__":
    if sys.argv[1] == "hammer":
        hammer(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        sweep(sys.argv[2])
