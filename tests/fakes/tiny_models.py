"""Models of a few thousand random weights, saved as transformers saves real ones, with a tokenizer of whole words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["WORDS", "save_causal", "save_entailment"]

_WORDS = "ada has a cat dog black small the what pet does oakford lives in town is not stated yes no"
WORDS = _WORDS.split()
_TEMPLATE = "{% for m in messages %}<u> {{ m['content'] }} <e>{% endfor %}{% if add_generation_prompt %} <a>{% endif %}"


def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "<u>", "<e>", "<a>", *WORDS])}
    inner = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    found = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="<e>")
    found.chat_template = _TEMPLATE
    return found


def save_causal(folder: Path, *, layers: int = 2, seed: int = 0) -> Path:
    """A Llama with 2 key-value heads for 4 heads; weights large enough that answers differ."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_entailment(
    folder: Path, labels: tuple[str, ...] = ("contradiction", "neutral", "entailment"), seed: int = 0
) -> Path:
    """A BERT classifier with these labels."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    tokenizer = _tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.4,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
