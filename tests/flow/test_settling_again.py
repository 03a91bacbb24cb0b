"""A settlement that fails is tried again, and an answer leaves only if its own settlement is in the ledger, once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from reticent.accounting.lattice import RewardLattice
from reticent.accounting.ledger import Reservation
from reticent.accounting.ledger_errors import AlreadyForfeited, AlreadySettled, LedgerDamaged, LedgerUnavailable
from reticent.plugin import accounts
from reticent.plugin.accounts import Accounts
from reticent.plugin.errors import Unavailable
from reticent.plugin.metrics import Metrics
from tests.fakes.build import make_settings, run, world

HALF = {"tenants.0.policy": {"gate": "observe"}}
Fate = Literal["ok", "not", "unknown-not", "unknown-written"]
FATES: tuple[Fate, ...] = ("ok", "not", "unknown-not", "unknown-written")


class OneReservation:
    """A ledger of one reservation, which any number of callers may try to settle."""

    def __init__(self) -> None:
        self.charge: int | None = None
        self.tries = 0

    def settle(self, charge: int, fate: Fate) -> None:
        self.tries += 1
        if fate in ("not", "unknown-not"):
            raise LedgerUnavailable(fate, "nothing_written" if fate == "not" else "unknown")
        if self.charge is not None:
            raise AlreadySettled("r", self.charge)
        self.charge = charge
        if fate == "unknown-written":
            raise LedgerUnavailable(fate, "unknown")


def held_by(owner: str, expires_us: int = 2**62) -> Reservation:
    return Reservation("r", ("dataset:d",), 9, "open", True, None, owner, 0, expires_us)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Accounts]:
    """Makes servers whose ledger's calls take one step of their coroutine, instead of a thread."""

    async def at_once(self: Accounts, function: Callable[[], object]) -> object:
        await asyncio.sleep(0)
        return function()

    monkeypatch.setattr(Accounts, "_run", at_once)
    monkeypatch.setattr(accounts, "_SETTLE_AGAIN_AFTER", (0, 0))
    settings = make_settings(tmp_path)

    def make(owner: str) -> Accounts:
        made = Accounts(None, settings, Metrics(), RewardLattice(1.0, 0.02))  # type: ignore[arg-type]
        made._owner = owner
        return made

    return make


def settling(
    server: Accounts, reservation: Reservation, ledger: OneReservation, charge: int, fates: tuple[Fate, ...]
) -> Coroutine[Any, Any, None]:
    left = iter(fates)
    return server._settle(reservation, charge, lambda: ledger.settle(charge, next(left)))  # type: ignore[arg-type,return-value]


def outcomes(coroutines: list[Coroutine[Any, Any, None]], turns: Iterator[int]) -> list[str]:
    """Take the coroutines' steps in this order, then the rest; "answer" for each that may release its answer."""
    found = [""] * len(coroutines)
    for k in itertools.chain(turns, itertools.cycle(range(len(coroutines)))):
        if all(found):
            return found
        if not found[k]:
            try:
                coroutines[k].send(None)
            except StopIteration:
                found[k] = "answer"
            except (Unavailable, AlreadySettled, ValueError) as error:
                found[k] = type(error).__name__
    raise AssertionError("unreachable")


@pytest.mark.parametrize("fates", list(itertools.product(FATES, repeat=3)))
def test_an_answer_leaves_exactly_if_a_try_that_was_written_is_known(
    server: Callable[[str], Accounts], fates: tuple[Fate, ...]
) -> None:
    ledger = OneReservation()
    (outcome,) = outcomes([settling(server("a"), held_by("a"), ledger, 5, fates)], iter(()))
    # The last try that the ledger takes note of tells: "ok" or "unknown-written" after one that was written.
    written = [k for k, fate in enumerate(fates) if fate in ("ok", "unknown-written")]
    known = bool(written) and (fates[written[0]] == "ok" or len(written) > 1)
    assert outcome == ("answer" if known else "Unavailable")
    assert ledger.charge == (5 if written else None)
    assert ledger.tries <= 3


def both(
    make: Callable[[str], Accounts], owner_of_the_second: str, settle: Callable[..., Coroutine[Any, Any, None]]
) -> set[tuple[str, ...]]:
    """All that can come of two who try to settle one reservation of "a" at the same charge, in every order."""
    found = set()
    tries = list(itertools.product(FATES, repeat=2))
    for first, second in itertools.product(tries, tries):
        for turns in itertools.product((0, 1), repeat=5):
            ledger = OneReservation()
            pair = [
                settle(make(owner), held_by("a"), ledger, 5, (*fates, "not"))
                for owner, fates in (("a", first), (owner_of_the_second, second))
            ]
            found.add(tuple(outcomes(pair, iter(turns))))
    return found


