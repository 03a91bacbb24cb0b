"""Reward models of transformers as one function: padded tokens in, one raw reward a row out.

Three kinds: any `AutoModelForSequenceClassification` with one label; OpenAssistant's `gpt_neox_reward_model` (a
GPT-NeoX with a linear head called `out_proj`); ArmoRM's gated multi-objective head. The latter two are code of their
authors' repositories, which is never run here: their layouts are known and read from the weights' own names.
Weights are read from safetensors only, since other formats can run code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from reticent.rewards.errors import ModelUnusable

__all__ = ["GATE_PATTERN", "RawRewards", "load_raw_rewards"]

RawRewards: TypeAlias = Callable[[Any, Any, Any], Any]
"""(ids, mask, segment numbers or None), each (n, length), padded on the right, to raw rewards (n,) in float32."""

GATE_PATTERN = (128009, 128006, 78191, 128007, 271)
"""ArmoRM's gate reads the prompt where the answer's header begins: Llama-3's tokens of the end of a turn and
`assistant`. A model with another vocabulary may say its own in `gating_token_pattern` of its configuration."""


def load_raw_rewards(folder: Path, dtype: str, device: str) -> tuple[RawRewards, int | None]:
    """The function of the model in `folder`, and its longest input in tokens where its configuration says so.

    Raises:
        ModelUnusable: no model, an unknown architecture, more than one label, or weights that are missing (transformers
            would make them up at random).
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ModelUnusable(folder.name, "the folder has no config.json") from None
    kinds = {config.get("model_type"), *(config.get("architectures") or ())}
    options = {"local_files_only": True, "use_safetensors": True, "dtype": getattr(torch, dtype)}
    if "gpt_neox_reward_model" in kinds:
        load = _openassistant
    elif "LlamaForRewardModelWithGating" in kinds:
        load = _gated
    else:
        load = _classifier
    try:
        function = load(folder, config, options, device)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, ModelUnusable):
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise ModelUnusable(folder.name, first) from None
    longest = config.get("max_position_embeddings")
    return function, longest if isinstance(longest, int) else None


def _classifier(folder: Path, config: Mapping[str, Any], options: Mapping[str, Any], device: str) -> RawRewards:
    from transformers import AutoModelForSequenceClassification

    model = _loaded(AutoModelForSequenceClassification, folder, options, device)
    if model.config.num_labels != 1:
        raise ModelUnusable(folder.name, f"it has {model.config.num_labels} labels, a reward model has one")
    text_config = model.config.get_text_config()
    pads = text_config.pad_token_id

    def raw(ids: Any, mask: Any, types: Any) -> Any:
        if pads is None:
            # The model takes the last token that is no padding. Without a padding token of its own any token will do
            # that no row ends with.
            last = set(ids.gather(1, mask.sum(1, keepdim=True) - 1).flatten().tolist())
            text_config.pad_token_id = next(i for i in range(len(last) + 1) if i not in last)
        more = {} if types is None or not getattr(text_config, "type_vocab_size", 0) else {"token_type_ids": types}
        padded = ids.masked_fill(mask == 0, text_config.pad_token_id)
        return model(input_ids=padded, attention_mask=mask, **more).logits.float()[:, 0]

    return raw


def _openassistant(folder: Path, config: Mapping[str, Any], options: Mapping[str, Any], device: str) -> RawRewards:
    """Mean or last hidden state through one linear layer with a bias."""
    from transformers import GPTNeoXConfig, GPTNeoXModel

    known = GPTNeoXConfig.from_dict({k: v for k, v in config.items() if k not in ("model_type", "architectures")})
    model = _loaded(GPTNeoXModel, folder, {**options, "config": known}, device)
    heads = _tensors(folder, ("out_proj.weight", "out_proj.bias"), options["dtype"], device)
    pooling = config.get("pooling") or "last"
    if pooling not in ("last", "mean"):
        raise ModelUnusable(folder.name, f"unknown pooling {pooling!r}")

    def raw(ids: Any, mask: Any, types: Any) -> Any:
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        if pooling == "mean":
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        else:
            pooled = states[_rows(ids), mask.sum(1) - 1]
        return (pooled @ heads["out_proj.weight"].T + heads["out_proj.bias"]).float()[:, 0]

    return raw


