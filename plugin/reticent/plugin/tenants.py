"""Who calls: a bearer key to a tenant, and a tenant's users to their scopes in the ledger."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from reticent.accounting.ledger import dataset_scope, tenant_scope, user_scope
from reticent.plugin.errors import Unauthorized
from reticent.plugin.settings import TenantSettings

__all__ = ["ANONYMOUS", "Caller", "TenantDirectory", "bearer_digest", "hash_key", "new_key", "owner_of"]

ANONYMOUS = "anonymous"
"""The user to whom requests without a `user` field are booked: one scope a tenant, so leaving it out gains nothing."""

_PREFIX = "rk-"

_Owner = TypeVar("_Owner")


def new_key() -> str:
    """A fresh API key with 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """SHA-256 of a key, in hex: what configuration and ledger hold. (A random key needs no slow hash.)"""
    return hashlib.sha256(key.encode()).hexdigest()


def bearer_digest(authorization: str | None, missing: str) -> str:
    """The hash of the key in an `Authorization: Bearer …` header.

    Raises:
        Unauthorized: with the message `missing`, where there is no such key.
    """
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized(missing)
    return hash_key(key.strip())


def owner_of(digest: str, owners: Iterable[tuple[str, _Owner]]) -> _Owner | None:
    """Whose key has this hash. Compares with all of them, each in constant time."""
    found: _Owner | None = None
    for known, owner in owners:
        if hmac.compare_digest(known, digest):
            found = owner
    return found


@dataclass(frozen=True)
class Caller:
    """An authenticated tenant."""

    tenant: TenantSettings
    dataset_id: str

    @property
    def dataset_scope(self) -> str:
        """The data set's scope."""
        return dataset_scope(self.dataset_id)

    @property
    def tenant_scope(self) -> str:
        """The tenant's scope."""
        return tenant_scope(self.dataset_id, self.tenant.id)

    def user_scope(self, user: str | None) -> str:
        """The scope of one of the tenant's users (None: the anonymous one)."""
        return user_scope(self.dataset_id, self.tenant.id, user or ANONYMOUS)


class TenantDirectory:
    """All tenants by key. Look-up compares digests in constant time and looks at every one of them."""

    def __init__(
        self, tenants: Iterable[TenantSettings], dataset_id: str, operator_key_sha256: str | None = None
    ) -> None:
        self._operator = operator_key_sha256
        self._callers = [(digest, Caller(tenant, dataset_id)) for tenant in tenants for digest in tenant.key_sha256]

    def authenticate(self, authorization: str | None) -> Caller:
        """The caller behind an `Authorization: Bearer …` header.

        Raises:
            Unauthorized: absent, not a bearer key, or unknown; the message is the same for each tenant.
        """
        found = owner_of(_digest(authorization), self._callers)
        if found is None:
            raise Unauthorized("Incorrect API key provided.")
        return found

    def require_operator(self, authorization: str | None) -> None:
        """Refuse everybody but the operator.

        Raises:
            Unauthorized: no key, another one, or no operator's key is configured.
        """
        if not hmac.compare_digest(self._operator or "", _digest(authorization)):
            raise Unauthorized("This takes the operator's key.")


def _digest(authorization: str | None) -> str:
    return bearer_digest(authorization, "You did not provide an API key. Send it as 'Authorization: Bearer KEY'.")
