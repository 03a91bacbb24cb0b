"""The auditor's own books: what the journal's entries add up to, and which entries a sound ledger cannot have written.

Written from the journal's format (the docstring of `journal`) alone. It shares no code with the ledger or its
stores, so that a mistake there is not repeated here.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

__all__ = ["Books", "Impossible"]

Row = dict[str, Any]

_PAYLOADS: Final[dict[str, dict[str, type]]] = {
    "ledger_created": {"ledger": str, "format": int},
    "dataset_opened": {"dataset": str, "order": str, "guarantee": str, "actor": str},
    "scope_opened": {"scope": str, "epsilon": float, "delta": float, "overhead": int, "granted": int, "actor": str},
    "granted": {"scope": str, "amount": int, "reason": str, "actor": str},
    "reserved": {
        "reservation": str,
        "scopes": list,
        "worst_case": int,
        "lease_us": int,
        "owner": str,
        "scored": bool,
        "details": dict,
    },
    "raised": {"reservation": str, "worst_case": int},
    "scored": {"reservation": str},
    "lease_extended": {"reservation": str, "expires_us": int},
    "settled": {"reservation": str, "charge": int, "details": dict},
    "released": {"reservation": str, "reason": str},
    "forfeited": {"reservation": str, "charge": int, "reason": str},
}
# There only where they say something, so that what was written before they existed stays as it was.
_OPTIONAL: Final[dict[str, dict[str, type]]] = {"reserved": {"claim": str}, "settled": {"unprotected": bool}}
_NON_NEGATIVE: Final = ("amount", "overhead", "granted", "worst_case", "charge", "lease_us", "expires_us")


class Impossible(Exception):  # noqa: N818  -- a finding, not a failure
    """An entry that a sound ledger would not have written; says why."""


def _need(condition: bool, why: str) -> None:
    if not condition:
        raise Impossible(why)


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def _check_payload(kind: str, payload: Row) -> None:
    fields = _PAYLOADS.get(kind)
    if fields is None:
        raise Impossible(f"unknown kind {kind!r}")
    extra = {name: its for name, its in _OPTIONAL.get(kind, {}).items() if name in payload}
    fields = fields | extra
    _need(payload.keys() == fields.keys(), f"fields {sorted(payload)} instead of {sorted(fields)}")
    _need(payload.get("unprotected", True), "unprotected is there and not true")
    _need(_is_digest(payload.get("claim", "0" * 64)), "claim is not a SHA-256")
    for name, kind_of_value in fields.items():
        _need(type(payload[name]) is kind_of_value, f"{name} is not a {kind_of_value.__name__}")
        if name in _NON_NEGATIVE:
            _need(0 <= payload[name] < 2**63, f"{name} is out of range")


class Books:
    """Rows as the tables should have them, by id, after the entries posted so far."""

    def __init__(self) -> None:
        self.datasets: dict[str, Row] = {}
        self.scopes: dict[str, Row] = {}
        self.reservations: dict[str, Row] = {}
        self._claims: dict[str, str] = {}  # the last reservation that was made for each

    def post(self, seq: int, time_us: int, kind: str, payload: Row) -> None:
        """Add one entry; ``Impossible`` if it cannot follow what came before (the books stay as they were)."""
        _check_payload(kind, payload)
        _need((kind == "ledger_created") == (seq == 1), "ledger_created is entry 1, and only that")
        getattr(self, f"_{kind}")(seq, time_us, payload)

    def _ledger_created(self, seq: int, time_us: int, payload: Row) -> None:
        _need(payload["format"] == 1, "unknown format")
        _need(re.fullmatch("[0-9a-f]{32}", payload["ledger"]) is not None, "ledger is not 128 bits")

    def _dataset_opened(self, seq: int, time_us: int, payload: Row) -> None:
        name = payload["dataset"]
        _need(name not in self.datasets, f"data set {name!r} opened twice")
        _need(payload["guarantee"] in ("dp", "probabilistic"), "unknown guarantee")
        try:
            order = float(payload["order"])
        except ValueError:
            raise Impossible("the order is not a number") from None
        _need(1 < order < math.inf and repr(order) == payload["order"], "the order is not a finite number above 1")
        self.datasets[name] = {
            "dataset_id": name,
            "renyi_order": payload["order"],
            "guarantee": payload["guarantee"],
            "opened_seq": seq,
        }

    def _scope_opened(self, seq: int, time_us: int, payload: Row) -> None:
        scope_id = payload["scope"]
        kind, _, path = scope_id.partition(":")
        parts = path.split("/")
        kinds = {1: "dataset", 2: "tenant", 3: "user"}
        _need(kinds.get(len(parts)) == kind and all(parts), f"{scope_id!r} is not the id of a scope")
        _need(scope_id not in self.scopes, f"scope {scope_id!r} opened twice")
        _need(parts[0] in self.datasets, f"scope {scope_id!r} of an unknown data set")
        parent = f"{kinds[len(parts) - 1]}:{'/'.join(parts[:-1])}" if len(parts) > 1 else None
        _need(parent is None or parent in self.scopes, f"scope {scope_id!r} without its parent")
        _need(0 < payload["epsilon"] < math.inf and 0 < payload["delta"] < 1, "epsilon or delta out of range")
        self.scopes[scope_id] = {
            "scope_id": scope_id,
            "kind": kind,
            "parent": parent,
            "dataset_id": parts[0],
            "epsilon": payload["epsilon"],
            "delta": payload["delta"],
            "overhead": payload["overhead"],
            "granted": payload["granted"],
            "spent": 0,
            "reserved": 0,
            "open": 0,
            "settled": 0,
            "released": 0,
            "forfeited": 0,
            "unprotected": 0,
            "opened_seq": seq,
        }

    def _granted(self, seq: int, time_us: int, payload: Row) -> None:
        scope = self._scope(payload["scope"])
        _need(payload["amount"] > 0, "a grant of nothing")
        scope["granted"] += payload["amount"]

    def _scope(self, scope_id: object) -> Row:
        if not isinstance(scope_id, str) or scope_id not in self.scopes:
            raise Impossible(f"unknown scope {scope_id!r}")
        return self.scopes[scope_id]

    def _chain(self, leaf: str) -> list[Row]:
        chain = [self._scope(leaf)]
        while chain[-1]["parent"] is not None:
            chain.append(self._scope(chain[-1]["parent"]))
        return chain

    def _reserved(self, seq: int, time_us: int, payload: Row) -> None:
        key, amount = payload["reservation"], payload["worst_case"]
        _need(key not in self.reservations, f"reservation {key!r} made twice")
        _need(bool(payload["scopes"]), "a reservation in no scope")
        claim = payload.get("claim")
        holder = self.reservations.get(self._claims.get(str(claim), ""))
        _need(holder is None or holder["state"] != "open", f"claim {claim!r} is held by an open reservation")
        chain = self._chain(payload["scopes"][0])
        _need([scope["scope_id"] for scope in chain] == payload["scopes"], "the scopes are not one chain")
        self._hold(chain, amount)
        for scope in chain:
            scope["open"] += 1
        if claim is not None:
            self._claims[claim] = key
        self.reservations[key] = {
            "reservation_id": key,
            "scope_id": payload["scopes"][0],
            "worst_case": amount,
            "state": "open",
            "scored": int(payload["scored"]),
            "charge": None,
            "owner": payload["owner"],
            "expires_us": time_us + payload["lease_us"],
            "opened_seq": seq,
            "closed_seq": None,
            "claim": payload.get("claim"),
        }

    def _hold(self, chain: list[Row], amount: int) -> None:
        for scope in chain:
            left = scope["granted"] - scope["spent"] - scope["reserved"]
            _need(amount <= left, f"scope {scope['scope_id']!r} overspent: {amount} of {left}")
        for scope in chain:
            scope["reserved"] += amount

    def _open(self, key: str) -> Row:
        held = self.reservations.get(key)
        if held is None:
            raise Impossible(f"unknown reservation {key!r}")
        _need(held["state"] == "open", f"reservation {key!r} was {held['state']} before")
        return held

    def _raised(self, seq: int, time_us: int, payload: Row) -> None:
        held = self._open(payload["reservation"])
        more = payload["worst_case"] - held["worst_case"]
        _need(more >= 0, "a raise that lowers")
        self._hold(self._chain(held["scope_id"]), more)
        held.update(worst_case=payload["worst_case"], scored=1)

    def _scored(self, seq: int, time_us: int, payload: Row) -> None:
        self._open(payload["reservation"])["scored"] = 1

    def _lease_extended(self, seq: int, time_us: int, payload: Row) -> None:
        held = self._open(payload["reservation"])
        _need(payload["expires_us"] > held["expires_us"], "a lease that was shortened")
        held["expires_us"] = payload["expires_us"]

    def _settled(self, seq: int, time_us: int, payload: Row) -> None:
        self._close(seq, payload["reservation"], "settled", payload["charge"])
        if "unprotected" in payload:
            for scope in self._chain(self.reservations[payload["reservation"]]["scope_id"]):
                scope["unprotected"] += 1

    def _released(self, seq: int, time_us: int, payload: Row) -> None:
        _need(self._open(payload["reservation"])["scored"] == 0, "released although rewards may have been read")
        self._close(seq, payload["reservation"], "released", 0)

    def _forfeited(self, seq: int, time_us: int, payload: Row) -> None:
        held = self._open(payload["reservation"])
        _need(payload["charge"] == held["worst_case"], "forfeited for another amount than its worst case")
        self._close(seq, payload["reservation"], "forfeited", payload["charge"])

    def _close(self, seq: int, key: str, state: str, charge: int) -> None:
        held = self._open(key)
        _need(charge <= held["worst_case"], f"reservation {key!r} held {held['worst_case']}, was charged {charge}")
        held.update(state=state, charge=charge, closed_seq=seq)
        for scope in self._chain(held["scope_id"]):
            scope["reserved"] -= held["worst_case"]
            scope["spent"] += charge
            scope["open"] -= 1
            scope[state] += 1

    def claim_findings(self, row: Row) -> list[str]:
        """What is wrong with a row of the claims, as far as the journal tells: it knows neither body nor answer."""
        found = []
        if not (_is_digest(row.get("claim_id")) and _is_digest(row.get("request_digest"))):
            found.append("its id or the request's digest is not a SHA-256")
        if type(row.get("expires_us")) is not int:
            found.append("expires_us is not an integer")
        key = self._claims.get(str(row.get("claim_id")))
        if key is None or key != row.get("reservation_id"):
            found.append(f"belongs to reservation {row.get('reservation_id')!r}, the journal says {key!r}")
        elif row.get("answered") and self.reservations[key]["state"] != "settled":
            found.append(f"has an answer, and reservation {key!r} is {self.reservations[key]['state']}")
        return found
