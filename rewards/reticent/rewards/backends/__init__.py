"""What computes rewards, one backend a file."""

from __future__ import annotations

from typing import Any

from reticent.rewards.profile import ModelProfile

from .head import HeadBackend
from .model import ModelBackend

__all__ = ["HeadBackend", "ModelBackend", "build_backend"]


def build_backend(profile: ModelProfile, *, threads: int | None = None) -> ModelBackend[Any]:
    """The backend that a profile describes, with its model loaded or its server tried.

    Raises:
        ModelUnusable: the model or the server is not what the profile says.
    """
    if profile.backend == "transformers":
        from .classifier import ClassifierBackend

        return ClassifierBackend(profile, threads)
    if profile.backend == "vllm":
        from .pooling_server import PoolingServerBackend

        return PoolingServerBackend(profile)
    from .openrlhf import OpenRlhfBackend

    return OpenRlhfBackend(profile)
