"""One hash over the files that make a model what it is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["files_sha256"]


def files_sha256(folder: Path, names: Sequence[str]) -> str:
    """SHA-256 over names and contents of the files of `names` that stand in `folder`, in the order given.

    Raises:
        FileNotFoundError: the first of them is missing (it is taken for the weights).
    """
    digest = hashlib.sha256()
    for position, name in enumerate(names):
        path = folder / name
        if position and not path.is_file():
            continue
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
