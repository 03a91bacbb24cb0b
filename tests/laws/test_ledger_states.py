"""The ledger against a model of a few lines, over random sequences of calls, right and wrong, alone and together."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from reticent.accounting.ledger import ClaimRequest, dataset_scope, scope_chain, tenant_scope, user_scope
from reticent.accounting.ledger_errors import AnswerRecorded, KeyReused, LedgerError
from reticent.accounting.store import SqliteLedger, claims, operations
from reticent.accounting.store.claims import checked_claim
from reticent.accounting.store.operations import Operation
from reticent.accounting.store.work import UnitOfWork
from tests.laws.ledger_model import KEEP_SECONDS, LEASE_SECONDS, SECOND, Ask, Model, digest_of

LEAVES = (
    user_scope("d", "a", "x/y"),
    user_scope("d", "a", "x"),
    user_scope("d", "b", "x"),
    tenant_scope("d", "b"),
    dataset_scope("d"),
)
SCOPES = (dataset_scope("d"), tenant_scope("d", "a"), tenant_scope("d", "b"), *LEAVES[:3])
MEMORY = Path("/dev/shm")  # nothing here is about the disk
DIGESTS = tuple(digest_of(body) for body in ("one", "another"))
amounts = st.integers(0, 60)
keys = st.sampled_from((None, "k", "l"))
owners = st.sampled_from("pq")
charges = st.integers(0, 20)
answers = st.sampled_from((None, None, b"", b"answer"))

Call = tuple[Callable[[Model], object], Operation[Any]]
"""The same call for the model, and as an operation of the ledger."""


def request(ask: Ask) -> ClaimRequest | None:
    return None if ask.key is None else ClaimRequest(ask.key, ask.digest, KEEP_SECONDS)


def asked(ask: Ask) -> Call:
    wanted = request(ask)
    reserve = operations.Reserve(
        ask.name,
        scope_chain(ask.leaf),
        ask.worst,
        LEASE_SECONDS * SECOND,
        ask.owner,
        {},
        ask.scored,
        None if wanted is None else checked_claim(wanted),
    )
    return lambda model: model.reserve(ask), reserve


def settled(name: str, charge: int, unprotected: bool, answer: bytes | None) -> Call:
    settle = operations.Settle(name, charge, {}, unprotected, answer)
    return lambda model: model.settle(name, charge, unprotected=unprotected, answer=answer), settle


names_together = st.sampled_from([f"r{k}" for k in range(6)])
calls = st.one_of(
    st.builds(
        Ask,
        names_together,
        st.sampled_from(LEAVES),
        amounts,
        st.booleans(),
        owners,
        keys,
        st.sampled_from(DIGESTS),
    ).map(asked),
    st.builds(settled, names_together, charges, st.booleans(), answers),
    st.builds(
        lambda name, worst: (lambda model: model.raise_to(name, worst), operations.Raise(name, worst)),
        names_together,
        amounts,
    ),
    st.builds(
        lambda name, owner: (lambda model: model.release(name, owner), operations.Release(name, owner, "test")),
        names_together,
        owners,
    ),
    st.builds(lambda name: (lambda model: model.forfeit(name), operations.Forfeit(name, "test")), names_together),
)


class LedgerMachine(RuleBasedStateMachine):
    names = Bundle("names")
    audits: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.path = Path(self.folder.name) / "ledger.db"
        self.model = Model(now=10**15)
        self.ledger = self.open(create=True)
        self.last_seq = 0

    def open(self, *, create: bool = False) -> SqliteLedger:
        return SqliteLedger(self.path, create=create, clock_us=lambda: self.model.now)

    def teardown(self) -> None:
        report = self.ledger.verify()
        self.ledger.close()
        self.folder.cleanup()
        assert report.findings == ()

    def agrees(self, refusal: object, call: Callable[[], object]) -> None:
        """The call is refused as the model said, and then changes nothing."""
        head = self.ledger.head()
        raised = None
        try:
            call()
        except LedgerError as error:
            raised = error
        assert type(raised) is (refusal or type(None)), (raised, refusal)
        assert refusal is None or self.ledger.head() == head

    @initialize(budgets=st.lists(st.integers(30, 300), min_size=len(SCOPES), max_size=len(SCOPES)))
    def open_all(self, budgets: list[int]) -> None:
        self.ledger.open_dataset("d", 2.5, "dp")
        for scope, granted in zip(SCOPES, budgets, strict=True):
            self.ledger.open_scope(scope, epsilon=1.0, delta=1e-6, overhead=7, granted=granted)
            self.model.granted[scope] = granted

    def reserve(self, ask: Ask) -> None:
        def call() -> object:
            return self.ledger.reserve(
                ask.name,
                ask.leaf,
                ask.worst,
                lease_seconds=LEASE_SECONDS,
                owner=ask.owner,
                scored=ask.scored,
                claim=request(ask),
            )

        self.agrees(self.model.reserve(ask), call)

    @rule(
        target=names,
        leaf=st.sampled_from(LEAVES),
        worst=amounts,
        scored=st.booleans(),
        owner=owners,
        key=keys,
        digest=st.sampled_from(DIGESTS),
    )
    def reserve_new(self, leaf: str, worst: int, scored: bool, owner: str, key: str | None, digest: str) -> Any:
        ask = Ask(f"r{len(self.model.held)}", leaf, worst, scored, owner, key, digest)
        self.reserve(ask)
        return ask.name if ask.name in self.model.held else multiple()

    @rule(
        target=names, leaf=st.sampled_from(LEAVES), worst=amounts, charge=charges, key=keys, unprotected=st.booleans()
    )
    def serve(self, leaf: str, worst: int, charge: int, key: str | None, unprotected: bool) -> Any:
        """A whole request, as most are."""
        name = self.reserve_new(leaf, worst, False, "p", key, DIGESTS[0])
        if isinstance(name, str):
            self.settle(name, charge, unprotected, None if key is None else b"answer")
        return name

    @rule(name=names, other=st.integers(-1, 1), key=keys, same=st.booleans())
    def reserve_again(self, name: str, other: int, key: str | None, same: bool) -> None:
        held = self.model.held.get(name)
        if held is not None:
            before = held.asked
            key = before.key if same else key
            worst = max(0, before.worst + other)
            self.reserve(Ask(name, before.leaf, worst, before.scored, before.owner, key, before.digest))

    @rule(name=names, charge=charges, unprotected=st.booleans(), answer=answers)
    def settle(self, name: str, charge: int, unprotected: bool, answer: bytes | None) -> None:
        refusal = self.model.settle(name, charge, unprotected=unprotected, answer=answer)
        self.agrees(refusal, lambda: self.ledger.settle(name, charge, unprotected=unprotected, answer=answer))

    @rule(name=names, worst=amounts)
    def raise_reservation(self, name: str, worst: int) -> None:
        self.agrees(self.model.raise_to(name, worst), lambda: self.ledger.raise_reservation(name, worst))

    @rule(name=names)
    def mark_scored(self, name: str) -> None:
        self.agrees(self.model.mark_scored(name), lambda: self.ledger.mark_scored(name))

    @rule(name=names, owner=owners)
    def release(self, name: str, owner: str) -> None:
        self.agrees(self.model.release(name, owner), lambda: self.ledger.release(name, owner=owner, reason="test"))

    @rule(name=names)
    def forfeit(self, name: str) -> None:
        self.agrees(self.model.forfeit(name), lambda: self.ledger.forfeit(name, reason="test"))

    @rule(name=names, seconds=st.integers(1, 4))
    def extend_lease(self, name: str, seconds: int) -> None:
        self.agrees(self.model.extend(name, seconds), lambda: self.ledger.extend_lease(name, seconds))

    @rule(key=keys.filter(bool), digest=st.sampled_from(DIGESTS))
    def look_up(self, key: str, digest: str) -> None:
        refusal = self.model.look_up(key, digest)
        if refusal is AnswerRecorded:
            holder = self.model.holder(key)
            assert holder is not None
            assert self.ledger.recorded(key, digest) == holder.answer
        else:
            self.agrees(refusal, lambda: self.ledger.recorded(key, digest))

    @rule(seconds=st.integers(-2, 6), erase=st.booleans())
    def let_time_pass_and_sweep(self, seconds: int, erase: bool) -> None:
        self.model.now += seconds * SECOND
        assert {r.reservation_id for r in self.ledger.forfeit_expired()} == self.model.sweep()
        if erase:
            assert self.ledger.erase_expired_claims() == self.model.erase()

    @rule(scope=st.sampled_from(SCOPES), amount=st.integers(1, 40))
    def grant(self, scope: str, amount: int) -> None:
        self.ledger.grant(scope, amount, reason="test", actor="officer")
        self.model.granted[scope] += amount

    @rule(target=names, together=st.lists(calls, min_size=2, max_size=12))
    def commit_together(self, together: list[Call]) -> Any:
        """One transaction of many operations does what they would do one after the other."""
        expected = [call(self.model) for call, _ in together]
        outcomes = self.ledger._run_batch(lambda: [operation for _, operation in together])
        assert [None if o.error is None else type(o.error) for o in outcomes] == expected
        return multiple(*sorted({o.value.reservation_id for o in outcomes if o.value is not None}))

    @rule()
    def close_and_open_again(self) -> None:
        head = self.ledger.head()
        self.ledger.close()
        self.ledger = self.open()
        assert self.ledger.head() == head

    @invariant()
    def balances_are_the_models_and_nothing_is_overspent(self) -> None:
        for scope in self.ledger.list_scopes():
            below = self.model.below(scope.scope_id)
            assert (scope.granted, scope.spent, scope.reserved, scope.unprotected) == (
                self.model.granted[scope.scope_id],
                *self.model.totals(scope.scope_id),
                sum(h.unprotected for h in below),
            )
            assert scope.spent + scope.reserved <= scope.granted
            counts = {state: sum(h.state == state for h in below) for state in ("open", "settled", "released")}
            assert {state: getattr(scope, state) for state in counts} == counts
        states = {r.reservation_id for r in self.ledger.open_reservations()}
        assert states == {name for name, held in self.model.held.items() if held.state == "open"}

    @invariant()
    def the_auditor_agrees_and_the_journal_only_grows(self) -> None:
        if self.audits:
            report = self.ledger.verify()
            assert report.findings == ()
            assert report.seq >= self.last_seq
            self.last_seq = report.seq


LedgerMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerFollowsItsModel = LedgerMachine.TestCase


class UnauditedMachine(LedgerMachine):
    """For twins: the model alone has to see what is wrong."""

    audits = False

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()


def _spend_one_less(work: UnitOfWork, scope_ids: tuple[str, ...], **changes: int) -> None:
    if changes.get("spent", 0) > 0:
        changes["spent"] -= 1
    honest_add(work, scope_ids, **changes)


honest_add = UnitOfWork.add


TWINS: dict[str, tuple[Any, str, Any]] = {
    "budgets are not checked": (operations, "_refuse_overdraft", lambda chain, requested: None),
    "keys are not checked": (operations, "recall", lambda *arguments: None),
    "a lost answer is not remembered": (claims, "AnswerLost", KeyReused),
    "closed reservations close again": (operations, "_refuse_closed", lambda found: found),
    "less is spent than charged": (UnitOfWork, "add", _spend_one_less),
    "unprotected answers are not counted": (
        UnitOfWork,
        "add",
        lambda work, scope_ids, **changes: honest_add(work, scope_ids, **(changes | {"unprotected": 0})),
    ),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_twin_with_a_broken_operation_is_caught(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*TWINS[twin])
    few = settings(
        LedgerMachine.TestCase.settings,
        max_examples=200,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises((AssertionError, LedgerError)):
        run_state_machine_as_test(UnauditedMachine, settings=few)


def test_the_auditor_alone_catches_a_ledger_that_spends_less_than_it_charges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db", create=True)
    ledger.open_dataset("d", 2.5, "dp")
    ledger.open_scope(dataset_scope("d"), epsilon=1.0, delta=1e-6, overhead=0, granted=100)
    ledger.reserve("r", dataset_scope("d"), 10, lease_seconds=60, owner="o")
    monkeypatch.setattr(UnitOfWork, "add", _spend_one_less)
    ledger.settle("r", 5)
    assert [f.what for f in ledger.verify().findings] == ["spent is 4, the journal says 5"]
    ledger.close()
