"""The ledger against an independent log of answers: was each of them paid for, in full, once, and within the budget?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reticent.accounting.drills.chaos_worker import LARGEST, LONG_KEY
from reticent.accounting.ledger import Ledger
from reticent.accounting.ledger_errors import UnknownReservation

__all__ = ["Verdict", "check"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found. `overspent` to `lost_reservations` must be 0.

    Attributes:
        answers: that left.
        replays: recorded answers that left again.
        forfeits: reservations that the ledger forfeited.
        exhausted_scopes: scopes with less left than a reservation may need, so that the budget was what stopped them.
        overspent: scopes whose charges exceed their grants, and everything that the auditor found.
        undercharged: answers whose settlement is lower than what they cost.
        released_without_reservation: answers (or replays) without a settled reservation of their own.
        answered_twice: reservations, and idempotency keys, with two answers.
        lost_reservations: reservations that were durable and then unknown.
        journal_entries: how many the auditor read.
        examples: a few of what is wrong, in words.
    """

    answers: int
    replays: int
    forfeits: int
    exhausted_scopes: int
    overspent: int
    undercharged: int
    released_without_reservation: int
    answered_twice: int
    lost_reservations: int
    journal_entries: int
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        wrong = self.overspent, self.undercharged, self.released_without_reservation
        return not any((*wrong, self.answered_twice, self.lost_reservations))


class _Comparison:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._charges: dict[str, int | None] = {}
        self.counts = dict.fromkeys(("answer", "replay", "lost"), 0)
        self.undercharged: list[str] = []
        self.unreserved: list[str] = []
        self.twice: list[str] = []
        self._answered: set[str] = set()
        self._by_key: defaultdict[str, set[str]] = defaultdict(set)

    def line(self, line: str) -> None:
        kind, *fields = line.split(" ")
        self.counts[kind] += 1
        if kind == "answer":
            reservation, charge, key = fields
            if reservation in self._answered:
                self.twice.append(reservation)
            self._answered.add(reservation)
            self._paid(reservation, int(charge))
            self._by_key[key].add(reservation)
        elif kind == "replay":
            found, reservation, charge, key = fields
            if found != reservation:
                self.unreserved.append(f"{found} holds the answer of {reservation}")
            self._paid(reservation, int(charge))
            self._by_key[key].add(reservation)

    def _paid(self, reservation: str, charge: int) -> None:
        settled = self._settled(reservation)
        if settled is None:
            self.unreserved.append(f"{reservation} was answered and not settled")
        elif settled < charge:
            self.undercharged.append(f"{reservation} was charged {settled}, not {charge}")

    def _settled(self, reservation: str) -> int | None:
        """What it was settled for; None if it was not."""
        if reservation not in self._charges:
            try:
                found = self._ledger.reservation(reservation)
            except UnknownReservation:
                self._charges[reservation] = None
            else:
                self._charges[reservation] = found.charge if found.state == "settled" else None
        return self._charges[reservation]

    def keys_answered_twice(self) -> list[str]:
        return [key for key, answers in self._by_key.items() if key.startswith(LONG_KEY) and len(answers) > 1]


def check(ledger: Ledger, logs: Iterable[Path]) -> Verdict:
    """Compare, when nobody writes any more and everything open was forfeited.

    Args:
        ledger: the ledger as it was left.
        logs: of all workers that ever ran (`chaos_worker` tells their form).

    Raises:
        ValueError: a log is not of that form.
    """
    comparison = _Comparison(ledger)
    for log in logs:
        # A line without an end is of a worker killed while writing: that answer had not left.
        whole, _, _ = log.read_text(encoding="ascii").rpartition("\n")
        for line in filter(None, whole.split("\n")):
            comparison.line(line)
    report = ledger.verify()
    statements = ledger.list_scopes()
    over = [f"{s.scope_id} spent {s.spent} of {s.granted}" for s in statements if s.spent + s.reserved > s.granted]
    over += [f"{s.scope_id} still holds {s.reserved}" for s in statements if s.reserved or s.open]
    findings = [f"{finding.where}: {finding.what}" for finding in report.findings]
    twice = comparison.twice + comparison.keys_answered_twice()
    wrong = (over + findings, comparison.undercharged, comparison.unreserved, twice)
    return Verdict(
        answers=comparison.counts["answer"],
        replays=comparison.counts["replay"],
        forfeits=max((s.forfeited for s in statements), default=0),
        exhausted_scopes=sum(s.remaining < LARGEST for s in statements),
        overspent=len(wrong[0]),
        undercharged=len(wrong[1]),
        released_without_reservation=len(wrong[2]),
        answered_twice=len(wrong[3]),
        lost_reservations=comparison.counts["lost"],
        journal_entries=report.seq,
        examples=tuple(example for kind in wrong for example in kind[:3]),
    )
