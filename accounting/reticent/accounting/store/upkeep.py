"""Operations that a server's sweep asks for: what has outlived its time. Each is a transaction of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reticent.accounting.ledger import Reservation
from reticent.accounting.store.operations import Forfeit
from reticent.accounting.store.rows import Wanted
from reticent.accounting.store.work import UnitOfWork

__all__ = ["EraseExpiredClaims", "ForfeitExpired"]


@dataclass(frozen=True, slots=True)
class ForfeitExpired:
    """Forfeits at most ``limit``, so that no transaction holds up requests for long."""

    alone: ClassVar[bool] = True
    content: ClassVar[int] = 0
    expired_us: int
    limit: int

    def foresee(self, wanted: Wanted) -> None:
        pass

    def apply(self, work: UnitOfWork, now_us: int) -> tuple[Reservation, ...]:
        late = work.expired(self.expired_us, self.limit)
        return tuple(Forfeit(held.reservation_id, "lease expired").apply(work, now_us) for held in late)


@dataclass(frozen=True, slots=True)
class EraseExpiredClaims:
    """Erases at most ``limit``. Nothing of the journal or a balance depends on it, so it leaves no entry."""

    alone: ClassVar[bool] = True
    content: ClassVar[int] = 0
    expired_us: int
    limit: int

    def foresee(self, wanted: Wanted) -> None:
        pass

    def apply(self, work: UnitOfWork, now_us: int) -> int:
        return work.erase_expired_claims(self.expired_us, self.limit)
