"""Keeps the gate's certificates those of the configured files, while the server runs.

The files are looked at every few seconds, and at SIGHUP in a process that has no terminal (one that has ends at it, as
ever). All changes found together take effect together, and a request is judged under the certificates of one moment.
A watch that ends by a fault withdraws everything: it would not see a withdrawal any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time

from reticent.plugin.certificate_files import CertificateFile, CertificateFiles
from reticent.plugin.gate import Gate
from reticent.plugin.metrics import Metrics

__all__ = ["Renewal"]

log = logging.getLogger(__name__)


class Renewal:
    """The watch over the certificates of one server.

    Args:
        files: read at least once already.
        gate: is given what they hold.
        metrics: are told.
        seconds: between two looks.
    """

    def __init__(self, files: CertificateFiles, gate: Gate, metrics: Metrics, seconds: float) -> None:
        self.files = files
        self._gate = gate
        self._metrics = metrics
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._listens = False
        self._install()

    def start(self) -> None:
        """Begin to watch; needs a running event loop."""
        if self._task is not None or not self.files.files:
            return
        self._listens = _listen(asyncio.get_running_loop(), self._asked)
        self._task = asyncio.create_task(self._watch())
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop watching. What is installed stays."""
        if self._listens:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            self._listens = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def refresh(self, *, reread: bool = False) -> None:
        """Look at the files once, and install what they hold."""
        changes = await asyncio.to_thread(self.files.refresh, reread=reread)
        for _, event in changes:
            self._metrics.certificate_reloads.labels(result=event).inc()
        if changes:
            self._install()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._asked.wait()
            reread = self._asked.is_set()
            self._asked.clear()
            await self.refresh(reread=reread)

    def _install(self) -> None:
        self._gate.install(self.files.installed)
        for file in self.files.files:
            self._measure(file)

    def _measure(self, file: CertificateFile) -> None:
        metrics, certificate = self._metrics, file.installed
        metrics.certificate_unusable.labels(certificate=file.label).set(0 if file.problem is None else 1)
        if certificate is None:
            for gauge in (metrics.certificate_expiry, metrics.certificate_age):
                with contextlib.suppress(KeyError):
                    gauge.remove(file.label)
            return
        calibrated = certificate.calibrated_at.timestamp()
        metrics.certificate_expiry.labels(certificate=file.label).set(certificate.expires_at.timestamp())
        metrics.certificate_age.labels(certificate=file.label).set_function(lambda: time.time() - calibrated)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        # Its text could carry anything, so only its type is logged.
        fault = type(task.exception()).__name__
        log.critical("the watch over the certificates has ended (%s): all are withdrawn", fault)
        self._gate.install(())


def _listen(loop: asyncio.AbstractEventLoop, asked: asyncio.Event) -> bool:
    """Take SIGHUP as a question for new certificates, where it has no other meaning here."""
    if signal.getsignal(signal.SIGHUP) not in (signal.SIG_DFL, signal.SIG_IGN) or _has_terminal():
        return False
    try:
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    except (ValueError, RuntimeError, NotImplementedError):  # Not the main thread, or a loop that takes no signals.
        return False
    return True


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
