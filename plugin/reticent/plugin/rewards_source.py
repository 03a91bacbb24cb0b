"""The client of the configured reward worker, and the secret that the two share."""

from __future__ import annotations

from pathlib import Path

from reticent.plugin.settings import ConfigurationError, RewardSettings
from reticent.rewards.client import RewardClient
from reticent.rewards.errors import RewardsError
from reticent.rewards.head import LinearHead
from reticent.rewards.ports import RewardDescription
from reticent.rewards.profile import ModelProfile
from reticent.rewards.protocol import model_digest

__all__ = ["load_reward_model", "open_rewards", "read_secret", "worker_model"]

_MIN_SECRET = 32


def worker_model(settings: RewardSettings) -> Path | ModelProfile:
    """What the worker is started with: the head's file, or the other model's profile."""
    if settings.model is not None:
        return settings.model.profile()
    if settings.head is None:
        raise ConfigurationError("rewards needs head or model")
    return settings.head


def load_reward_model(settings: RewardSettings) -> RewardDescription:
    """The configured reward model as the server sees it: R, Δ and public facts. No model is loaded here.

    Raises:
        ConfigurationError: the head cannot be used.
    """
    model = worker_model(settings)
    if isinstance(model, ModelProfile):
        return model
    try:
        return LinearHead.load(model)
    except (RewardsError, OSError) as error:
        raise ConfigurationError(f"the reward head {model} cannot be used: {error}") from None


def open_rewards(settings: RewardSettings, model: RewardDescription) -> RewardClient:
    """A client of the worker that the configuration names, which must serve `model`.

    Raises:
        ConfigurationError: the secret cannot be used.
    """
    return RewardClient(
        read_secret(settings.secret_file),
        socket=settings.socket,
        host=settings.host,
        port=settings.port,
        reward_max=model.reward_max,
        timeout=settings.timeout_seconds,
        model=model_digest(model.public_facts()),
    )


def read_secret(path: Path) -> str:
    """The secret shared with the worker.

    Raises:
        ConfigurationError: the file is missing, short, or readable by others.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path} must be readable by its owner only (chmod 600)")
        secret = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the worker's secret must be plain ASCII") from None
    if len(secret) < _MIN_SECRET:
        raise ConfigurationError(f"{path}: the worker's secret must have at least {_MIN_SECRET} characters")
    return secret
