"""Forward passes of a causal language model over a given answer, for scores that are computed without a server.

The prompt is the user message under the model's own chat template; the answer's tokens follow it. What a pass gives is
what a server gives with its samples: log-probabilities of the answer's tokens, and the largest at each position.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent.accounting.fingerprint import sha256_hex
from reticent.rewards.encoders.files import files_sha256
from reticent.rewards.errors import EncoderUnavailable

from .base import TOP_LOG_PROBABILITIES

__all__ = ["AnswerPass", "CausalPasses", "Encoded"]

_KEPT_PROMPTS = 4


@dataclass(frozen=True)
class AnswerPass:
    """Of each of the answer's tokens: its log-probability, and the largest ones at its position, descending; nats."""

    log_probabilities: tuple[float, ...]
    top: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Encoded:
    """Prompt and answer as tokens.

    Attributes:
        ids: all tokens.
        answer_start: index of the answer's first token.
        evidence: indices of the prompt's tokens that lie in the evidence; all of the prompt's where it is not found.
    """

    ids: tuple[int, ...]
    answer_start: int
    evidence: tuple[int, ...]


class CausalPasses:
    """A causal model in a folder, as transformers saves it, run on the CPU in float32.

    Args:
        folder: model, tokenizer and chat template.
        attentions: whether attention weights will be read (the plain implementation, slower).
        max_tokens: most tokens of prompt and answer; longer ones are refused, never cut.

    Raises:
        EncoderUnavailable: no model in the folder.
    """

    def __init__(self, folder: Path, *, attentions: bool = False, max_tokens: int = 2048) -> None:
        if not (folder / "config.json").is_file():
            raise EncoderUnavailable("causal", "the folder has no config.json")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch: Any = torch
        self._folder = folder
        self._max_tokens = max_tokens
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        kind = {"attn_implementation": "eager"} if attentions else {}
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32, **kind)
        self.model: Any = model.eval()
        self._kept: dict[tuple[int, ...], tuple[Any, Any]] = {}

    @functools.cached_property
    def revision(self) -> str:
        """SHA-256 of weights, configuration, tokenizer and chat template."""
        names = ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja")
        return sha256_hex({"model": "causal", "files": files_sha256(self._folder, names)})

    def encode(self, prompt: str, answer: str, evidence: Sequence[str] = ()) -> Encoded | None:
        """Tokens of both; None where the answer has none, or both have more than `max_tokens` together."""
        said = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        text = self._templated(prompt)
        # The template has written the special tokens already; adding them again would double the first.
        tokens = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = tokens["input_ids"]
        if not said or len(ids) + len(said) > self._max_tokens:
            return None
        spans = [(at, at + len(one)) for one in evidence if one and (at := text.find(one)) >= 0]
        inside = tuple(
            i
            for i, (start, end) in enumerate(tokens["offset_mapping"])
            if any(start < last and end > first for first, last in spans)
        )
        return Encoded((*ids, *said), len(ids), inside or tuple(range(len(ids))))

    def answer_pass(self, prompt: str, answer: str) -> AnswerPass:
        """One teacher-forced pass. An answer without tokens, or too long with its prompt, gives an empty result.

        The last few prompts are kept, so that several answers to one prompt cost their own tokens only.
        """
        encoded = self.encode(prompt, answer)
        if encoded is None:
            return AnswerPass((), ())
        torch, start = self.torch, encoded.answer_start
        said = torch.tensor([encoded.ids[start:]])
        with torch.inference_mode():
            cache, first = self._prefilled(encoded.ids[:start])
            logits = first
            if said.shape[1] > 1:
                later = self.model(said[:, :-1], past_key_values=cache, use_cache=True).logits[0]
                cache.crop(1 - said.shape[1])
                logits = torch.cat([first, later])
            logs = logits.double().log_softmax(-1)
            chosen = logs.gather(1, said[0][:, None])[:, 0]
            top = logs.topk(min(TOP_LOG_PROBABILITIES, logs.shape[1]), dim=-1).values
        return AnswerPass(tuple(chosen.tolist()), tuple(tuple(row) for row in top.tolist()))

    def _prefilled(self, ids: tuple[int, ...]) -> tuple[Any, Any]:
        """Key-value cache of a prompt, and the logits after its last token, shape (1, V)."""
        known = self._kept.pop(ids, None)
        if known is None:
            output = self.model(self.torch.tensor([ids]), use_cache=True, logits_to_keep=1)
            known = (output.past_key_values, output.logits[0])
        self._kept[ids] = known
        while len(self._kept) > _KEPT_PROMPTS:
            self._kept.pop(next(iter(self._kept)))
        return known

    def sample(self, prompt: str, count: int, *, max_new_tokens: int, temperature: float, seed: int) -> list[str]:
        """`count` answers, seeded: for the other candidates of scores that compare. Nothing private is drawn here."""
        torch = self.torch
        ids = self._tokenizer(self._templated(prompt), add_special_tokens=False)["input_ids"]
        ends = self.model.generation_config.eos_token_id
        stop = torch.tensor([ends] if isinstance(ends, int) else list(ends or ()), dtype=torch.long)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.zeros((count, 0), dtype=torch.long)
        ended = torch.zeros(count, dtype=torch.bool)
        with torch.inference_mode():
            output = self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
            cache, logits = output.past_key_values, output.logits[:, -1].repeat(count, 1)
            cache.batch_repeat_interleave(count)
            for step in range(max_new_tokens):
                law = (logits.double() / temperature).softmax(-1)
                tokens = torch.multinomial(law, 1, generator=generator)
                drawn = torch.cat([drawn, tokens], dim=1)
                ended |= torch.isin(tokens[:, 0], stop)
                if bool(ended.all()) or step == max_new_tokens - 1:
                    break
                logits = self.model(tokens, past_key_values=cache, use_cache=True).logits[:, -1]
        answers = []
        for row in drawn:
            ends_at = torch.isin(row, stop).nonzero()
            answers.append(row[: int(ends_at[0])] if len(ends_at) else row)
        return [str(text).strip() for text in self._tokenizer.batch_decode(answers, skip_special_tokens=True)]

    def _templated(self, prompt: str) -> str:
        message = [{"role": "user", "content": prompt}]
        return str(self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
