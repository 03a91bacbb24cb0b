"""A site's side of the HTTP protocol. It sends its key and releases, nothing else."""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from reticent.accounting.calibration.documents import InvalidDocumentError
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.transcript import Transcript
from reticent.accounting.fingerprint import parse_json

__all__ = ["CalibrationClient", "ServerProblem", "Standing"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_MAX_ANSWER = 64 * 2**20


class ServerProblem(Exception):  # noqa: N818 - says what happened
    """The server cannot be used, or refuses.

    Attributes:
        code: the server's own (`late`, `duplicate`, `invalid_api_key`, …), or "unreachable", "not_understood",
            "wrong_plan".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Standing:
    """What the server says of the current round.

    Attributes:
        state: "open" or "finished".
        reason: why it is finished.
        round_number, slots: what it asks of this site; 0 slots where it asks nothing.
        answered: True when it has this site's release.
    """

    state: str
    reason: str | None
    round_number: int
    slots: int
    answered: bool


class CalibrationClient:
    """Talks to one calibration server. Close it after use (context manager).

    Args:
        url: `https://…`; plain `http://` to another machine needs `allow_plain`: it shows the key.
        key: the site's key.
        plan: the site's own copy; a server with another plan is refused.
        ca_file: certificates (PEM) of who vouches for the server, instead of the public authorities.
        patience: seconds to go on trying while the server cannot be reached, or fails.
        transport, pause: for tests.

    Raises:
        ValueError: not such a URL, or a file without certificates.
        OSError: the file cannot be read.
    """

    def __init__(
        self,
        url: str,
        key: str,
        plan: Plan,
        *,
        allow_plain: bool = False,
        ca_file: Path | None = None,
        patience: float = 600.0,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        _check_url(url, allow_plain)
        self._plan = plan
        self._patience = patience
        self._pause = pause
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {key}"},
            timeout=30.0,
            verify=True if ca_file is None else _context(ca_file),
            transport=transport,
            trust_env=False,
            follow_redirects=False,
        )

    def __enter__(self) -> CalibrationClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def check_plan(self) -> None:
        """Compare the server's plan with the site's own.

        Raises:
            ServerProblem: "wrong_plan", or the server cannot be used.
        """
        self._same_plan(self._object("GET", "/v1/calibration/plan").get("plan_digest"))

    def standing(self) -> Standing:
        """The current round.

        Raises:
            ServerProblem: the server cannot be used, or has another plan by now.
        """
        doc = self._object("GET", "/v1/calibration/round")
        self._same_plan(doc.get("plan_digest"))
        state, reason, number, slots, answered = (
            doc.get(name) for name in ("state", "reason", "round", "slots", "answered")
        )
        if (
            state not in ("open", "finished")
            or not isinstance(reason, str | None)
            or type(number) is not int
            or type(slots) is not int
            or not isinstance(answered, bool)
        ):
            raise ServerProblem("not_understood", "the server's round is not of the form it must have")
        return Standing(state, reason, number, slots, answered)

    def transcript(self) -> Transcript:
        """The server's transcript, replayed here.

        Raises:
            ServerProblem: the server cannot be used, or its transcript does not hold.
        """
        try:
            transcript = Transcript.from_json(self._value("GET", "/v1/calibration/transcript"))
        except InvalidDocumentError as error:
            raise ServerProblem("not_understood", f"the transcript does not hold: {error}") from None
        self._same_plan(transcript.plan.digest)
        return transcript

    def submit(self, data: bytes) -> str:
        """Send a release, the same bytes again where the connection fails; the digest of its entry.

        Raises:
            ServerProblem: it is refused, or the server cannot be used.
        """
        digest = self._object("POST", "/v1/calibration/releases", data).get("digest")
        if not isinstance(digest, str):
            raise ServerProblem("not_understood", "the server's receipt has no digest")
        return digest

    def _same_plan(self, digest: object) -> None:
        if digest != self._plan.digest:
            raise ServerProblem("wrong_plan", f"this site has plan {self._plan.digest}, the server another one")

    def _object(self, method: str, path: str, data: bytes | None = None) -> dict[str, Any]:
        value = self._value(method, path, data)
        if not isinstance(value, dict):
            raise ServerProblem("not_understood", "the server's answer is not an object")
        return value

    def _value(self, method: str, path: str, data: bytes | None = None) -> object:
        response = self._send(method, path, data)
        try:
            if len(response.content) > _MAX_ANSWER:
                raise ServerProblem("not_understood", "the server's answer is too large")
            value = parse_json(response.content.decode("utf-8"))
        except ValueError:
            raise ServerProblem("not_understood", f"the server's answer ({response.status_code}) is not JSON") from None
        if response.status_code == 200:
            return value
        error = value.get("error") if isinstance(value, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        raise ServerProblem(str(code or response.status_code), str(message or "the server refuses")[:500])

    def _send(self, method: str, path: str, data: bytes | None) -> httpx.Response:
        headers = {} if data is None else {"Content-Type": "application/json"}
        wait, waited = _FIRST_PAUSE, 0.0
        while True:
            try:
                response = self._http.request(method, path, content=data, headers=headers)
                problem = f"status {response.status_code}"
                if response.status_code < 500:
                    return response
            except httpx.TransportError as error:
                problem = type(error).__name__
            if waited >= self._patience:
                raise ServerProblem("unreachable", f"{problem}, for {waited:.0f} seconds")
            self._pause(wait)
            waited += wait
            wait = min(2.0 * wait, _LONGEST_PAUSE)


def _context(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=ca_file.read_text(encoding="ascii"))  # and no other authority
    except (ssl.SSLError, UnicodeDecodeError):
        raise ValueError(f"{ca_file} holds no certificates in PEM") from None


def _check_url(url: str, allow_plain: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError("the server must be given as https://HOST[:PORT]")
    if parts.scheme == "http" and not allow_plain and not _is_loopback(parts.hostname):
        raise ValueError("plain http to another machine shows the site's key to the network; use https")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
