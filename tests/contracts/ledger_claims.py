"""The contract's part on idempotency keys: one answer a key, paid for once, handed out again for nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from reticent.accounting import ledger_errors as errors
from reticent.accounting.ledger import MAX_ANSWER, ClaimRequest
from reticent.accounting.ledger_errors import LedgerError
from reticent.accounting.store.claims import WantedClaim
from reticent.accounting.store.operations import Reserve, Settle
from tests.contracts.ledger_parts import ACME, ALICE, BOB, DATASET, Clock, balances, reserve

__all__ = ["ClaimsContract"]

KEY = "acme/alice: order 66"
BODY = hashlib.sha256(b"body").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
HOUR = 3600.0


def claim(digest: str = BODY, *, key: str = KEY, keep_seconds: float = HOUR) -> ClaimRequest:
    return ClaimRequest(key, digest, keep_seconds)


def take(ledger: Any, name: str, request: ClaimRequest | None = None, worst_case: int = 10, **changes: Any) -> Any:
    return reserve(ledger, name, worst_case, claim=request or claim(), **changes)


class ClaimsContract:
    """Inherited by `LedgerContract`."""

    def refuses(self, ledger: Any, error: type[Exception], call: Callable[[], object]) -> Any:
        """The call raises, and neither the journal nor a balance moved."""
        before = (ledger.head(), ledger.list_scopes(), ledger.open_reservations())
        with pytest.raises(error) as caught:
            call()
        assert (ledger.head(), ledger.list_scopes(), ledger.open_reservations()) == before
        return caught.value

    def both_refuse(self, ledger: Any, error: type[Exception], digest: str = BODY) -> None:
        """Reserving and looking up say the same, and name the reservation that has the key."""
        for call in (lambda: take(ledger, "again", claim(digest)), lambda: ledger.recorded(KEY, digest)):
            assert self.refuses(ledger, error, call).reservation_id == "first"

    def test_a_key_is_free_until_it_is_taken(self, ledger: Any) -> None:
        assert ledger.recorded(KEY, BODY) is None
        assert take(ledger, "first") == ledger.reservation("first")
        self.both_refuse(ledger, errors.AnswerPending)
        assert ledger.recorded("another key", BODY) is None

    def test_a_recorded_answer_is_handed_out_again_for_nothing(self, ledger: Any) -> None:
        answer = bytes(range(256))
        take(ledger, "first")
        ledger.settle("first", 3, answer=answer)
        spent = balances(ledger)
        error = self.refuses(ledger, errors.AnswerRecorded, lambda: take(ledger, "again"))
        assert (error.reservation_id, error.answer) == ("first", answer)
        assert "x00" not in str(error)
        assert ledger.recorded(KEY, BODY) == answer
        assert balances(ledger) == spent
        assert spent[ALICE] == spent[DATASET] == (3, 0)

    def test_an_empty_answer_is_an_answer(self, ledger: Any) -> None:
        take(ledger, "first")
        ledger.settle("first", 0, answer=b"")
        assert ledger.recorded(KEY, BODY) == b""

    def test_a_key_is_not_reused_for_another_body(self, ledger: Any) -> None:
        take(ledger, "first")
        self.both_refuse(ledger, errors.KeyReused, OTHER)
        ledger.settle("first", 1, answer=b"x")
        self.both_refuse(ledger, errors.KeyReused, OTHER)

    def test_an_answer_that_was_not_recorded_is_lost(self, ledger: Any) -> None:
        take(ledger, "first")
        ledger.settle("first", 1)
        self.both_refuse(ledger, errors.AnswerLost)
        self.both_refuse(ledger, errors.KeyReused, OTHER)

    def test_the_answer_of_a_forfeited_reservation_is_lost(self, ledger: Any, clock: Clock) -> None:
        take(ledger, "first", lease_seconds=5)
        clock.advance(5)
        ledger.forfeit_expired()
        self.both_refuse(ledger, errors.AnswerLost)

    @pytest.mark.parametrize("digest", [BODY, OTHER])
    def test_a_released_reservation_gives_its_key_back(self, ledger: Any, digest: str) -> None:
        take(ledger, "first")
        ledger.release("first", owner="host-1", reason="worker is down")
        assert ledger.recorded(KEY, digest) is None
        take(ledger, "second", claim(digest))
        ledger.settle("second", 2, answer=b"second")
        assert ledger.recorded(KEY, digest) == b"second"

    def test_a_reservation_that_the_budget_refuses_takes_no_key(self, ledger: Any) -> None:
        self.refuses(ledger, errors.BudgetExhausted, lambda: take(ledger, "first", worst_case=501))
        assert ledger.recorded(KEY, BODY) is None
        take(ledger, "second", claim(OTHER))

    def test_a_key_taken_back_stays_the_released_ones_when_the_budget_refuses(self, ledger: Any) -> None:
        take(ledger, "first")
        ledger.release("first", owner="host-1", reason="x")
        self.refuses(ledger, errors.BudgetExhausted, lambda: take(ledger, "second", worst_case=501))
        assert ledger.recorded(KEY, BODY) is None
        assert ledger.erase_expired_claims(2**62) == 1

    @pytest.mark.parametrize("close", ["settle", "forfeit"])
    def test_a_key_is_free_again_after_its_time(self, ledger: Any, clock: Clock, close: str) -> None:
        take(ledger, "first")
        clock.advance(HOUR - 1e-6)
        if close == "settle":
            ledger.settle("first", 1, answer=b"first")
            assert ledger.recorded(KEY, BODY) == b"first"
        else:
            ledger.forfeit("first", reason="x")
        clock.advance(1e-6)
        assert ledger.recorded(KEY, BODY) is None
        take(ledger, "second", claim(OTHER))
        self.refuses(ledger, errors.AnswerPending, lambda: take(ledger, "third", claim(OTHER)))

    def test_an_open_reservation_keeps_its_key_after_its_time(self, ledger: Any, clock: Clock) -> None:
        take(ledger, "first", lease_seconds=3 * HOUR)
        clock.advance(2 * HOUR)
        self.both_refuse(ledger, errors.AnswerPending)
        self.both_refuse(ledger, errors.KeyReused, OTHER)
        assert ledger.erase_expired_claims() == 0
        ledger.settle("first", 1, answer=b"late")
        assert ledger.recorded(KEY, BODY) is None
        assert ledger.erase_expired_claims() == 1

    def test_erasing_takes_what_is_over_and_leaves_the_rest(self, ledger: Any, clock: Clock) -> None:
        for name, keep in (("short", 60.0), ("long", 120.0)):
            take(ledger, name, claim(key=name, keep_seconds=keep))
            ledger.settle(name, 1, answer=b"kept")
        head = ledger.head()
        assert ledger.erase_expired_claims() == 0
        clock.advance(60)
        assert ledger.erase_expired_claims() == 1
        assert (ledger.recorded("short", BODY), ledger.recorded("long", BODY)) == (None, b"kept")
        assert ledger.erase_expired_claims(clock.now_us + 60_000_000) == 1
        assert ledger.erase_expired_claims(2**62) == 0
        assert ledger.head() == head

    def test_many_expired_claims_are_all_erased(self, ledger: Any) -> None:
        for k in range(0, 600, 50):
            wanted = [WantedClaim(f"{k + j:064x}", BODY, 1) for j in range(50)]
            operations: list[Any] = [
                Reserve(w.claim_id, (ALICE, ACME, DATASET), 0, 10**6, "o", {}, False, w) for w in wanted
            ]
            operations += [Settle(w.claim_id, 0, {}, False, b"x") for w in wanted]
            outcomes = ledger._run_batch(operations.copy)
            assert {type(outcome.error) for outcome in outcomes} == {type(None)}
        assert ledger.erase_expired_claims(2**62) == 600

    def test_the_same_call_again_returns_the_open_reservation(self, ledger: Any) -> None:
        made, head = take(ledger, "first"), ledger.head()
        assert take(ledger, "first") == made
        assert ledger.head() == head
        self.refuses(ledger, errors.KeyReused, lambda: take(ledger, "first", claim(OTHER)))
        for other in (claim(key="another"), None):
            error = self.refuses(ledger, errors.ReservationConflict, partial(reserve, ledger, "first", 10, claim=other))
            assert error.fields == ("claim",)
        assert ledger.recorded("another", BODY) is None
        ledger.settle("first", 1, answer=b"x")
        assert self.refuses(ledger, errors.AnswerRecorded, lambda: take(ledger, "first")).answer == b"x"

    def test_a_key_is_one_for_all_scopes(self, ledger: Any) -> None:
        """Who wants a key of a caller's own puts the caller's name into it."""
        take(ledger, "first")
        self.refuses(ledger, errors.AnswerPending, lambda: take(ledger, "second", scope_id=BOB))
        assert take(ledger, "third", claim(key="acme/bob: order 66"), scope_id=BOB).state == "open"

    def test_of_8_threads_with_one_key_exactly_one_gets_a_reservation(self, ledger: Any) -> None:
        for turn in range(5):
            key = f"key {turn}"

            def work(k: int, turn: int = turn, key: str = key) -> str:
                try:
                    take(ledger, f"r-{turn}-{k}", claim(key=key))
                    ledger.settle(f"r-{turn}-{k}", 1, answer=str(k).encode())
                except errors.AnswerRecorded as error:
                    return f"answer {error.answer.decode()}"
                except LedgerError as error:
                    return type(error).__name__
                return f"answer {k}"

            with ThreadPoolExecutor(8) as pool:
                outcomes = set(pool.map(work, range(8)))
            answer = ledger.recorded(key, BODY).decode()
            assert outcomes <= {"AnswerPending", f"answer {answer}"}
            assert f"answer {answer}" in outcomes
        assert balances(ledger)[DATASET] == (5, 0)
        assert ledger.statement(ALICE).settled == 5

    def test_of_one_key_in_one_transaction_the_first_wins(self, ledger: Any) -> None:
        scopes, wanted = (ALICE, ACME, DATASET), WantedClaim("a" * 64, BODY, 10**9)
        outcomes = ledger._run_batch(
            lambda: [
                Reserve("first", scopes, 10, 10**7, "o", {}, False, wanted),
                Reserve("second", scopes, 10, 10**7, "o", {}, False, wanted),
                Settle("first", 4, {}, False, b"answer"),
                Reserve("third", scopes, 10, 10**7, "o", {}, False, wanted),
            ]
        )
        refusals = [type(outcome.error) if outcome.error else None for outcome in outcomes]
        assert refusals == [None, errors.AnswerPending, None, errors.AnswerRecorded]
        assert balances(ledger)[ACME] == (4, 0)

    def test_an_answer_needs_a_claim_and_a_settlement(self, ledger: Any) -> None:
        reserve(ledger, "plain", 10)
        self.refuses(ledger, errors.InvalidArgument, lambda: ledger.settle("plain", 1, answer=b"x"))
        take(ledger, "first")
        self.refuses(ledger, errors.SettlementExceedsReservation, lambda: ledger.settle("first", 11, answer=b"x"))
        self.both_refuse(ledger, errors.AnswerPending)
        ledger.settle("first", 1, answer=b"paid")
        self.refuses(ledger, errors.AlreadySettled, lambda: ledger.settle("first", 1, answer=b"other"))
        assert ledger.recorded(KEY, BODY) == b"paid"

    def test_an_answer_has_a_largest_size(self, ledger: Any) -> None:
        take(ledger, "first")
        self.refuses(ledger, errors.InvalidArgument, lambda: ledger.settle("first", 1, answer=b"x" * (MAX_ANSWER + 1)))
        ledger.settle("first", 1, answer=b"x" * MAX_ANSWER)
        assert ledger.recorded(KEY, BODY) == b"x" * MAX_ANSWER

    @pytest.mark.parametrize("bad", ["text", bytearray(b"x"), 7, [1]])
    def test_an_answer_is_bytes(self, ledger: Any, bad: Any) -> None:
        take(ledger, "first")
        self.refuses(ledger, errors.InvalidArgument, lambda: ledger.settle("first", 1, answer=bad))

    @pytest.mark.parametrize(
        "bad",
        [
            claim(key=""),
            claim(key="x" * 513),
            claim(key="a\nb"),
            claim(key="é"),
            claim("A" * 64),
            claim("a" * 63),
            claim(keep_seconds=0),
            claim(keep_seconds=float("nan")),
            claim(keep_seconds=32 * 86400.0),
            ClaimRequest(7, BODY, HOUR),  # type: ignore[arg-type]
            ClaimRequest(KEY, None, HOUR),  # type: ignore[arg-type]
            (KEY, BODY, HOUR),
        ],
    )
    def test_a_claim_that_is_not_one_is_refused(self, ledger: Any, bad: Any) -> None:
        self.refuses(ledger, errors.InvalidArgument, lambda: take(ledger, "first", bad))

    def test_a_look_up_checks_its_arguments(self, ledger: Any) -> None:
        for key, digest in (("", BODY), (KEY, "x"), (None, BODY), (KEY, None)):
            self.refuses(ledger, errors.InvalidArgument, partial(ledger.recorded, key, digest))
        for bad in (-1, 1.0, True, 2**63):
            self.refuses(ledger, errors.InvalidArgument, partial(ledger.erase_expired_claims, bad))
