"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["FolderLock"]


class FolderLock:
    """A lock on a folder, by the file `lock` in it. Held by a process, and so let go when it dies.

    Args:
        folder: exists when the lock is taken.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._handle: int | None = None

    @property
    def is_held(self) -> bool:
        """True between `take` and `let_go`."""
        return self._handle is not None

    def take(self) -> bool:
        """Take the lock; False when somebody else holds it.

        Raises:
            OSError: the file cannot be opened or locked.
        """
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def let_go(self) -> None:
        """Let go of it, if it is held."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
