"""Reward models of every supported architecture with random weights and a tokenizer of a few hundred pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForSequenceClassification as Auto
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

__all__ = ["CONFIGS", "GATE", "make_classifier", "make_gated", "make_openassistant", "make_tokenizer"]

SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "[CLS]", "[SEP]")
CHAT = "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}<|end|>\n{% endfor %}"
_TEXT = [
    "Passage: Ada has a cat. Question: What pet has Ada? It is not stated. A dog ran home.",
    "The quick brown fox jumps over the lazy dog; numbers 0 1 2 3 4 5 6 7 8 9.",
]
_VOCABULARY = 400


def make_tokenizer(folder: Path, chat: str = CHAT) -> None:
    """Byte-level BPE whose post-processor adds `<s>` to single texts (so that a template that writes it too would
    double it) and [CLS] and [SEP] to pairs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("<s>", 1), ("[CLS]", 6), ("[SEP]", 7)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    fast.chat_template = chat
    fast.save_pretrained(folder)


_SMALL: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "num_labels": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Far from the usual .02, so that rewards of different texts differ by more than rounding.
    "initializer_range": 0.4,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None}
_BERT = {**_SMALL, "initializer_range": 0.2, "pad_token_id": 0, "cls_token_id": 6, "sep_token_id": 7}

CONFIGS: dict[str, tuple[Callable[[], Any], str]] = {
    "gpt_neox": (lambda: GPTNeoXConfig(**_SMALL, pad_token_id=None), "<|user|>{prompt}</s><|assistant|>{answer}</s>"),
    "gemma2": (lambda: Gemma2Config(**{**_GROUPED, "pad_token_id": 0}, sliding_window=16), "chat"),
    "llama": (lambda: LlamaConfig(**_GROUPED), "chat"),
    "qwen2": (lambda: Qwen2Config(**{**_GROUPED, "pad_token_id": 2}), "chat"),
    "qwen3": (lambda: Qwen3Config(**_GROUPED), "chat"),
    "modernbert": (lambda: ModernBertConfig(**_BERT, local_attention=16), "pair"),
    "deberta": (lambda: DebertaV2Config(**_SMALL, type_vocab_size=2, relative_attention=True), "pair"),
}
"""By name: the configuration, and the template that such a reward model is asked by."""


def make_classifier(name: str, folder: Path, seed: int = 0, **changes: Any) -> None:
    """A sequence classifier as its library saves it."""
    make_tokenizer(folder)
    config = CONFIGS[name][0]()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(seed)
    Auto.from_config(config).save_pretrained(folder)


def _edit(folder: Path, config: dict[str, Any], tensors: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change a saved model's configuration and weights."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    weights = folder / "model.safetensors"
    save_file(tensors(load_file(weights)), weights, metadata={"format": "pt"})


def make_openassistant(folder: Path, pooling: str = "last") -> None:
    """The layout of OpenAssistant's Pythia reward models: a GPT-NeoX with `out_proj`."""
    make_classifier("gpt_neox", folder, seed=3)

    def tensors(found: dict[str, Any]) -> dict[str, Any]:
        del found["score.weight"]
        return {**found, "out_proj.weight": torch.randn(1, 32), "out_proj.bias": torch.tensor([0.75])}

    config = {"model_type": "gpt_neox_reward_model", "architectures": ["GPTNeoXRewardModel"], "pooling": pooling}
    _edit(folder, config, tensors)


GATE = (5, 4)
"""`<|end|><|assistant|>`: what the tiny gated model's gate looks for, by a template without newlines."""
OBJECTIVES = 5


def make_gated(folder: Path) -> None:
    """ArmoRM's layout: a Llama with `regression_layer`, `reward_transform_matrix` and a gate."""
    make_classifier("llama", folder, seed=4)
    make_tokenizer(folder, CHAT.replace("\n", ""))

    def tensors(found: dict[str, Any]) -> dict[str, Any]:
        del found["score.weight"]
        widths = (32, 16, 16, 16, OBJECTIVES)
        for i, (into, out) in enumerate(itertools.pairwise(widths)):
            found[f"gating.layers.{i}.weight"] = torch.randn(out, into) * 0.5
            found[f"gating.layers.{i}.bias"] = torch.randn(out)
        found["gating.logit_scale"] = torch.tensor([1.5])
        found["regression_layer.weight"] = torch.randn(OBJECTIVES, 32) * 0.3
        found["reward_transform_matrix"] = torch.eye(OBJECTIVES) - 0.1 * torch.rand(OBJECTIVES, OBJECTIVES)
        return found

    config = {
        "architectures": ["LlamaForRewardModelWithGating"],
        "auto_map": {"AutoModelForSequenceClassification": "modeling_custom.LlamaForRewardModelWithGating"},
        "num_objectives": OBJECTIVES,
        "gating_temperature": 2,
        "gating_hidden_dim": 16,
        "gating_n_hidden": 3,
        "gating_token_pattern": list(GATE),
    }
    _edit(folder, config, tensors)
