"""A ledger of a few lines: slow, in memory, one call at a time. What the real one is compared with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from reticent.accounting.ledger import scope_chain
from reticent.accounting.ledger_errors import (
    AlreadyForfeited,
    AlreadyReleased,
    AlreadySettled,
    AnswerLost,
    AnswerPending,
    AnswerRecorded,
    BudgetExhausted,
    InvalidAmount,
    InvalidArgument,
    KeyReused,
    LedgerError,
    ReleaseRefused,
    ReservationConflict,
    SettlementExceedsReservation,
    UnknownReservation,
)

__all__ = ["Ask", "Held", "Model"]

Refusal = type[LedgerError] | None
SECOND = 1_000_000
LEASE_SECONDS, KEEP_SECONDS = 8, 10
CLOSED: dict[str, type[LedgerError]] = {
    "settled": AlreadySettled,
    "released": AlreadyReleased,
    "forfeited": AlreadyForfeited,
}


@dataclass(frozen=True)
class Ask:
    """A reservation as it is asked for; `key` and `digest` are of its claim, if it has one."""

    name: str
    leaf: str
    worst: int
    scored: bool
    owner: str
    key: str | None
    digest: str


@dataclass
class Held:
    asked: Ask
    worst: int
    scored: bool
    expires: int
    claim_ends: int
    state: str = "open"
    charge: int = 0
    unprotected: bool = False
    answer: bytes | None = None


@dataclass
class Model:
    """Nothing is carried along: balances are sums over all reservations, a key's holder is the last that took it.

    Every method says what must refuse the call, or None and does it.
    """

    now: int
    granted: dict[str, int] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    erased: set[str] = field(default_factory=set)

    def below(self, scope: str) -> list[Held]:
        return [h for h in self.held.values() if scope in scope_chain(h.asked.leaf)]

    def totals(self, scope: str) -> tuple[int, int]:
        mine = self.below(scope)
        return sum(h.charge for h in mine), sum(h.worst for h in mine if h.state == "open")

    def fits(self, leaf: str, more: int) -> bool:
        return all(sum(self.totals(scope)) + more <= self.granted[scope] for scope in scope_chain(leaf))

    def holder(self, key: str | None) -> Held | None:
        takers = [h for h in self.held.values() if key is not None and h.asked.key == key]
        return takers[-1] if takers and takers[-1].asked.name not in self.erased else None

    def look_up(self, key: str | None, digest: str) -> Refusal:
        """`AnswerRecorded` where there is one."""
        first = self.holder(key)
        if first is None or first.state == "released" or (first.state != "open" and first.claim_ends <= self.now):
            return None
        if first.asked.digest != digest:
            return KeyReused
        if first.state == "open":
            return AnswerPending
        return AnswerRecorded if first.state == "settled" and first.answer is not None else AnswerLost

    def reserve(self, ask: Ask) -> Refusal:
        first = self.holder(ask.key)
        again = first is not None and (first.asked.name, first.asked.digest, first.state) == (
            ask.name,
            ask.digest,
            "open",
        )
        refusal = None if again else self.look_up(ask.key, ask.digest)
        if refusal is not None:
            return refusal
        before = self.held.get(ask.name)
        if before is not None:
            # The digest is not part of the reservation: only the claim knows it.
            if (before.asked.key, *_but_claim(before.asked)) != (ask.key, *_but_claim(ask)):
                return ReservationConflict
            return CLOSED.get(before.state)
        if not self.fits(ask.leaf, ask.worst):
            return BudgetExhausted
        ends = self.now + KEEP_SECONDS * SECOND
        self.held[ask.name] = Held(ask, ask.worst, ask.scored, self.now + LEASE_SECONDS * SECOND, ends)
        return None

    def _closed(self, name: str) -> Refusal:
        return UnknownReservation if name not in self.held else CLOSED.get(self.held[name].state)

    def settle(self, name: str, charge: int, *, unprotected: bool, answer: bytes | None) -> Refusal:
        if refusal := self._closed(name):
            return refusal
        held = self.held[name]
        if charge > held.worst:
            return SettlementExceedsReservation
        if answer is not None and held.asked.key is None:
            return InvalidArgument
        held.state, held.charge, held.unprotected, held.answer = "settled", charge, unprotected, answer
        return None

    def raise_to(self, name: str, worst: int) -> Refusal:
        if refusal := self._closed(name):
            return refusal
        held = self.held[name]
        if worst < held.worst:
            return InvalidAmount
        if not self.fits(held.asked.leaf, worst - held.worst):
            return BudgetExhausted
        held.worst, held.scored = worst, True
        return None

    def mark_scored(self, name: str) -> Refusal:
        if refusal := self._closed(name):
            return refusal
        self.held[name].scored = True
        return None

    def release(self, name: str, owner: str) -> Refusal:
        if refusal := self._closed(name):
            return refusal
        held = self.held[name]
        if held.scored or held.asked.owner != owner:
            return ReleaseRefused
        held.state = "released"
        return None

    def forfeit(self, name: str) -> Refusal:
        if refusal := self._closed(name):
            return refusal
        held = self.held[name]
        held.state, held.charge = "forfeited", held.worst
        return None

    def extend(self, name: str, seconds: int) -> Refusal:
        if refusal := self._closed(name):
            return refusal
        held = self.held[name]
        held.expires = max(held.expires, self.now + seconds * SECOND)
        return None

    def sweep(self) -> set[str]:
        late = {name for name, h in self.held.items() if h.state == "open" and h.expires <= self.now}
        for name in late:
            self.forfeit(name)
        return late

    def erase(self) -> int:
        holders = [self.holder(key) for key in {h.asked.key for h in self.held.values()} - {None}]
        over = {h.asked.name for h in holders if h is not None and h.state != "open" and h.claim_ends <= self.now}
        self.erased |= over
        return len(over)


def _but_claim(ask: Ask) -> tuple[object, ...]:
    return (ask.name, ask.leaf, ask.worst, ask.scored, ask.owner)


def digest_of(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
