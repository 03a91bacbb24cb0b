"""What a ledger can refuse, one class a reason. Each error carries the values that explain it.

The text of an error is for operators. What a tenant may read of it is decided where errors are mapped to
responses: the amounts left in a data set's scope, for one, tell what other tenants have spent.
"""

# ruff: noqa: N818  -- the names state what happened, in the words of the design; all are LedgerError.

from __future__ import annotations

from typing import Literal

__all__ = [
    "AlreadyForfeited",
    "AlreadyReleased",
    "AlreadySettled",
    "AnswerLost",
    "AnswerPending",
    "AnswerRecorded",
    "BudgetExhausted",
    "DatasetConflict",
    "InvalidAmount",
    "InvalidArgument",
    "KeyReused",
    "LedgerDamaged",
    "LedgerError",
    "LedgerMissing",
    "LedgerUnavailable",
    "NotALedger",
    "ReleaseRefused",
    "ReservationClosed",
    "ReservationConflict",
    "SchemaTooNew",
    "SettlementExceedsReservation",
    "UnknownDataset",
    "UnknownReservation",
    "UnknownScope",
    "UnsupportedSqlite",
    "WriteOutcome",
]

WriteOutcome = Literal["nothing_written", "unknown"]
"""What is known of a write that failed."""


class LedgerError(Exception):
    """Base of every error a ledger raises. Unless a class says otherwise, nothing was written."""


class InvalidArgument(LedgerError, ValueError):
    """An argument is of the wrong type or out of range; found before the store was touched."""

    def __init__(self, argument: str, requirement: str) -> None:
        super().__init__(f"{argument}: {requirement}")
        self.argument = argument
        self.requirement = requirement


class InvalidAmount(InvalidArgument):
    """An amount is not an integer of 1e-9 nat within its range."""


class UnknownDataset(LedgerError, LookupError):
    """No data set was opened under this id."""

    def __init__(self, dataset_id: str) -> None:
        super().__init__(f"no data set {dataset_id!r}")
        self.dataset_id = dataset_id


class UnknownScope(LedgerError, LookupError):
    """No scope was opened under this id."""

    def __init__(self, scope_id: str) -> None:
        super().__init__(f"no scope {scope_id!r}")
        self.scope_id = scope_id


class UnknownReservation(LedgerError, LookupError):
    """No reservation was made under this id."""

    def __init__(self, reservation_id: str) -> None:
        super().__init__(f"no reservation {reservation_id!r}")
        self.reservation_id = reservation_id


class DatasetConflict(LedgerError, ValueError):
    """A data set exists with another order or guarantee; both are fixed when it is first opened."""

    def __init__(self, dataset_id: str, field: str, existing: str, requested: str) -> None:
        super().__init__(f"data set {dataset_id!r} has {field} {existing}, asked for {requested}")
        self.dataset_id = dataset_id
        self.field = field
        self.existing = existing
        self.requested = requested


class BudgetExhausted(LedgerError):
    """A scope has less left than was asked for. ``available`` and ``requested`` are in 1e-9 nat."""

    def __init__(self, scope_id: str, scope_kind: str, available: int, requested: int) -> None:
        super().__init__(f"scope {scope_id!r} has {available} left, asked for {requested} (1e-9 nat)")
        self.scope_id = scope_id
        self.scope_kind = scope_kind
        self.available = available
        self.requested = requested


class ReservationConflict(LedgerError, ValueError):
    """The reservation id was used before with other arguments; ``fields`` names those that differ."""

    def __init__(self, reservation_id: str, fields: tuple[str, ...]) -> None:
        super().__init__(f"reservation {reservation_id!r} exists with another {', '.join(fields)}")
        self.reservation_id = reservation_id
        self.fields = fields


class ReservationClosed(LedgerError):
    """The reservation was closed before, with ``charge`` in 1e-9 nat; nothing more may be done under it."""

    how = "closed"

    def __init__(self, reservation_id: str, charge: int) -> None:
        super().__init__(f"reservation {reservation_id!r} was {self.how} at {charge} (1e-9 nat)")
        self.reservation_id = reservation_id
        self.charge = charge


