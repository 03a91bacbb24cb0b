"""Which key belongs to which calibration site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from reticent.accounting.calibration.plan import Plan
from reticent.plugin.errors import Unauthorized
from reticent.plugin.settings import ConfigurationError
from reticent.plugin.tenants import bearer_digest, owner_of

__all__ = ["SiteKeys", "load_site_keys"]

_HASH = re.compile(r"[0-9a-f]{64}")


class SiteKeys:
    """Sites by key. Every look-up compares with all of them, each in constant time.

    Args:
        hashes: for each site the SHA-256 of its keys.
    """

    def __init__(self, hashes: Mapping[str, tuple[str, ...]]) -> None:
        self._known = [(digest, site) for site, digests in hashes.items() for digest in digests]

    def authenticate(self, authorization: str | None) -> str:
        """The site behind an `Authorization: Bearer …` header.

        Raises:
            Unauthorized: absent, not a bearer key, or unknown.
        """
        missing = "You did not provide a site's key. Send it as 'Authorization: Bearer KEY'."
        found = owner_of(bearer_digest(authorization, missing), self._known)
        if found is None:
            raise Unauthorized("Incorrect key provided.")
        return found


def load_site_keys(path: Path, plan: Plan) -> SiteKeys:
    """Read a YAML mapping from each of the plan's sites to the SHA-256 of its key, or a list of them.

    Raises:
        ConfigurationError: unreadable, a site that the plan has not, a site without a key, a hash that is none, or a
            key of two sites. Values are not repeated in the message.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigurationError(f"{path}: is not YAML") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: must be a mapping from sites to hashes of keys")
    names = {site.name for site in plan.sites}
    if unknown := [str(name) for name in document if name not in names]:
        raise ConfigurationError(f"{path}: the plan has no site {unknown[0]!r}")
    if missing := sorted(names - document.keys()):
        raise ConfigurationError(f"{path}: no key for site {missing[0]!r}")
    hashes = {name: _hashes(path, name, value) for name, value in document.items()}
    every = [digest for digests in hashes.values() for digest in digests]
    if len(set(every)) != len(every):
        raise ConfigurationError(f"{path}: a key stands there twice")
    return SiteKeys(hashes)


def _hashes(path: Path, name: str, value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str) and _HASH.fullmatch(item) for item in items):
        raise ConfigurationError(f"{path}: {name!r} needs the SHA-256 of its key, 64 hexadecimal digits")
    return tuple(items)
