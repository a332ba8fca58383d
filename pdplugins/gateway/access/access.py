"""All that a gateway was told of keys, certificates and listeners."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pdplugins.errors import ConfigError, PdpluginsError
from pdplugins.gateway.access.api_keys import ApiKeys
from pdplugins.gateway.access.tls import ServerTls, worker_tls
from pdplugins.gateway.access.worker_keys import NO_KEYS, WorkerKeys, read_worker_keys
from pdplugins.processes.addresses import is_loopback
from pdplugins.report.address import Address

log = logging.getLogger("pdplugins.gateway")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may ask a gateway what, and how it proves itself to workers. The default has no keys and no certificates.

    :param worker_ca: what checks the certificates of workers.
    :param api_keys: of clients; None takes everyone's requests.
    :param tls: of both listeners; None for plain HTTP.
    :param admin_host: where ``/workers`` and ``/metrics`` are served; port 0 takes a free one.
    :param dashboard: where browsers see what goes on.
    """

    worker_keys: WorkerKeys = NO_KEYS
    worker_ca: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    api_keys: ApiKeys | None = None
    tls: ServerTls | None = None
    admin_host: str = "127.0.0.1"
    admin_port: int = 0
    dashboard: Address | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an admin listener that anyone may ask."""
        if not is_loopback(self.admin_host) and self.api_keys is None:
            raise ConfigError(
                f"--admin-host {self.admin_host}: others can reach it, and it would tell them of workers and metrics; "
                "give --api-keys with an admin key (pdplugins gateway-key --admin), or leave it on 127.0.0.1"
            )

    @property
    def admin_keys(self) -> ApiKeys | None:
        """Whose requests the admin listener takes: on loopback those of every program of this machine."""
        return None if is_loopback(self.admin_host) else self.api_keys

    @property
    def scheme(self) -> str:
        """Of both listeners."""
        return "http" if self.tls is None else "https"

    @property
    def reloads(self) -> bool:
        """Whether there is anything to read again; without, SIGHUP ends the process, as when its terminal closes."""
        return self.api_keys is not None or self.tls is not None

    def reload(self) -> None:
        """Read the keys of clients and the certificate again; where that fails, those before hold."""
        if self.api_keys is not None:
            self.api_keys.reload()
        if self.tls is not None:
            try:
                self.tls.reload()
            except PdpluginsError as error:
                log.warning("%s; the certificate before holds", error)

    def warn(self, host: str, workers: Iterable[str]) -> None:
        """Say which keys cross the network in plain text. Of workers that are found later, `Backends` says it."""
        if self.tls is None and self.api_keys is not None and not is_loopback(host):
            log.warning(
                "clients' keys come to %s in plain text; give --tls-cert, or have a proxy with TLS before", host
            )
        self.worker_keys.warn(workers)


def read_access(
    *,
    worker_key_file: Path | None,
    worker_ca: Path | None,
    api_keys: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    admin_host: str,
    admin_port: int,
    dashboard: Address | None = None,
) -> Access:
    """Read all files that the options name. Raises ConfigError."""
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("gateway: --tls-cert and --tls-key go together; give both")
    return Access(
        worker_keys=read_worker_keys(worker_key_file),
        worker_ca=worker_tls(worker_ca),
        api_keys=None if api_keys is None else ApiKeys(api_keys),
        tls=ServerTls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None,
        admin_host=admin_host,
        admin_port=admin_port,
        dashboard=dashboard,
    )