def _gated(folder: Path, config: Mapping[str, Any], options: Mapping[str, Any], device: str) -> RawRewards:
    """ArmoRM: objectives from the last state, their weights from a small network over the state at the prompt's end.

    reward = Σ_k g_k (W h_last · T)_k with g = logit_scale · softmax(network(h_gate)/temperature). Source: Wang et al.
    2024, "Interpretable Preferences via Multi-Objective Reward Modeling and Mixture-of-Experts", section 3.
    """
    from transformers import AutoModel

    model = _loaded(AutoModel, folder, options, device)
    depth = int(config.get("gating_n_hidden", 3)) + 1
    layers = [f"gating.layers.{i}.{part}" for i in range(depth) for part in ("weight", "bias")]
    names = ("regression_layer.weight", "reward_transform_matrix", "gating.logit_scale", *layers)
    heads = _tensors(folder, names, options["dtype"], device)
    temperature = float(config.get("gating_temperature", 10))
    pattern = list(config.get("gating_token_pattern", GATE_PATTERN))

    def gate(states: Any) -> Any:
        for i in range(depth):
            states = states @ heads[f"gating.layers.{i}.weight"].T + heads[f"gating.layers.{i}.bias"]
            if i < depth - 1:
                states = states.relu()
        return (states / temperature).softmax(1) * heads["gating.logit_scale"][0]

    def raw(ids: Any, mask: Any, types: Any) -> Any:
        places = [_last_place(row[:length], pattern) for row, length in zip(ids.tolist(), mask.sum(1), strict=True)]
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        rows = _rows(ids)
        objectives = states[rows, mask.sum(1) - 1] @ heads["regression_layer.weight"].T
        weights = gate(states[rows, places])
        return (weights * (objectives @ heads["reward_transform_matrix"])).float().sum(1)

    return raw


def _last_place(row: Sequence[int], pattern: Sequence[int]) -> int:
    """Where `pattern` begins for the last time. An answer cannot hold it unless it spells out special tokens."""
    for start in range(len(row) - len(pattern), -1, -1):
        if list(row[start : start + len(pattern)]) == list(pattern):
            return start
    raise ValueError("the chat template does not write the tokens that the gate looks for")


def _rows(ids: Any) -> Any:
    import torch

    return torch.arange(ids.shape[0], device=ids.device)


def _loaded(kind: Any, folder: Path, options: Mapping[str, Any], device: str) -> Any:
    model, info = kind.from_pretrained(folder, output_loading_info=True, **options)
    missing = sorted({*info["missing_keys"], *(str(key) for key in info.get("mismatched_keys", ()))})
    if missing:
        raise ModelUnusable(folder.name, f"weights are missing: {', '.join(missing[:5])}")
    return model.to(device).eval()


def _tensors(folder: Path, names: Sequence[str], dtype: Any, device: str) -> dict[str, Any]:
    """Tensors by name, from one safetensors file or from the shards that an index lists."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    else:
        where = dict.fromkeys(names, "model.safetensors")
    found: dict[str, Any] = {}
    for name in names:
        file = folder / str(where.get(name, ""))
        if not file.is_file():
            raise ModelUnusable(folder.name, f"weights are missing: {name}")
        with safe_open(file, framework="pt") as tensors:
            if name not in tensors.keys():  # noqa: SIM118 - no mapping
                raise ModelUnusable(folder.name, f"weights are missing: {name}")
            found[name] = tensors.get_tensor(name).to(device=device, dtype=dtype)
    return found
