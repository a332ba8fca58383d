"""Addresses that users give: checked at once, so that a wrong one is one line and not a port that nobody meant."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from pdplugins.errors import ConfigError, shown
from pdplugins.redaction import redacted

MOST_PORT = 65_535
LOOPBACK_NAMES = "localhost,127.0.0.1,::1"


def check_url(url: str, option: str) -> SplitResult:
    """Return the parts of an HTTP URL. Raises ConfigError when it is none, or holds a user or password.

    :param option: names it in errors, such as ``--worker``. An error does not repeat a password.
    """
    try:
        parts = urlsplit(url)
        port, user = parts.port, parts.username
    except ValueError as error:
        raise _no_url(option, url, f" ({error})") from None
    if user is not None:
        raise ConfigError(
            f"{option}: leave user and password out of {shown(redacted(url))}; logs and pages show URLs. "
            "docs/security.md says where keys belong"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or not url.isprintable() or " " in url:
        raise _no_url(option, url)
    if parts.query or parts.fragment:
        raise _no_url(option, url, ", which ends before a ? or #")
    return parts


def _no_url(option: str, url: str, why: str = "") -> ConfigError:
    return ConfigError(f"{option}: {shown(redacted(url))} is no URL{why}; write for example http://127.0.0.1:30000")


def host_and_port(text: str, option: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 host is in brackets. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not 0 <= number <= MOST_PORT or (":" in bare) != host.startswith("["):
        raise ConfigError(f"{option}: {shown(text)} is no HOST:PORT; write for example 127.0.0.1:9099, or [::1]:9099")
    return bare, number


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches what listens on `host`. A name other than ``localhost`` may be any."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def without_proxy(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which programs reach this machine without the proxy that it may name."""
    names = {name: environment.get(name, "") for name in ("no_proxy", "NO_PROXY")}
    return environment | {name: ",".join(filter(None, (value, LOOPBACK_NAMES))) for name, value in names.items()}