class AlreadySettled(ReservationClosed):
    """It was settled before, whether or not for the same amount."""

    how = "settled"


class AlreadyReleased(ReservationClosed):
    """It was released before; ``charge`` is 0."""

    how = "released"


class AlreadyForfeited(ReservationClosed):
    """It was forfeited before; ``charge`` is its worst case."""

    how = "forfeited"


class SettlementExceedsReservation(LedgerError, ValueError):
    """The charge to settle is above what was reserved: the worst case was not one."""

    def __init__(self, reservation_id: str, charge: int, reserved: int) -> None:
        super().__init__(f"reservation {reservation_id!r} holds {reserved}, cannot settle {charge} (1e-9 nat)")
        self.reservation_id = reservation_id
        self.charge = charge
        self.reserved = reserved


class ReleaseRefused(LedgerError):
    """A reservation may not be released; ``reason`` is "scored" or "owner"."""

    def __init__(self, reservation_id: str, reason: str) -> None:
        text = {"scored": "rewards may have been read", "owner": "it belongs to another owner"}[reason]
        super().__init__(f"reservation {reservation_id!r} cannot be released: {text}")
        self.reservation_id = reservation_id
        self.reason = reason


class KeyReused(LedgerError, ValueError):
    """The idempotency key was used for a request with another body, under ``reservation_id``."""

    def __init__(self, reservation_id: str) -> None:
        super().__init__(f"the idempotency key was used for another request, under reservation {reservation_id!r}")
        self.reservation_id = reservation_id


class AnswerRecorded(LedgerError):
    """The request was answered before, under ``reservation_id``: hand out ``answer`` again, free of charge.

    An error only in that no reservation was made. The answer is content and not part of the error's text.
    """

    def __init__(self, reservation_id: str, answer: bytes) -> None:
        super().__init__(f"the request was answered before, under reservation {reservation_id!r}")
        self.reservation_id = reservation_id
        self.answer = answer


class AnswerPending(LedgerError):
    """A request with this key and body is being answered now, under ``reservation_id``."""

    def __init__(self, reservation_id: str) -> None:
        super().__init__(f"the request is being answered, under reservation {reservation_id!r}")
        self.reservation_id = reservation_id


class AnswerLost(LedgerError):
    """The request was paid for under ``reservation_id``, and its answer is not there: forfeited, or not recorded.

    Answering it again is a new draw, and needs a new key.
    """

    def __init__(self, reservation_id: str) -> None:
        super().__init__(f"the request was paid for under reservation {reservation_id!r}, its answer is not there")
        self.reservation_id = reservation_id


class LedgerUnavailable(LedgerError):
    """The store cannot be used now: locked for too long, closed, or a failed read or write.

    ``outcome`` says whether the call took effect: ``"nothing_written"`` where the store knows that it did not, and
    ``"unknown"`` where a commit was begun and nobody can tell. Going on as if nothing had been written is safe either
    way: a reservation nobody knows of is forfeited when its lease ends, and an answer whose settlement is unknown is
    not released (a second ``settle`` then tells which it was).
    """

    outcome: WriteOutcome = "unknown"

    def __init__(self, text: str, outcome: WriteOutcome | None = None) -> None:
        super().__init__(text)
        if outcome is not None:
            self.outcome = outcome


class LedgerMissing(LedgerUnavailable):
    """There is no file at the path, and the caller did not ask for a new ledger."""

    outcome = "nothing_written"


class NotALedger(LedgerUnavailable):
    """The file is a database, but not a ledger of this package."""

    outcome = "nothing_written"


class LedgerDamaged(LedgerUnavailable):
    """The file's tables, triggers or indexes are not those that the migrations make."""

    outcome = "nothing_written"


class UnsupportedSqlite(LedgerUnavailable):
    """The SQLite library is older than the first one that is safe with several writing processes."""

    def __init__(self, found: str, needed: str) -> None:
        super().__init__(f"SQLite {found} is too old, {needed} or newer is needed", "nothing_written")
        self.found = found
        self.needed = needed


class SchemaTooNew(LedgerUnavailable):
    """The file was written by a newer version of this package."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"the ledger has schema {found}, this version knows {known}", "nothing_written")
        self.found = found
        self.known = known
