"""Operations that a server's sweep asks for: what has outlived its time. Each is a transaction of its own."""

from __future__ import annotations

from dataclasses import dataclass

from reticent.accounting.ledger import Reservation
from reticent.accounting.store.operations import Alone, Forfeit
from reticent.accounting.store.work import UnitOfWork

__all__ = ["EraseExpiredClaims", "ForfeitExpired"]


@dataclass(frozen=True, slots=True)
class ForfeitExpired(Alone):
    """Forfeits at most ``limit``, so that no transaction holds up requests for long."""

    expired_us: int
    limit: int

    def apply(self, work: UnitOfWork, now_us: int) -> tuple[Reservation, ...]:
        late = work.expired(self.expired_us, self.limit)
        return tuple(Forfeit(held.reservation_id, "lease expired").apply(work, now_us) for held in late)


@dataclass(frozen=True, slots=True)
class EraseExpiredClaims(Alone):
    """Erases at most ``limit``. Nothing of the journal or a balance depends on it, so it leaves no entry."""

    expired_us: int
    limit: int

    def apply(self, work: UnitOfWork, now_us: int) -> int:
        return work.erase_expired_claims(self.expired_us, self.limit)
