"""Names of scopes: ``dataset:D``, ``tenant:D/T``, ``user:D/T/U``.

A scope's kind and its parents follow from its id alone, so no row can claim another tenant's parent. Data sets
and tenants are named by the operator from a small alphabet. A user's name is whatever a client sent: it is
percent-encoded byte by byte (UTF-8), so ``/`` and ``%`` in a name cannot reach into another scope; names whose
encoding is longer than 96 characters are replaced by ``sha256=`` and their digest (``=`` occurs in no encoding).
Names are compared byte by byte, not normalised: two spellings of a name are two users of the same tenant.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import quote

from reticent.accounting.ledger_errors import InvalidArgument

__all__ = ["MAX_USER_NAME", "ScopeKind", "dataset_scope", "scope_chain", "scope_kind", "tenant_scope", "user_scope"]

ScopeKind = Literal["dataset", "tenant", "user"]

MAX_USER_NAME: Final = 1024  # characters
_MAX_ENCODED: Final = 96

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_FORM: Final = "dataset:D, tenant:D/T or user:D/T/U with encoded names"
_USER = rf"(?:[A-Za-z0-9._~-]|%[0-9A-F]{{2}}){{1,{_MAX_ENCODED}}}|sha256=[0-9a-f]{{64}}"
_SCOPE = re.compile(rf"dataset:(?:{_NAME})|tenant:(?:{_NAME})/(?:{_NAME})|user:(?:{_NAME})/(?:{_NAME})/(?:{_USER})")


def check_name(argument: str, name: object) -> str:
    """The name itself, if an operator may give it to a data set or a tenant; else ``InvalidArgument``."""
    if not isinstance(name, str) or re.fullmatch(_NAME, name) is None:
        raise InvalidArgument(argument, "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit")
    return name


def dataset_scope(dataset: str) -> str:
    """Id of a data set's own scope, the root of its tree."""
    return f"dataset:{check_name('dataset', dataset)}"


def tenant_scope(dataset: str, tenant: str) -> str:
    """Id of a tenant's scope under a data set."""
    return f"tenant:{check_name('dataset', dataset)}/{check_name('tenant', tenant)}"


def user_scope(dataset: str, tenant: str, user: str) -> str:
    """Id of a user's scope under a tenant; ``user`` is any text of 1 to 1,024 characters."""
    raw = _user_bytes(user)
    encoded = quote(raw, safe="")
    if len(encoded) > _MAX_ENCODED:
        encoded = f"sha256={hashlib.sha256(raw).hexdigest()}"
    return f"user:{check_name('dataset', dataset)}/{check_name('tenant', tenant)}/{encoded}"


def _user_bytes(user: object) -> bytes:
    if not isinstance(user, str) or not 1 <= len(user) <= MAX_USER_NAME:
        raise InvalidArgument("user", f"1 to {MAX_USER_NAME} characters")
    # JSON can carry half of a surrogate pair; passing it through keeps the encoding one to one.
    return user.encode("utf-8", "surrogatepass")


def scope_chain(scope_id: str) -> tuple[str, ...]:
    """The scope and its parents, leaf first and the data set last. ``InvalidArgument`` for an id of no such form."""
    if not isinstance(scope_id, str):
        raise InvalidArgument("scope_id", _FORM)
    return _chain(scope_id)


@lru_cache(maxsize=4096)
def _chain(scope_id: str) -> tuple[str, ...]:
    if _SCOPE.fullmatch(scope_id) is None:
        raise InvalidArgument("scope_id", _FORM)
    parts = scope_id.partition(":")[2].split("/")
    kinds = ("dataset", "tenant", "user")
    return tuple(f"{kinds[k - 1]}:{'/'.join(parts[:k])}" for k in range(len(parts), 0, -1))


def scope_kind(scope_id: str) -> ScopeKind:
    """The kind that a well-formed id states."""
    kinds: dict[int, ScopeKind] = {1: "dataset", 2: "tenant", 3: "user"}
    return kinds[len(scope_chain(scope_id))]
