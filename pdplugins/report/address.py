"""Where a dashboard listens."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.errors import ConfigError, shown
from pdplugins.processes.addresses import MOST_PORT, host_and_port, is_loopback

DEFAULT = "127.0.0.1:8090"
"""Where ``--dashboard`` without an address listens."""
HELP = f"Show browsers of this machine the last minutes, there; without a value on {DEFAULT}."
HELP_PUBLIC = "Let --dashboard listen where others reach it too: it asks for no key."


@dataclass(frozen=True, slots=True)
class Address:
    """Where a dashboard listens."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str | None, *, public: bool) -> Address | None:
        """Read ``[HOST:]PORT``; None without one. Raises ConfigError, also where others would reach it unasked."""
        if text is None:
            if public:
                raise ConfigError("--dashboard-public is about a dashboard; add --dashboard HOST:PORT")
            return None
        bare = text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= MOST_PORT
        host, port = ("127.0.0.1", int(text)) if bare else host_and_port(text, "--dashboard")
        if not is_loopback(host) and not public:
            raise ConfigError(
                f"--dashboard {shown(text)}: others could read it there, and it asks for no key; leave it on "
                "127.0.0.1, or say --dashboard-public"
            )
        return cls(host, port)
