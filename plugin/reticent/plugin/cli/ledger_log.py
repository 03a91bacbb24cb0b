"""`reticent ledger log`: the journal in words, so that a charge can be followed from an account to its request."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from reticent.accounting.audit_errors import UnreadableLedger
from reticent.accounting.ledger_errors import LedgerError
from reticent.plugin.cli.common import LedgerLocation, fail
from reticent.plugin.cli.ledger_reading import RawEntry, read_journal

__all__ = ["Line", "log", "read_lines", "select"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOSES = ("settled", "released", "forfeited")


@dataclass(frozen=True)
class Line:
    """An entry, and the scopes that it concerns, leaf first (those of its reservation, where it names only that)."""

    seq: int
    time_us: int
    kind: str
    payload: dict[str, Any]
    hash: str
    scopes: tuple[str, ...]

    @property
    def time(self) -> str:
        """UTC, to the microsecond."""
        return (_EPOCH + timedelta(microseconds=self.time_us)).isoformat(sep=" ", timespec="microseconds")[:26] + "Z"

    def to_json(self) -> dict[str, Any]:
        """All of it; amounts in 1e-9 nat, as the journal has them."""
        return {
            "seq": self.seq,
            "time": self.time,
            "kind": self.kind,
            "scopes": list(self.scopes),
            "payload": self.payload,
            "hash": self.hash,
        }

    def __str__(self) -> str:
        return f"{self.seq:>8}  {self.time}  {self.kind:<15} {' '.join(_words(self))}"


def log(
    location: LedgerLocation,
    scope: Annotated[str | None, typer.Option(help="Only what concerns this scope or one below it.")] = None,
    reservation: Annotated[str | None, typer.Option(help="Only this reservation, which is a response's id.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many of these.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, amounts in 1e-9 nat.")] = False,
) -> None:
    """Print the journal: who reserved, settled, forfeited, granted what and when.

    It is printed as it stands, without a check: that is what `verify` is for.
    """
    found = select(read_lines(read_journal(location)), scope=scope, reservation=reservation)
    empty = True
    try:
        for line in found if last is None else deque(found, maxlen=last):
            empty = False
            typer.echo(json.dumps(line.to_json()) if as_json else str(line))
    except (UnreadableLedger, LedgerError) as error:
        raise fail(str(error)) from None
    if empty:
        raise fail("no such entries")


def read_lines(entries: Iterable[RawEntry]) -> Iterator[Line]:
    """The entries, each with the scopes that it concerns."""
    open_in: dict[str, tuple[str, ...]] = {}
    for seq, time_us, kind, text, _, digest in entries:
        payload: dict[str, Any] = json.loads(text)
        scopes: tuple[str, ...] = (payload["scope"],) if "scope" in payload else ()
        held = str(payload.get("reservation", ""))
        if held:
            scopes = open_in[held] = tuple(payload.get("scopes") or open_in.get(held, ()))
        if kind in _CLOSES:
            open_in.pop(held, None)
        yield Line(seq, time_us, kind, payload, digest, scopes)


def select(lines: Iterable[Line], *, scope: str | None, reservation: str | None) -> Iterator[Line]:
    """Those that concern a scope (or one below it) and a reservation, where these are given."""
    for line in lines:
        if scope is not None and not any(name == scope or _is_below(name, scope) for name in line.scopes):
            continue
        if reservation is None or line.payload.get("reservation") == reservation:
            yield line


def _is_below(name: str, scope: str) -> bool:
    return name.partition(":")[2].startswith(scope.partition(":")[2] + "/")


def _words(line: Line) -> Iterator[str]:
    payload = line.payload
    if "reservation" in payload:
        yield payload["reservation"]
    match line.kind:
        case "ledger_created":
            yield f"ledger {payload['ledger']}, format {payload['format']}"
        case "dataset_opened":
            yield f"data set {payload['dataset']}, order {payload['order']}, {payload['guarantee']}"
        case "scope_opened":
            promise = f"ε {payload['epsilon']:g}, δ {payload['delta']:g}"
            yield f"{payload['scope']}: {promise}, {_nats(payload['granted'])} to spend"
        case "granted":
            yield f"{payload['scope']}: {_nats(payload['amount'])} more"
        case "reserved":
            yield f"holds {_nats(payload['worst_case'])} in {line.scopes[0]} for {payload['lease_us'] / 1e6:g} s"
        case "raised":
            yield f"holds {_nats(payload['worst_case'])} now"
        case "scored":
            yield "rewards may be read from here on"
        case "lease_extended":
            yield f"may last until {_EPOCH + timedelta(microseconds=payload['expires_us'])}"
        case "settled":
            yield f"charged {_nats(payload['charge'])} to {_place(line)}"
            if payload.get("unprotected"):
                yield "WITHOUT PROTECTION: these scopes' guarantees are void from here on"
        case "forfeited":
            yield f"charged {_nats(payload['charge'])}, its worst case, to {_place(line)}"
        case "released":
            yield "charged nothing"
    yield from _remarks(payload)


def _remarks(payload: dict[str, Any]) -> Iterator[str]:
    facts = dict(payload.get("details", {}))
    facts |= {name: payload[name] for name in ("owner", "reason", "actor") if name in payload}
    if facts:
        yield f"({', '.join(f'{name} {value}' for name, value in facts.items())})"


def _place(line: Line) -> str:
    return line.scopes[0] if line.scopes else "an unknown scope"


def _nats(nano: int) -> str:
    return f"{nano // 10**9}.{nano % 10**9:09d} nats"
