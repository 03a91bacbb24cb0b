"""Names of the place where a ledger lives: a file's path, or the URL of a PostgreSQL database."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

__all__ = ["is_url", "without_password"]

_SCHEMES = ("postgresql", "postgres")
_HARMLESS = ("host", "port", "user", "dbname", "service", "sslmode", "application_name")


def is_url(location: str) -> bool:
    """Whether it is a PostgreSQL URL, and not a path."""
    return location.partition("://")[0] in _SCHEMES and "://" in location


def without_password(location: str) -> str:
    """The location for people to read: of a URL only what names the place, so no password, wherever it may stand."""
    if not is_url(location):
        return location
    try:
        parts = urlsplit(location)
        query = urlencode([(k, v) for k, v in parse_qsl(parts.query) if k in _HARMLESS], safe="/")
    except ValueError:
        return "postgresql://(not a readable URL)"
    user, at, hosts = parts.netloc.rpartition("@")
    place = f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}{parts.path}"
    return f"{place}?{query}" if query else place
