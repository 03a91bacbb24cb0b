"""Scope ids: different names have different ids, and no name reaches into another scope."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reticent.accounting.ledger import dataset_scope, scope_chain, tenant_scope, user_scope
from reticent.accounting.ledger_errors import InvalidArgument
from reticent.accounting.scope_ids import scope_kind

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,7}", fullmatch=True)
# Also what JSON can carry and UTF-8 cannot: halves of surrogate pairs.
users = st.text(st.characters(), min_size=1, max_size=256) | st.text(
    st.sampled_from("/%2Fa:=~\ud83d\ude00😀é"), min_size=1
)


@untimed
@given(st.tuples(names, names, users), st.tuples(names, names, users))
def test_different_users_have_different_ids(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    assert (user_scope(*one) == user_scope(*two)) == (one == two)


@untimed
@given(names, names, users)
def test_an_ids_parents_are_its_tenant_and_data_set(dataset: str, tenant: str, user: str) -> None:
    scope_id = user_scope(dataset, tenant, user)
    assert scope_chain(scope_id) == (scope_id, tenant_scope(dataset, tenant), dataset_scope(dataset))
    assert [scope_kind(s) for s in scope_chain(scope_id)] == ["user", "tenant", "dataset"]
    assert scope_id.isascii()
    assert len(scope_id) < 240


def test_half_a_surrogate_pair_is_a_name_of_its_own() -> None:
    halves = ["\ud83d", "\ude00", "\ud83d\ude00", "😀", "?", "\ufffd"]
    assert len({user_scope("d", "t", name) for name in halves}) == len(halves)


def test_a_plain_name_stays_readable() -> None:
    assert user_scope("demo", "acme", "alice") == "user:demo/acme/alice"
    assert user_scope("demo", "acme", "a/b") == "user:demo/acme/a%2Fb"
    assert user_scope("demo", "acme", "a%2Fb") == "user:demo/acme/a%252Fb"
    assert user_scope("demo", "acme", "😀" * 256).startswith("user:demo/acme/sha256=")
    assert user_scope("demo", "acme", "sha256=" + "0" * 64) == "user:demo/acme/sha256%3D" + "0" * 64


@pytest.mark.parametrize("bad", ["", "a/b", "a b", "é", ".a", "a" * 65, "a\n", None, 3])
def test_an_operators_names_come_from_a_small_alphabet(bad: str) -> None:
    for call in (dataset_scope, lambda name: tenant_scope("d", name), lambda name: user_scope("d", name, "u")):
        with pytest.raises(InvalidArgument):
            call(bad)


@pytest.mark.parametrize("bad", ["", "x" * 1025, None, b"x"])
def test_a_users_name_is_1_to_1024_characters(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        user_scope("d", "t", bad)


@pytest.mark.parametrize(
    "bad",
    ["dataset:", "dataset:a/b", "tenant:a", "tenant:a/", "user:a/b", "user:a/b/c/d", "user:a/b/%2f", "user:a/b/%",
     "user:a/b/c d", "user:a/b/sha256=00", "planet:a", "dataset:a\n", "user:a/b/" + "x" * 97, None, 7],
)  # fmt: skip
def test_an_id_of_another_form_is_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        scope_chain(bad)
