"""Where the worker may listen: a Unix socket that its owner alone can open, or loopback. Nowhere else.

And where it may ask: a reward server on loopback, or one that is reached through TLS.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from pathlib import Path
from urllib.parse import urlsplit

from .errors import UnsafeAddress

__all__ = ["answers", "listen_on_loopback", "listen_on_socket", "require_loopback", "require_private_url"]


def require_loopback(host: str) -> str:
    """`host`, if it is a literal loopback address.

    Names are refused, "localhost" too: what they mean is up to the resolver.

    Raises:
        UnsafeAddress: anything else.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UnsafeAddress(host) from None
    if not address.is_loopback:
        raise UnsafeAddress(host)
    return host


def require_private_url(url: str) -> str:
    """`url`, if nobody on the way can read what goes there: plain HTTP on a literal loopback address, or HTTPS.

    Raises:
        UnsafeAddress: anything else, also a URL that carries a name or password (a key belongs into a file).
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UnsafeAddress(url) from None
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise UnsafeAddress(url.rpartition("@")[2])
    if parts.scheme == "http":
        require_loopback(host)
    elif parts.scheme != "https":
        raise UnsafeAddress(url)
    return url


def listen_on_loopback(host: str, port: int) -> socket.socket:
    """A listening TCP socket on a loopback address; port 0 lets the system choose."""
    require_loopback(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def listen_on_socket(path: Path) -> socket.socket:
    """A listening Unix socket with mode 0600.

    A socket file that a dead worker left is replaced; one that somebody listens on is not.

    Raises:
        FileExistsError: something else than a socket stands there, or a living worker listens on it.
        OSError: the path is too long for a Unix socket, or its folder is missing.
    """
    if path.is_symlink() or path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode) or answers(path):
            raise FileExistsError(f"{path} is in use or is no socket")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mask makes the file 0600 from its first moment; a chmod afterwards would leave a gap.
    previous = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(previous)
    return listener


def answers(path: Path) -> bool:
    """Whether somebody listens on the Unix socket `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
