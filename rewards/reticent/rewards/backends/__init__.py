"""What computes rewards, one backend a file."""

from .head import HeadBackend

__all__ = ["HeadBackend"]
