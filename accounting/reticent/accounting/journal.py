"""The journal: what every ledger writes, in order, and never changes. Balances only repeat what it says.

Format 1. An entry has

* ``seq``: 1, 2, 3, ... without gaps;
* ``time_us``: UTC, microseconds since 1970, from the writer's clock (which may jump: order is by ``seq``);
* ``kind`` and ``payload``: one of the kinds below, and a JSON object as text: keys sorted, no spaces, ASCII only,
  floats as Python's ``repr``, no NaN or infinity;
* ``previous``: the hash of the entry before, 64 zeros for the first;
* ``hash``: SHA-256, in lower-case hexadecimal, of the ASCII text
  ``reticent-journal-1 \\n seq \\n time_us \\n kind \\n previous \\n payload`` (without the spaces). Only the payload,
  which comes last, could hold a line break, so no two entries have the same text.

| kind | payload | meaning |
|---|---|---|
| ``ledger_created`` | ledger, format | entry 1, and only there; ``ledger`` is 128 random bits |
| ``dataset_opened`` | dataset, order, guarantee, actor | ``order`` is the ``repr`` of the Rényi order |
| ``scope_opened`` | scope, epsilon, delta, overhead, granted, actor | kind and parents follow from the id |
| ``granted`` | scope, amount, reason, actor | adds to ``granted`` |
| ``reserved`` | reservation, scopes, worst_case, lease_us, owner, scored, details, claim? | held in every scope |
| ``raised`` | reservation, worst_case | new, higher worst case; the reservation is scored from here on |
| ``scored`` | reservation | rewards may be read from here on |
| ``lease_extended`` | reservation, expires_us | a later end of the lease |
| ``settled`` | reservation, charge, details, unprotected? | moves ``charge`` from reserved to spent, returns the rest |
| ``released`` | reservation, reason | returns all; only of an unscored reservation |
| ``forfeited`` | reservation, charge, reason | moves all of it to spent |

Two fields are there only where they say something. ``claim``: SHA-256, hexadecimal, of the idempotency key that the
reservation was made for. ``unprotected``, always true: rewards chose the answer and no noise protects them; counted
in every scope of the chain.

What the chain proves: no entry was changed, removed or put in between, *if* the last hash is known from elsewhere.
Who can write the file can also cut the journal's end off or write a whole new one; keep a ``JournalHead`` in another
place now and then, and give it to the auditor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["FORMAT", "GENESIS", "Entry", "JournalHead", "canonical", "entry_hash", "next_entry"]

FORMAT: Final = 1
GENESIS: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class JournalHead:
    """Position and hash of an entry: with it, everything up to there is pinned."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal, as it is stored."""

    seq: int
    time_us: int
    kind: str
    payload: str
    previous: str
    hash: str


_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(payload: Mapping[str, object]) -> str:
    """The one text of a JSON object. ``ValueError`` for NaN and infinity, ``TypeError`` for what is not JSON."""
    return _ENCODER.encode(payload)


def entry_hash(seq: int, time_us: int, kind: str, previous: str, payload: str) -> str:
    """SHA-256 over an entry's text, as the module's docstring lays it out."""
    text = f"reticent-journal-{FORMAT}\n{seq}\n{time_us}\n{kind}\n{previous}\n{payload}"
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def next_entry(head: JournalHead, time_us: int, kind: str, payload: str) -> Entry:
    """The entry that follows ``head`` (``JournalHead(0, GENESIS)`` for an empty journal); ``payload`` is canonical."""
    seq = head.seq + 1
    return Entry(seq, time_us, kind, payload, head.hash, entry_hash(seq, time_us, kind, head.hash, payload))
