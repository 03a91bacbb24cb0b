"""The embedded server's own folder: model, keys, tenants, ledger. Made once; a second start finds it as it was."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reticent.accounting.store.sqlite import SqliteLedger
from reticent.plugin.tenants import hash_key, new_key

__all__ = ["State", "prepare"]


@dataclass(frozen=True)
class State:
    """Where the embedded server keeps what it makes, and the demo keys."""

    folder: Path
    keys: dict[str, str]
    operator_key: str

    @property
    def model(self) -> Path:
        """The converted model."""
        return self.folder / "model"

    def environment(self) -> dict[str, str]:
        """Overrides that put everything the embedded configuration writes into this folder."""
        folder = self.folder.resolve()
        return {
            "RETICENT_LEDGER__PATH": str(folder / "ledger.db"),
            "RETICENT_REWARDS__SOCKET": str(folder / "worker.sock"),
            "RETICENT_REWARDS__SECRET_FILE": str(folder / "worker.secret"),
            "RETICENT_TENANTS_FILE": str(folder / "tenants.yaml"),
            # The demo is on loopback, where its metrics may be looked at without a key.
            "RETICENT_SERVER__METRICS": "open",
        }


def prepare(folder: Path, tenants: Path) -> State:
    """Make the folder with keys for the tenants listed in `tenants` (sections without keys); keep what is there.

    The keys stand in plain text in `demo-keys.json`, readable by this user only: they open a demo. A real
    configuration holds hashes alone (`reticent tenants new`).
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    sections: list[dict[str, Any]] = yaml.safe_load(tenants.read_text(encoding="utf-8"))["tenants"]
    keys_file = folder / "demo-keys.json"
    stored = json.loads(keys_file.read_text()) if keys_file.exists() else {}
    keys = {section["id"]: stored.get("tenants", {}).get(section["id"]) or new_key() for section in sections}
    operator = stored.get("operator") or new_key()
    _write(keys_file, json.dumps({"operator": operator, "tenants": keys}, indent=2) + "\n")
    hashed = [{**section, "key_sha256": [hash_key(keys[section["id"]])]} for section in sections]
    document = {"operator_key_sha256": hash_key(operator), "tenants": hashed}
    _write(folder / "tenants.yaml", yaml.safe_dump(document, sort_keys=False))
    ledger = folder / "ledger.db"
    if not stored:
        # Only together with new keys. A ledger that is missing later was lost, and is not silently replaced.
        SqliteLedger(ledger, create=True).close()
    secret = folder / "worker.secret"
    if not secret.exists():
        _write(secret, secrets.token_hex(32) + "\n")
    return State(folder, keys, operator)


def _write(path: Path, text: str) -> None:
    """Replace a file in one step, readable by this user only."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, path)
