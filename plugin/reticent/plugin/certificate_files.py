"""The certificates in the configured files, as they stand now, and read again when a file changes.

| a file that | does |
|---|---|
| holds a valid certificate | takes the place of what came from it before, as a whole |
| changed, and cannot be used now | leaves what came from it before in force, and is reported |
| is gone | withdraws what came from it |
| comes back | puts it in force again |

So to renew, write the new certificate beside the old one and rename it over it (`Certificate.save` does); to withdraw,
remove the file. Whoever can do either decides what the gate accepts.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from reticent.accounting.calibration.documents import parse_document, read_bytes
from reticent.accounting.certificates import Certificate
from reticent.accounting.errors import AccountingError

__all__ = ["CertificateFile", "CertificateFiles"]

log = logging.getLogger(__name__)

_SETTLED_NANOSECONDS = 2_000_000_000
"""A file's times move in steps. One that was written so recently is read again, in case it is written once more
within the same step."""


@dataclass(frozen=True)
class CertificateFile:
    """One configured file.

    Attributes:
        path: where it lies.
        label: its name in metrics: the file's name, numbered where two have the same.
        certificate: the last valid one that it held.
        problem: why what lies there now cannot be used; None where it can, or where nothing lies there any more.
        is_withdrawn: it held a valid one and is gone.
        content: SHA-256 of the bytes that were judged last; None since the file was gone or unreadable.
        stamp: times, size and identity of the file when it was read; None where it must be read again.
    """

    path: Path
    label: str
    certificate: Certificate | None = None
    problem: str | None = None
    is_withdrawn: bool = False
    content: str | None = None
    stamp: tuple[int, ...] | None = None

    @property
    def installed(self) -> Certificate | None:
        """The certificate that the gate may rely on."""
        return None if self.is_withdrawn else self.certificate


class CertificateFiles:
    """All configured files. `refresh` reads and computes, so it belongs beside the event loop, one call at a time.

    Args:
        paths: as configured.
        others: certificates that stand in no file and are never withdrawn.
    """

    def __init__(self, paths: Iterable[Path] = (), others: Iterable[Certificate] = ()) -> None:
        self._others = tuple(others)
        self._files = _named(tuple(paths))

    @property
    def files(self) -> tuple[CertificateFile, ...]:
        """The files as `refresh` found them last; a value of its own, which later calls do not change."""
        return self._files

    @property
    def installed(self) -> tuple[Certificate, ...]:
        """The certificates that the gate may rely on, in the order of the configuration."""
        found = (file.installed for file in self._files)
        return (*self._others, *(certificate for certificate in found if certificate is not None))

    @property
    def withdrawn(self) -> tuple[Certificate, ...]:
        """Those whose files are gone."""
        return tuple(f.certificate for f in self._files if f.is_withdrawn and f.certificate is not None)

    def refresh(self, *, reread: bool = False) -> tuple[tuple[str, str], ...]:
        """Look at every file; all changes take effect together.

        Args:
            reread: read also those that look unchanged.

        Returns:
            (label, event) for every file that changed; an event is "loaded", "broken" or "withdrawn".
        """
        found = tuple(_look(replace(file, stamp=None) if reread else file) for file in self._files)
        changes = []
        for before, after in zip(self._files, found, strict=True):
            event = _event(before, after)
            if event is not None:
                changes.append((after.label, event))
                _report(after, event)
        self._files = found
        return tuple(changes)


def _named(paths: tuple[Path, ...]) -> tuple[CertificateFile, ...]:
    names = Counter(path.name for path in paths)
    return tuple(
        CertificateFile(path, path.name if names[path.name] == 1 else f"{path.name}#{index}")
        for index, path in enumerate(paths)
    )


def _look(file: CertificateFile) -> CertificateFile:
    """The file as it is now."""
    try:
        stamp = _stamp(file.path)
        if stamp is not None and stamp == file.stamp:
            return file
        data = read_bytes(file.path)
    except (FileNotFoundError, NotADirectoryError):
        is_withdrawn = file.certificate is not None
        problem = None if is_withdrawn else "does not exist"
        return replace(file, problem=problem, is_withdrawn=is_withdrawn, content=None, stamp=None)
    except OSError as error:
        # It may be there; until it can be read, what it held last stays in force, to its expiry at most.
        return replace(file, problem=f"cannot be read: {error.strerror}", content=None, stamp=None)
    return _judge(file, data, stamp)


def _judge(file: CertificateFile, data: bytes, stamp: tuple[int, ...] | None) -> CertificateFile:
    content = hashlib.sha256(data).hexdigest()
    if content == file.content:
        return replace(file, stamp=stamp)
    try:
        certificate = Certificate.from_json(parse_document(data, "certificate"))
    except (AccountingError, ValueError, ArithmeticError) as error:
        # What was withdrawn stays so: a file that comes back broken puts nothing in force again.
        return replace(file, problem=str(error), content=content, stamp=None)
    return replace(file, certificate=certificate, problem=None, is_withdrawn=False, content=content, stamp=stamp)


def _stamp(path: Path) -> tuple[int, ...] | None:
    status = path.stat()
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _SETTLED_NANOSECONDS:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)


def _event(before: CertificateFile, after: CertificateFile) -> str | None:
    if after.problem is not None:
        return "broken" if (after.problem, after.content) != (before.problem, before.content) else None
    if after.is_withdrawn:
        return None if before.is_withdrawn else "withdrawn"
    is_new = after.certificate is not before.certificate or before.is_withdrawn or before.problem is not None
    return "loaded" if is_new else None


def _report(file: CertificateFile, event: str) -> None:
    match event:
        case "broken" if file.installed is None:
            log.error("certificate %s cannot be used: %s", file.path, file.problem)
        case "broken":
            log.error("certificate %s cannot be used, the one before it stays in force: %s", file.path, file.problem)
        case "withdrawn":
            log.warning("certificate %s is gone: it is withdrawn", file.path)
        case _ if file.certificate is not None:
            until = file.certificate.expires_at
            if file.certificate.is_expired(datetime.now(UTC)):
                log.error("certificate %s expired on %s", file.path, until)
            else:
                log.info("certificate %s is in force until %s", file.path, until)