def test_two_owners_never_both_answer(server: Callable[[str], Accounts]) -> None:
    servers = {owner: server(owner) for owner in "ab"}
    found = both(servers.__getitem__, "b", settling)
    assert {second for _, second in found} == {"ValueError"}
    assert {first for first, _ in found} == {"answer", "Unavailable"}


def test_the_twin_that_settles_what_another_owns_answers_twice(server: Callable[[str], Accounts]) -> None:
    servers = {owner: server(owner) for owner in "ab"}

    def careless(made: Accounts, held: Reservation, *rest: Any) -> Coroutine[Any, Any, None]:
        return settling(made, replace(held, owner=made._owner), *rest)

    assert ("answer", "answer") in both(servers.__getitem__, "b", careless)


def test_a_settlement_at_another_charge_is_another_s(server: Callable[[str], Accounts]) -> None:
    ledger = OneReservation()
    ledger.charge = 6
    fates: tuple[Fate, ...] = ("unknown-not", "ok", "ok")
    assert outcomes([settling(server("a"), held_by("a"), ledger, 5, fates)], iter(())) == ["AlreadySettled"]


def test_a_settlement_found_without_a_try_of_unknown_outcome_is_another_s(server: Callable[[str], Accounts]) -> None:
    ledger = OneReservation()
    ledger.charge = 5
    fates: tuple[Fate, ...] = ("not", "ok", "ok")
    assert outcomes([settling(server("a"), held_by("a"), ledger, 5, fates)], iter(())) == ["AlreadySettled"]


def test_nothing_is_tried_again_after_the_lease_or_on_a_damaged_ledger(server: Callable[[str], Accounts]) -> None:
    ledger = OneReservation()
    assert outcomes([settling(server("a"), held_by("a", 1), ledger, 5, ("not",))], iter(())) == ["Unavailable"]

    def damaged() -> Reservation:
        ledger.tries += 1
        raise LedgerDamaged("x")

    assert outcomes([server("a")._settle(held_by("a"), 5, damaged)], iter(())) == ["Unavailable"]
    assert ledger.tries == 2


# With the whole server


@pytest.mark.parametrize("failures", [1, 2])
def test_a_ledger_that_comes_back_takes_the_settlement(tmp_path: Path, failures: int) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            left = [LedgerUnavailable("starting", "nothing_written")] * failures

            def fail(operation: str) -> None:
                if operation == "settle" and left:
                    raise left.pop()

            w.ledger.slow = fail
            answer = await w.answer()
            assert (answer.outcome, w.events.count("settle"), w.events.count("forfeit")) == ("selected", 1, 0)
            assert w.scopes()["user"].settled == 1

    run(story())


def test_a_settlement_that_was_written_unknown_to_its_caller_is_answered_and_charged_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            w.ledger.after["settle"] = LedgerUnavailable("no answer from the disk", "unknown")
            answer = await w.answer()
            scope = w.scopes()["user"]
            assert answer.choices[0].selection is not None
            assert (scope.settled, scope.spent, scope.open) == (1, answer.choices[0].selection.charge, 0)
            assert w.events.count("forfeit") == 0

    run(story())


def test_an_answer_that_was_forfeited_between_two_tries_does_not_leave(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            tries = []

            def forfeit_first(operation: str) -> None:
                if operation != "settle":
                    return
                tries.append(operation)
                if len(tries) == 1:
                    (held,) = w.ledger.open_reservations()
                    w.ledger.forfeit_expired(held.expires_us)
                    raise LedgerUnavailable("no connection", "unknown")

            w.ledger.slow = forfeit_first
            with pytest.raises(Unavailable):
                await w.answer()
            assert len(tries) == 2
            assert (w.scopes()["user"].settled, w.scopes()["user"].forfeited) == (0, 1)

    run(story())


def test_two_requests_of_one_id_are_not_given_one_reservation(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, HALF) as w:
            plan = w.plan()
            held = await w.core.accounts.reserve(plan, "request-x")
            with pytest.raises(ValueError, match="this id"):
                await w.core.accounts.reserve(plan, "request-x")
            await w.core.accounts.abandon(held, rewards_asked=True, reason="test")
            with pytest.raises(AlreadyForfeited):
                await w.core.accounts.reserve(plan, "request-x")
            assert w.core.accounts._held == set()

    run(story())
