"""The client of the configured reward worker, and the secret that the two share."""

from __future__ import annotations

from pathlib import Path

from reticent.plugin.settings import ConfigurationError, RewardSettings
from reticent.rewards.client import RewardClient
from reticent.rewards.head import LinearHead
from reticent.rewards.protocol import model_digest

__all__ = ["open_rewards", "read_secret"]

_MIN_SECRET = 32


def open_rewards(settings: RewardSettings, head: LinearHead) -> RewardClient:
    """A client of the worker that the configuration names, which must serve `head`.

    Raises:
        ConfigurationError: the secret cannot be used.
    """
    return RewardClient(
        read_secret(settings.secret_file),
        socket=settings.socket,
        reward_max=head.reward_max,
        timeout=settings.timeout_seconds,
        model=model_digest(head.public_facts()),
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
