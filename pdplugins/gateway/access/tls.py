"""TLS with clients and with workers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from aiohttp import web

from pdplugins.errors import ConfigError, one_line
from pdplugins.files import read_limited
from pdplugins.gateway.access.handshakes import Accepted, Handshakes
from pdplugins.gateway.clients import Clients
from pdplugins.gateway.http import Handler

BACKLOG = 1024
MOST_BYTES = 2**20
"""Of a file with certificates, or a key."""


class ServerTls:
    """The certificate of a listener, with a key that is not encrypted. Raises ConfigError."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.context = self._now = self._read()
        """What listens. Its connections take the certificate of now."""
        self.context.sni_callback = self._take

    def reload(self) -> None:
        """Read the files again; connections from now on use them. Raises ConfigError, and then the ones before hold.

        Each time into a fresh context: one has a certificate for each kind of key, so that an RSA key would not replace
        an ECDSA key.
        """
        self._now = self._read()

    def _take(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Let a new connection use the certificate of now; OpenSSL asks here also where a client names no server."""
        connection.context = self._now

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            for path in (self._certificate, self._key):
                read_limited(path, MOST_BYTES)  # OpenSSL would wait for whoever writes to a pipe
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except (OSError, ssl.SSLError, ConfigError) as error:
            raise ConfigError(
                f"--tls-cert {self._certificate}, --tls-key {self._key}: {one_line(error)}; give a PEM certificate "
                "chain and its key, without a password"
            ) from None
        return context


def worker_tls(authorities: Path | None) -> ssl.SSLContext:
    """Return what checks workers' certificates: the system's authorities, and those in a file. Raises ConfigError."""
    context = ssl.create_default_context()
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--worker-ca {authorities}: {one_line(error)}; give certificates in PEM") from None
    return context


class Site(web.BaseSite):
    """A listener of a gateway. aiohttp's own has no deadline for TLS handshakes, before whose end nobody is a client.

    :param clients: what counts its connections, from their TLS handshakes on.
    :param handshake_s: that deadline.
    :param shared: other processes listen on the same port.
    """

    def __init__(
        self,
        runner: web.BaseRunner,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        clients: Clients,
        handshake_s: float,
        *,
        shared: bool = False,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._host = host
        self._port = port
        self._handshakes = None if tls is None else Handshakes(tls, clients, handshake_s)
        self._shared = shared

    @property
    def name(self) -> str:
        """Its address."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl_context else 'http'}://{host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        await super().start()
        server = self._runner.server
        assert server is not None  # noqa: S101 - the runner is set up
        loop = asyncio.get_running_loop()

        def accepted() -> asyncio.Protocol:
            handler = Handler(server, loop=loop, **server._kwargs)  # as the server itself makes aiohttp's
            return handler if self._handshakes is None else Accepted(self._handshakes, handler)

        self._server = listening = await loop.create_server(
            accepted, self._host, self._port, backlog=BACKLOG, reuse_port=self._shared or None
        )
        self._host, self._port = listening.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Listen no more. Who has not ended its TLS handshake is no client yet, and is cut off."""
        await super().stop()
        if self._handshakes is not None:
            self._handshakes.stop()
