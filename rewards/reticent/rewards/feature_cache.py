"""Features of preference pairs kept on disk, so that a second training does not encode the same texts again.

One file for each encoder revision, holding records of fixed size: key, the two rows, check. A pair is encoded alone and
kept with both of its rows, exactly as `training.encode_pairs` computes them, so training with and without the cache
gives the same head, bit for bit on one machine. The files are as confidential as the preference data (mode 0600).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.accounting.fingerprint import sha256_hex

from .encoders.base import Encoder, FeatureMatrix
from .pairs import PreferencePair, PreferencePairs

__all__ = ["FeatureCache", "encode_pairs_cached"]

_HASH_BYTES = 32
_FLUSH_EVERY = 64

Rows = NDArray[np.float64]


class FeatureCache:
    """Rows by pair for one encoder, in one file of `folder`.

    Args:
        folder: made if it is not there, for its owner only.
        encoder: its revision and width name the file, so another encoder never reads these rows.

    A record whose check does not fit (a torn write, a damaged disk) is passed over, and its pair encoded anew.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._revision = encoder.revision
        self._dimension = encoder.dimension
        self._path = folder / f"{encoder.revision[:32]}-{encoder.dimension}.features"
        self._known = self._read()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def path(self) -> Path:
        return self._path

    def key(self, pair: PreferencePair) -> bytes:
        """SHA-256 of the encoder's revision and the pair's texts; the person does not enter."""
        subject = pair.subject
        texts = [subject.prompt, subject.question, list(subject.evidence), pair.chosen, pair.rejected]
        return bytes.fromhex(sha256_hex({"revision": self._revision, "texts": texts}))

    def get(self, pair: PreferencePair) -> Rows | None:
        """Rows of the preferred and of the other answer, shape (2, d), or None."""
        raw = self._known.get(self.key(pair))
        return None if raw is None else np.frombuffer(raw, dtype="<f8").reshape(2, self._dimension)

    def add(self, rows: list[tuple[PreferencePair, Rows]]) -> None:
        """Append records; two processes may do so at the same time."""
        records = []
        for pair, values in rows:
            key, payload = self.key(pair), np.ascontiguousarray(values, dtype="<f8").tobytes()
            self._known[key] = payload
            records.append(key + payload + hashlib.sha256(key + payload).digest())
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            whole = os.fstat(descriptor).st_size // self._record_bytes * self._record_bytes
            # What a killed process left of a record is written over, or all later records would be out of step.
            os.ftruncate(descriptor, whole)
            os.lseek(descriptor, whole, os.SEEK_SET)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(b"".join(records))
        finally:
            os.close(descriptor)

    @property
    def _record_bytes(self) -> int:
        return 2 * _HASH_BYTES + 2 * self._dimension * 8

    def _read(self) -> dict[bytes, bytes]:
        known: dict[bytes, bytes] = {}
        if not self._path.exists():
            return known
        with self._path.open("rb") as file:
            while len(record := file.read(self._record_bytes)) == self._record_bytes:
                body, check = record[:-_HASH_BYTES], record[-_HASH_BYTES:]
                if hashlib.sha256(body).digest() == check:
                    known[body[:_HASH_BYTES]] = body[_HASH_BYTES:]
        return known


def encode_pairs_cached(
    pairs: PreferencePairs,
    encoder: Encoder,
    cache: FeatureCache | None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[FeatureMatrix, FeatureMatrix]:
    """`training.encode_pairs` through a cache: features of the preferred and of the other answers, shapes (N, d).

    Args:
        cache: None encodes everything.
        progress: called with (pairs done, pairs in all) now and then.
    """
    out = np.zeros((2, len(pairs.rows), encoder.dimension))
    fresh: list[tuple[PreferencePair, Rows]] = []
    try:
        for i, row in enumerate(pairs.rows):
            rows = None if cache is None else cache.get(row)
            if rows is None:
                rows = encoder.encode([(row.subject, row.chosen), (row.subject, row.rejected)])
                fresh.append((row, rows))
            out[:, i] = rows
            if cache is not None and len(fresh) >= _FLUSH_EVERY:
                cache.add(fresh)
                fresh = []
            if progress is not None and ((i + 1) % 100 == 0 or i + 1 == len(pairs.rows)):
                progress(i + 1, len(pairs.rows))
    finally:
        if cache is not None and fresh:
            cache.add(fresh)
    return out[0], out[1]
