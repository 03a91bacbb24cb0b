"""The contract of every `CandidateSource`, inherited by the fake and by `HttpSource` before a real little upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from reticent.plugin.candidates.http import HttpSource
from reticent.plugin.errors import PromptRefused, SourceUnavailable
from reticent.plugin.ports import Candidate, CandidateSource, Prompt, SamplingParameters
from reticent.plugin.response_format import ResponseFormat
from reticent.rewards import Subject
from tests.fakes.build import run
from tests.fakes.parts import FakeSource
from tests.fakes.serving import serving
from tests.fakes.upstream import Mood, Upstream

PLAIN = Prompt(({"role": "user", "content": "one two three"},), None, Subject("one two three"), "plain", "")
WITH_EVIDENCE = Prompt(
    ({"role": "user", "content": "evidence one two three"},),
    ({"role": "user", "content": "one two three"},),
    Subject("evidence one two three", "one two three", ("evidence",)),
    "evidence",
    "0" * 64,
)
SAMPLING = SamplingParameters(0.7, 0.9, 16)

Use = Callable[[Callable[[CandidateSource], Awaitable[None]]], None]


class CandidateSourceContract:
    """What the handler relies on."""

    @pytest.fixture
    def use(self) -> Use:
        """Runs a coroutine with a fresh source and closes it."""
        raise NotImplementedError

    @pytest.fixture
    def use_broken(self) -> Use:
        """The same with a source that cannot draw."""
        raise NotImplementedError

    @pytest.fixture
    def use_refusing(self) -> Use:
        """The same with a source whose engine refuses the prompt."""
        raise NotImplementedError

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_it_draws_as_many_candidates_as_asked(self, use: Use, count: int) -> None:
        async def story(source: CandidateSource) -> None:
            found = await source.draw(PLAIN, SAMPLING, count, salt="t", offset=0)
            assert len(found) == count
            for candidate in found:
                assert isinstance(candidate, Candidate)
                assert candidate.text
                assert candidate.finish_reason in ("stop", "length", "error")
                assert candidate.completion_tokens == len(candidate.text.split())
                assert candidate.prompt_tokens > 0
                assert all(p <= 0 for p in candidate.log_probabilities)

        use(story)

    def test_a_later_chunk_is_not_the_earlier_one_again(self, use: Use) -> None:
        async def story(source: CandidateSource) -> None:
            first = await source.draw(PLAIN, SAMPLING, 3, salt="t", offset=0)
            second = await source.draw(PLAIN, SAMPLING, 3, salt="t", offset=3)
            assert not {c.text for c in first} & {c.text for c in second}

        use(story)

    def test_a_source_that_cannot_draw_says_so(self, use_broken: Use) -> None:
        async def story(source: CandidateSource) -> None:
            for count in (1, 4):
                with pytest.raises(SourceUnavailable):
                    await source.draw(PLAIN, SAMPLING, count, salt="t", offset=0)

        use_broken(story)

    def test_a_prompt_that_the_engine_refuses_is_the_clients_fault(self, use_refusing: Use) -> None:
        async def story(source: CandidateSource) -> None:
            for count in (1, 4):
                with pytest.raises(PromptRefused):
                    await source.draw(PLAIN, SAMPLING, count, salt="t", offset=0)

        use_refusing(story)

    def test_the_pass_without_evidence_needs_evidence(self, use: Use) -> None:
        async def story(source: CandidateSource) -> None:
            (answer,) = await source.draw(PLAIN, SAMPLING, 1, salt="t", offset=0)
            assert await source.score_without_evidence(PLAIN, answer, salt="t") == ()

        use(story)

    def test_the_pass_without_evidence_gives_one_number_a_token(self, use: Use) -> None:
        async def story(source: CandidateSource) -> None:
            (answer,) = await source.draw(WITH_EVIDENCE, SAMPLING, 1, salt="t", offset=0)
            scores = await source.score_without_evidence(WITH_EVIDENCE, answer, salt="t")
            assert len(scores) == answer.completion_tokens == len(answer.log_probabilities)
            assert all(score <= 0 for score in scores)

        use(story)

    def test_the_pass_with_evidence_gives_one_number_a_token(self, use: Use) -> None:
        async def story(source: CandidateSource) -> None:
            for prompt in (PLAIN, WITH_EVIDENCE):
                (answer,) = await source.draw(prompt, SAMPLING, 1, salt="t", offset=0)
                scores = await source.score_with_evidence(prompt, answer, salt="t")
                assert len(scores) == answer.completion_tokens == len(answer.log_probabilities)

        use(story)

    def test_the_largest_log_probabilities_come_where_they_are_asked_for(self, use: Use) -> None:
        async def story(source: CandidateSource) -> None:
            (plain,) = await source.draw(PLAIN, SAMPLING, 1, salt="t", offset=0)
            assert plain.top_log_probabilities == ()
            for count in (1, 2):
                asked = replace(SAMPLING, top_log_probabilities=5)
                for told in await source.draw(PLAIN, asked, count, salt="t", offset=1):
                    assert len(told.top_log_probabilities) == len(told.log_probabilities)
                    for row in told.top_log_probabilities:
                        assert len(row) == 5
                        assert list(row) == sorted(row, reverse=True)

        use(story)

    def test_a_source_that_can_draw_passes_its_check(self, use: Use) -> None:
        async def story(source: CandidateSource) -> None:
            await source.check()

        use(story)


class TestFakeSource(CandidateSourceContract):
    @staticmethod
    def using(source: FakeSource) -> Use:
        def use(story: Callable[[CandidateSource], Awaitable[None]]) -> None:
            async def whole() -> None:
                await story(source)
                await source.close()

            run(whole())

        return use

    @pytest.fixture
    def use(self) -> Use:
        return self.using(FakeSource())

    @pytest.fixture
    def use_broken(self) -> Use:
        return self.using(FakeSource(fail={1: SourceUnavailable("x"), 2: SourceUnavailable("x")}))

    @pytest.fixture
    def use_refusing(self) -> Use:
        return self.using(FakeSource(fail={1: PromptRefused("x"), 2: PromptRefused("x")}))


UPSTREAM = Upstream()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(UPSTREAM.app()) as url:
        yield f"{url}/v1"


@asynccontextmanager
async def http_source(*addresses: str) -> AsyncIterator[HttpSource]:
    source = HttpSource(addresses, "key", "small", 20.0)
    try:
        yield source
    finally:
        await source.close()


def behave(mood: Mood) -> Upstream:
    UPSTREAM.mood = mood
    UPSTREAM.requests.clear()
    return UPSTREAM


class TestHttpSource(CandidateSourceContract):
    @staticmethod
    def using(address: str, mood: Mood) -> Use:
        behave(mood)

        def use(story: Callable[[CandidateSource], Awaitable[None]]) -> None:
            async def whole() -> None:
                async with http_source(address) as source:
                    await story(source)

            run(whole())

        return use

    @pytest.fixture
    def use(self, address: str) -> Use:
        return self.using(address, "well")

    @pytest.fixture
    def use_broken(self, address: str) -> Use:
        return self.using(address, "broken")

    @pytest.fixture
    def use_refusing(self, address: str) -> Use:
        return self.using(address, "no prompt")

    def test_one_call_gives_n_candidates_and_carries_every_parameter(self, address: str) -> None:
        upstream = behave("well")
        sampling = SamplingParameters(0.3, 0.8, 9, ("end",), 0.5, -0.5, ((7, -2.0),), seed=11)

        async def story() -> None:
            async with http_source(address) as source:
                await source.draw(PLAIN, sampling, 4, salt="tenant-a", offset=5)

        run(story())
        (sent,) = upstream.requests
        assert sent == {
            "model": "small",
            "messages": [{"role": "user", "content": "one two three"}],
            "n": 4,
            "temperature": 0.3,
            "top_p": 0.8,
            "max_tokens": 9,
            "stop": ["end"],
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "logit_bias": {"7": -2.0},
            "seed": 16,
            "logprobs": True,
            "cache_salt": "tenant-a",
        }

    def test_log_probabilities_are_asked_for_and_told_as_they_were_wished(self, address: str) -> None:
        upstream = behave("well")

        async def story() -> None:
            async with http_source(address) as source:
                for shown, read in ((None, 0), (0, 0), (2, 0), (2, 10), (20, 10)):
                    sampling = SamplingParameters(0.7, 1.0, 9, shown=shown, top_log_probabilities=read)
                    (found,) = await source.draw(PLAIN, sampling, 1, salt="t", offset=0)
                    assert upstream.requests[-1].get("top_logprobs", 0) == sampling.top
                    assert all(len(row) == read for row in found.top_log_probabilities)
                    if shown is None:
                        assert found.positions is None
                        continue
                    assert found.positions is not None
                    assert "".join(p.chosen.text for p in found.positions) == found.text
                    assert all(len(p.top) == shown for p in found.positions)

        run(story())

    def test_a_form_is_asked_for_as_it_stood_in_the_request(self, address: str) -> None:
        upstream = behave("well")
        wire = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}

        async def story() -> None:
            async with http_source(address) as source:
                sampling = SamplingParameters(0.7, 1.0, 9, response_format=ResponseFormat(wire))
                await source.draw(PLAIN, sampling, 2, salt="t", offset=0)
                await source.draw(PLAIN, SAMPLING, 2, salt="t", offset=0)

        run(story())
        assert [r.get("response_format") for r in upstream.requests] == [wire, None]
        assert "response_format" not in upstream.requests[1]

    @pytest.mark.parametrize(("mood", "first"), [("refuses n", 1 + 4), ("ignores n", 1 + 3)])
    def test_where_n_is_not_understood_single_calls_are_made_and_remembered(
        self, address: str, mood: Mood, first: int
    ) -> None:
        upstream = behave(mood)
        sampling = SamplingParameters(0.7, 1.0, 9, seed=100)

        async def story() -> None:
            async with http_source(address) as source:
                found = await source.draw(PLAIN, sampling, 4, salt="t", offset=0)
                assert len({c.text for c in found}) == 4
                assert len(upstream.requests) == first
                assert len(await source.draw(PLAIN, sampling, 4, salt="t", offset=4)) == 4
                assert len(upstream.requests) == first + 4

        run(story())
        # A refused call drew nothing; one that ignored `n` drew with its seed, which must not be used again.
        singles = [r["seed"] for r in upstream.requests if "n" not in r or mood == "ignores n"]
        assert len(set(singles)) == len(singles)
        assert all("n" not in r for r in upstream.requests[1:])

    def test_a_refused_prompt_does_not_mark_the_upstream_as_one_without_n(self, address: str) -> None:
        upstream = behave("no prompt")

        async def story() -> None:
            async with http_source(address) as source:
                with pytest.raises(PromptRefused):
                    await source.draw(PLAIN, SAMPLING, 4, salt="t", offset=0)
                upstream.mood = "well"
                upstream.requests.clear()
                await source.draw(PLAIN, SAMPLING, 4, salt="t", offset=0)

        run(story())
        assert [r.get("n") for r in upstream.requests] == [4]

    def test_no_content_is_an_empty_candidate(self, address: str) -> None:
        behave("null content")

        async def story() -> None:
            async with http_source(address) as source:
                found = await source.draw(PLAIN, SAMPLING, 2, salt="t", offset=0)
                assert [c.text for c in found] == ["", ""]

        run(story())

    def test_null_candidates_are_empty_ones(self, address: str) -> None:
        behave("null choices")

        async def story() -> None:
            async with http_source(address) as source:
                found = await source.draw(PLAIN, SAMPLING, 4, salt="t", offset=0)
                assert [bool(c.text) for c in found] == [False, False, True, True]
                assert [c.finish_reason for c in found] == ["error", "error", "stop", "stop"]

        run(story())

    def test_of_a_model_that_reasons_the_final_content_counts(self, address: str) -> None:
        upstream = behave("reasons")
        upstream.drawn = 0

        async def story() -> None:
            async with http_source(address) as source:
                found = await source.draw(PLAIN, SAMPLING, 4, salt="t", offset=0)
                assert [c.text for c in found] == ["", "answer 2", "", "answer 4"]
                assert "think" not in str([c.judged for c in found])
                assert all(c.completion_tokens == 2 for c in found)

        run(story())

    def test_a_candidate_that_was_cut_off_is_still_one(self, address: str) -> None:
        behave("well")

        async def story() -> None:
            async with http_source(address) as source:
                (found,) = await source.draw(PLAIN, SamplingParameters(0.7, 1.0, 2), 1, salt="t", offset=0)
                assert found.finish_reason == "length"

        run(story())

    def test_of_single_calls_one_that_fails_is_an_empty_candidate(self, address: str) -> None:
        upstream = behave("refuses n")

        async def story() -> None:
            async with http_source(address) as source:
                await source.draw(PLAIN, SAMPLING, 2, salt="t", offset=0)
                upstream.mood = "every other fails"
                found = await source.draw(PLAIN, SAMPLING, 4, salt="t", offset=2)
                assert sorted(c.finish_reason for c in found) == ["error", "error", "stop", "stop"]
                assert all(bool(c.text) is (c.finish_reason == "stop") for c in found)

        run(story())

    def test_a_server_that_answers_in_no_known_form_is_not_available(self, address: str) -> None:
        behave("strange")

        async def story() -> None:
            async with http_source(address) as source:
                for count in (1, 3):
                    with pytest.raises(SourceUnavailable):
                        await source.draw(PLAIN, SAMPLING, count, salt="t", offset=0)

        run(story())

    def test_a_failed_draw_is_not_tried_again(self, address: str) -> None:
        upstream = behave("broken")

        async def story() -> None:
            async with http_source(address) as source:
                with pytest.raises(SourceUnavailable):
                    await source.draw(PLAIN, SAMPLING, 3, salt="t", offset=0)

        run(story())
        assert len(upstream.requests) == 1

    def test_the_pass_without_evidence_forces_the_same_answer_after_the_bare_prompt(self, address: str) -> None:
        upstream = behave("well")

        async def story() -> None:
            async with http_source(address) as source:
                (answer,) = await source.draw(WITH_EVIDENCE, SAMPLING, 1, salt="t", offset=0)
                upstream.requests.clear()
                found = await source.score_without_evidence(WITH_EVIDENCE, answer, salt="t")
                # The upstream's words are numbered: the bare prompt has three, the answer's are number 3 and 4.
                assert found == (-3.0, -4.0)
                forced = upstream.requests[-1]
                assert forced["messages"][-1] == {"role": "assistant", "content": answer.text}
                assert forced["messages"][:-1] == list(WITH_EVIDENCE.bare_messages or ())
                assert forced["continue_final_message"] is True
                assert forced["add_generation_prompt"] is False
                assert all(r["cache_salt"] == "t" for r in upstream.requests)

        run(story())

    def test_several_upstreams_are_asked_in_turn_and_one_that_answers_is_enough(self, address: str) -> None:
        upstream = behave("well")
        nobody = "http://127.0.0.1:9/v1"

        async def story() -> None:
            async with http_source(address, nobody) as source:
                await source.check()
                await source.draw(PLAIN, SAMPLING, 1, salt="t", offset=0)
                with pytest.raises(SourceUnavailable):
                    await source.draw(PLAIN, SAMPLING, 1, salt="t", offset=0)
                await source.draw(PLAIN, SAMPLING, 1, salt="t", offset=0)
            async with http_source(nobody) as source:
                with pytest.raises(SourceUnavailable):
                    await source.check()

        run(story())
        assert len(upstream.requests) == 2

    def test_without_an_upstream_there_is_no_source(self) -> None:
        with pytest.raises(ValueError, match="upstream"):
            HttpSource((), None, "small", 1.0)
