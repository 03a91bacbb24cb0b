"""Preference pairs from answers known to be right or wrong: every pair prefers a right one over a wrong one."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from reticent.accounting.fingerprint import parse_json

from .encoders.base import Subject
from .errors import InvalidPairs
from .pairs import PreferencePair

__all__ = ["PersonRule", "pairs_of_pool"]

PersonRule = Literal["none", "prompt"]
"""Who is taken to have given a pair: nobody named (every pair is a person), or one person for each prompt."""


def pairs_of_pool(path: Path, per_prompt: int, seed: int, person: PersonRule = "none") -> list[PreferencePair]:
    """Pairs of a pool file: JSON lines, plain or gzipped, `{"prompt", "responses": [{"text", "is_correct": 0|1}]}`.

    Args:
        per_prompt: most pairs of one prompt, drawn without replacement from all of its right × wrong answers.
        seed: of that draw; a prompt's pairs depend on the seed and on that prompt alone.
        person: with "prompt" every pair names its prompt as its person, so that k is `per_prompt`.

    Repeated and empty answers are passed over, and so is an answer that stands there both as right and as wrong.

    Raises:
        FileNotFoundError: no such file.
        InvalidPairs: a line of another form, or one class only: no prompt has both a right and a wrong answer.
    """
    pairs: list[PreferencePair] = []
    prompts = right_in_all = wrong_in_all = 0
    for prompt, right, wrong in _read(path):
        prompts, right_in_all, wrong_in_all = prompts + 1, right_in_all + len(right), wrong_in_all + len(wrong)
        couples = [(chosen, rejected) for chosen in right for rejected in wrong]
        rng = random.Random(f"{seed}\0{prompt}")  # noqa: S311 - a study's sample, no privacy noise
        chosen_couples = rng.sample(couples, min(per_prompt, len(couples)))
        name = f"prompt {prompts}" if person == "prompt" else None
        pairs += [PreferencePair(Subject(prompt), chosen, rejected, name) for chosen, rejected in chosen_couples]
    if not pairs:
        raise InvalidPairs(
            f"one class only: none of {prompts} prompts has both a right and a wrong answer "
            f"({right_in_all} right, {wrong_in_all} wrong)"
        )
    return pairs


def _read(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    raw = path.read_bytes()
    try:
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise InvalidPairs(f"not a text in UTF-8, plain or gzipped: {type(error).__name__}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            raise InvalidPairs("not JSON, or a repeated key", number) from error
        if not isinstance(value, dict) or not isinstance(value.get("prompt"), str) or not value["prompt"].strip():
            raise InvalidPairs("no JSON object with a prompt", number)
        responses = value.get("responses")
        if not isinstance(responses, list):
            raise InvalidPairs("responses is missing or no list", number)
        labelled = [_labelled(response, number) for response in responses]
        right = dict.fromkeys(text for text, is_right in labelled if is_right and text.strip())
        wrong = dict.fromkeys(text for text, is_right in labelled if not is_right and text.strip())
        both = right.keys() & wrong.keys()
        yield value["prompt"], [t for t in right if t not in both], [t for t in wrong if t not in both]


def _labelled(response: object, number: int) -> tuple[str, bool]:
    if not isinstance(response, Mapping) or not isinstance(response.get("text"), str):
        raise InvalidPairs("a response without a text", number)
    label = response.get("is_correct")
    if label not in (0, 1):
        raise InvalidPairs("is_correct is neither 0 nor 1", number)
    return str(response["text"]), bool(label)
