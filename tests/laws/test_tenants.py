"""Keys and callers."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from reticent.plugin.errors import Unauthorized
from reticent.plugin.tenants import TenantDirectory, hash_key, new_key
from tests.fakes.build import KEYS, make_settings


def directory(changes: dict[str, Any] | None = None) -> TenantDirectory:
    settings = make_settings(Path("nowhere"), changes)
    return TenantDirectory(settings.tenants, settings.dataset.id)


def test_a_key_opens_its_own_tenant_and_no_other() -> None:
    for name, key in KEYS.items():
        caller = directory().authenticate(f"Bearer {key}")
        assert caller.tenant.id == name
        assert caller.tenant_scope == f"tenant:notes/{name}"
        assert caller.dataset_scope == "dataset:notes"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_in_any_case_and_spaces_around_the_key_are_not_part_of_it(scheme: str) -> None:
    assert directory().authenticate(f"{scheme}  {KEYS['open']} ").tenant.id == "open"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", KEYS["open"], "Token " + KEYS["open"]])
def test_without_a_bearer_key_nobody_is_let_in(header: str | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        directory().authenticate(header)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "key", ["wrong", KEYS["open"][:-1], KEYS["open"] + "x", KEYS["open"].upper(), hash_key(KEYS["open"]), "schlüssel"]
)
def test_a_wrong_key_gets_one_message_and_is_not_repeated(key: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        directory().authenticate(f"Bearer {key}")
    assert str(caught.value) == "Incorrect API key provided."


def test_a_tenant_may_have_several_keys() -> None:
    hashes = [hash_key(KEYS["strict"]), hash_key("another")]
    found = directory({"tenants.0.key_sha256": hashes})
    assert found.authenticate("Bearer another").tenant.id == "strict"
    assert found.authenticate(f"Bearer {KEYS['strict']}").tenant.id == "strict"


def test_every_known_hash_is_compared_in_constant_time_also_after_a_match() -> None:
    with patch("hmac.compare_digest", wraps=hmac.compare_digest) as compare:
        directory().authenticate(f"Bearer {KEYS['strict']}")
    assert compare.call_count == len(KEYS)


def test_a_new_key_has_256_random_bits() -> None:
    key = new_key()
    assert key != new_key()
    assert key.startswith("rk-")
    assert len(base64.urlsafe_b64decode(key.removeprefix("rk-") + "=")) == 32
    assert hash_key(key) == hashlib.sha256(key.encode()).hexdigest()
