"""Servers that are wrong, for the chaos drill to find: `python ledger_chaos_twins.py hasty|cheap|careless`."""

from __future__ import annotations

import sys

from reticent.accounting.drills.chaos_worker import Worker, main
from reticent.accounting.ledger import ClaimRequest


class Hasty(Worker):
    """Answers first, and settles then."""

    def finish(self, request: str, charge: int, claim: ClaimRequest | None) -> None:
        self.answer(request, charge, claim)
        self.settle(request, charge, claim)


class Cheap(Worker):
    """Settles for less than the answer cost."""

    def settle(self, request: str, charge: int, claim: ClaimRequest | None) -> bool:
        return super().settle(request, max(0, charge - 1), claim)


class Careless(Worker):
    """Answers also what was forfeited meanwhile."""

    def finish(self, request: str, charge: int, claim: ClaimRequest | None) -> None:
        if self._draw.random() < 0.5:
            self._ledger.forfeit(request, reason="the lease ended")
        try:
            self.settle(request, charge, claim)
        finally:
            self.answer(request, charge, claim)


if __name__ == "__main__":
    main({"hasty": Hasty, "cheap": Cheap, "careless": Careless}[sys.argv[1]])
