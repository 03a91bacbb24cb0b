"""What the engine's output becomes: log-probabilities of the answer's tokens and the largest at each position."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reticent.plugin.candidates.engine import _candidate
from reticent.plugin.ports import SamplingParameters


def _output(rows: list[dict[int, float]], tokens: list[int], **more: Any) -> Any:
    logs = [{token: SimpleNamespace(logprob=value) for token, value in row.items()} for row in rows]
    return SimpleNamespace(text="x", token_ids=tokens, logprobs=logs, **more)


def _asking(top: int) -> SamplingParameters:
    return SamplingParameters(temperature=0.5, top_p=1.0, max_tokens=8, top_log_probabilities=top)


def test_the_largest_are_sorted_and_the_sampled_token_takes_no_ones_place() -> None:
    # Token 9 was sampled and is not among the three largest: vLLM gives it beside them.
    rows = [{9: -7.0, 1: -0.5, 2: -2.0, 3: -3.0}, {1: -0.1, 2: -4.0, 3: -5.0}]
    found = _candidate(_output(rows, [9, 1], finish_reason="length", stop_reason=None), 5, _asking(2))
    assert found.log_probabilities == (-7.0, -0.1)
    assert found.top_log_probabilities == ((-0.5, -2.0), (-0.1, -4.0))


def test_the_token_that_ends_an_answer_is_left_out_of_both() -> None:
    rows = [{1: -0.5, 2: -2.0}, {2: -0.1, 1: -4.0}]
    found = _candidate(_output(rows, [1, 2], finish_reason="stop", stop_reason=None), 5, _asking(1))
    assert (found.log_probabilities, found.top_log_probabilities) == ((-0.5,), ((-0.5,),))
    assert found.completion_tokens == 2


@pytest.mark.parametrize("logs", [[], None])
def test_without_log_probabilities_there_are_none(logs: list[Any] | None) -> None:
    output = SimpleNamespace(text="x", token_ids=[1], logprobs=logs, finish_reason="length", stop_reason=None)
    found = _candidate(output, 5, _asking(3))
    assert (found.log_probabilities, found.top_log_probabilities) == ((), ())


def test_where_none_are_asked_for_none_are_kept() -> None:
    found = _candidate(_output([{1: -0.5}], [1], finish_reason="length", stop_reason=None), 5, _asking(0))
    assert (found.log_probabilities, found.top_log_probabilities) == ((-0.5,), ())
