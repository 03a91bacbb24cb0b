"""Reward models of every supported architecture with random weights and a tokenizer of a few hundred words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    DebertaV2Config,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers import AutoModelForSequenceClassification as Auto

__all__ = ["CONFIGS", "GATE", "make_classifier", "make_gated", "make_openassistant", "make_tokenizer"]

SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "[CLS]", "[SEP]")
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}<|end|>\n{% endfor %}"
)
_TEXT = [
    "Passage: Ada has a cat. Question: What pet has Ada? It is not stated. A dog ran home.",
    "The quick brown fox jumps over the lazy dog; numbers 0 1 2 3 4 5 6 7 8 9.",
]


def make_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose post-processor adds `<s>` to single texts (so that a template that writes it too would
    double it) and [CLS] and [SEP] to pairs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    tokenizer.train_from_iterator(_TEXT * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("<s>", 1), ("[CLS]", 6), ("[SEP]", 7)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=CHAT
    )
    fast.save_pretrained(folder)
    return fast


_SMALL: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "num_labels": 1,
    # Far from the usual .02, so that rewards of different texts differ by more than rounding.
    "initializer_range": 0.4,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None}

CONFIGS: dict[str, tuple[Callable[[], Any], str]] = {
    "gpt_neox": (lambda: GPTNeoXConfig(**_SMALL, pad_token_id=None), "<|user|>{prompt}</s><|assistant|>{answer}</s>"),
    "gemma2": (lambda: Gemma2Config(**{**_GROUPED, "pad_token_id": 0}, sliding_window=16), "chat"),
    "llama": (lambda: LlamaConfig(**_GROUPED), "chat"),
    "qwen2": (lambda: Qwen2Config(**{**_GROUPED, "pad_token_id": 2}), "chat"),
    "qwen3": (lambda: Qwen3Config(**_GROUPED), "chat"),
    "modernbert": (
        lambda: ModernBertConfig(
            **{**_SMALL, "initializer_range": 0.2},
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=6,
            sep_token_id=7,
            local_attention=16,
        ),
        "pair",
    ),
    "deberta": (lambda: DebertaV2Config(**_SMALL, type_vocab_size=2, relative_attention=True), "pair"),
}
"""By name: the configuration, and the template that such a reward model is asked by."""

GATE = [5, 0, 4]
"""Where the tiny gated model's gate looks; the middle is set from the tokenizer's newline."""


def make_classifier(name: str, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
    """A sequence classifier as its library saves it."""
    make_tokenizer(folder)
    torch.manual_seed(seed)
    Auto.from_config(CONFIGS[name][0]()).to(dtype).save_pretrained(folder)
