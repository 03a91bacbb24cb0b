"""From a prompt and an answer to the tokens that a reward model reads: the template once, and no answer ever cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import ModelUnusable

__all__ = ["Encoded", "Rendering", "cut_text"]

_PROMPT_MARK, _ANSWER_MARK = "prompt-mark-0417", "answer-mark-0417"


@dataclass(frozen=True)
class Encoded:
    """Token ids of one candidate with its prompt; `types` are the segments' numbers where there are two."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None = None


class Rendering:
    """Makes token ids of prompts and answers.

    Special tokens are written once: by the chat template, or by the text template, or, for two segments, by the
    tokenizer. What is too long loses tokens of the prompt, from its start, where the rule says so.

    Args:
        folder: with the tokenizer's files.
        template: `chat`, `pair`, or a text with `{prompt}` and `{answer}`.
        max_length: most tokens in all.
        long_input: `truncate-prompt` or `zero`.

    Raises:
        ModelUnusable: no fast tokenizer in the folder, or no chat template, or one that does not show both messages.
    """

    def __init__(
        self, folder: Path, template: str, max_length: int, long_input: Literal["truncate-prompt", "zero"]
    ) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ModelUnusable(str(folder), f"no tokenizer ({type(error).__name__})") from None
        if not self._tokenizer.is_fast:
            raise ModelUnusable(str(folder), "its tokenizer cannot say which characters a token covers")
        self._template = template
        self._max_length = max_length
        self._long_input = long_input
        self._head = self._head_of_chat(folder) if template == "chat" else template.partition("{prompt}")[0]

    def encode(self, prompt: str, answer: str) -> Encoded | None:
        """The tokens, or None where the reward is 0 by rule: an answer without text, one that the template would
        change, or more than `max_length` tokens that may not be cut.

        The rule reads the two texts only, so a candidate's fate does not depend on D or on other candidates.
        """
        if not answer.strip():
            return None
        if self._template == "pair":
            tokens = self._tokenizer(prompt, answer, return_token_type_ids=True, verbose=False)
            segments = tokens.sequence_ids(0)
            prompt_at = [i for i, segment in enumerate(segments) if segment == 0]
            # As the tokenizer's own call does: some models with segments were trained without them.
            has_types = "token_type_ids" in self._tokenizer.model_input_names
            return self._fitted(tokens["input_ids"], prompt_at, tokens["token_type_ids"] if has_types else None)
        text = self._text(prompt, answer)
        place = self._place_of(prompt, text)
        if place is None or answer.strip() not in text[place[1] :]:
            return None
        # The template has written the special tokens; adding them again would double the first.
        tokens = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        prompt_at = [
            i for i, (start, end) in enumerate(tokens["offset_mapping"]) if place[0] <= start < end <= place[1]
        ]
        return self._fitted(tokens["input_ids"], prompt_at, None)

    def _fitted(self, ids: Sequence[int], prompt_at: Sequence[int], types: Sequence[int] | None) -> Encoded | None:
        surplus = len(ids) - self._max_length
        if surplus > 0 and (self._long_input == "zero" or surplus > len(prompt_at)):
            return None
        dropped = frozenset(prompt_at[:surplus]) if surplus > 0 else frozenset[int]()
        kept = [i for i in range(len(ids)) if i not in dropped]
        return Encoded(tuple(ids[i] for i in kept), None if types is None else tuple(types[i] for i in kept))

    def _text(self, prompt: str, answer: str) -> str:
        if self._template != "chat":
            before, _, rest = self._template.partition("{prompt}")
            middle, _, after = rest.partition("{answer}")
            return before + prompt + middle + answer + after
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False))

    def _place_of(self, prompt: str, text: str) -> tuple[int, int] | None:
        """Where the prompt stands in `text`; many chat templates strip it."""
        start = len(self._head)
        if text[:start] == self._head:
            for shown in (prompt, prompt.strip()):
                if text.startswith(shown, start):
                    return start, start + len(shown)
        return None

    def _head_of_chat(self, folder: Path) -> str:
        if not self._tokenizer.chat_template:
            raise ModelUnusable(str(folder), "its tokenizer has no chat template; set another template")
        head, mark, rest = self._text(_PROMPT_MARK, _ANSWER_MARK).partition(_PROMPT_MARK)
        if not mark or rest.count(_ANSWER_MARK) != 1 or _PROMPT_MARK in rest:
            raise ModelUnusable(str(folder), "its chat template does not show prompt and answer once each, in order")
        return head


def cut_text(prompt: str, answer: str, room: int, long_input: str) -> str | None:
    """The prompt, shortened at its start so that both have at most `room` characters; None where the reward is 0."""
    surplus = len(prompt) + len(answer) - room
    if not answer.strip() or (surplus > 0 and (long_input == "zero" or surplus > len(prompt))):
        return None
    return prompt[max(surplus, 0) :]
