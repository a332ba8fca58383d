"""Finds workers while the gateway runs: in a file, behind a DNS name, or at the endpoints of a Kubernetes service."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import aiohttp
import msgspec

from pdplugins.errors import ConfigError, one_line, shown
from pdplugins.gateway.backends import Backend, Backends, WorkerOption
from pdplugins.gateway.engine import Engine
from pdplugins.gateway.errors import said
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.reading import read_whole
from pdplugins.processes.addresses import host_and_port

log = logging.getLogger("pdplugins.gateway")

EVERY_S = 2.0
"""Pause between two looks."""
LOOK_S = 5.0
"""How long one look at one source may take."""
MOST_WORKERS = 1024
"""Workers of one source."""
MOST_BYTES = 2**24
"""Of a file, or of an answer of Kubernetes."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has the token of its service account."""
FORMS = "file:PATH, dns:HOST:PORT or kubernetes:[NAMESPACE/]SERVICE[:PORT]"


class Source(Protocol):
    """Where workers are found."""

    async def look(self) -> list[WorkerOption]:
        """Return the workers of now. Raises OSError, ValueError, ConfigError or aiohttp.ClientError."""
        ...


@dataclass(frozen=True)
class FileSource:
    """A file with a worker on each line, as after ``--worker``; lines that begin with # say nothing."""

    path: Path

    async def look(self) -> list[WorkerOption]:
        """Read the file. A pipe in its place would stop the gateway until somebody writes."""
        if not self.path.is_file():
            raise ValueError(f"{self.path} is no file")
        with self.path.open("rb") as file:
            lines = file.read(MOST_BYTES).decode(errors="replace").splitlines()
        words = [word for line in lines if (word := line.strip()) and not word.startswith("#")]
        _check_number(len(words))
        return [WorkerOption.parse(word) for word in words]


@dataclass(frozen=True)
class DnsSource:
    """All addresses of a name, such as those of a headless service. `options` are those of every worker."""

    host: str
    port: int
    options: str = ""

    async def look(self) -> list[WorkerOption]:
        """Resolve the name."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return [_worker(str(address[0]), self.port, self.options) for *_, address in found]


@dataclass(frozen=True)
class KubernetesSource:
    """The endpoints of a service, those that end left out. The pod's account must be allowed to list EndpointSlices.

    :param port: None for the port of the service that is called ``http``, or its first one.
    """

    service: str
    namespace: str
    port: int | None = None
    options: str = ""
    url: str = ""
    account: Path = ACCOUNT

    async def look(self) -> list[WorkerOption]:
        """Ask Kubernetes. The token is read each time, since it changes."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        headers = {"Authorization": f"Bearer {(self.account / 'token').read_text().strip()}"}
        tls = ssl.create_default_context(cafile=self.account / "ca.crt") if self.url.startswith("https") else True
        query = {"labelSelector": f"kubernetes.io/service-name={self.service}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(self.url + path, params=query, ssl=tls) as answer,
        ):
            body = await read_whole(answer.content.readany, MOST_BYTES)
            if answer.status != 200:
                raise OSError(
                    f"Kubernetes answers with {answer.status}: {one_line(body[:200].decode(errors='replace'))}"
                )
        slices = msgspec.json.decode(body, type=_Slices).items
        # A service of both families has a slice of each, with the same pods in them: they are counted once.
        slices.sort(key=lambda one: one.address_type)
        pods: dict[str, WorkerOption] = {}
        for one in slices:
            for endpoint in one.endpoints or ():
                if not endpoint.conditions.terminating and endpoint.addresses:
                    address = endpoint.addresses[0]  # they are all of the same pod
                    pod = (endpoint.pod and endpoint.pod.uid) or address
                    pods.setdefault(pod, _worker(address, self._port(one), self.options))
        return list(pods.values())

    def _port(self, one: _Slice) -> int:
        if self.port is not None:
            return self.port
        ports = {port.name: port.port for port in reversed(one.ports or ()) if port.port}
        if not ports:
            raise ValueError(f"service {self.service} has no port; name it: kubernetes:{self.service}:PORT")
        return ports.get("http") or [*ports.values()][-1]


class _Conditions(msgspec.Struct):
    terminating: bool | None = None


class _Pod(msgspec.Struct):
    uid: str | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)
    pod: _Pod | None = msgspec.field(default=None, name="targetRef")


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class _Slice(msgspec.Struct):
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None
    address_type: str = msgspec.field(default="", name="addressType")


class _Slices(msgspec.Struct):
    items: list[_Slice]


def parse_source(text: str) -> Source:
    """Read one ``--discover``. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    where, comma, options = rest.partition(",")
    options = comma + options
    WorkerOption.parse(f"http://host:1{options}")
    if kind == "file" and where:
        if options:
            raise ConfigError(f"--discover {shown(text)}: each line of the file has its own options")
        if not os.access(where, os.R_OK):
            raise ConfigError(f"--discover {shown(text)}: cannot be read; write a worker on each line of it")
        return FileSource(Path(where))
    if kind == "dns" and where:
        host, port = host_and_port(where, "--discover dns")
        return DnsSource(host, port, options)
    if kind == "kubernetes" and where:
        return _kubernetes(where, options)
    raise ConfigError(f"--discover {shown(text)}: write {FORMS}, and ,role=R or ,kind=K after it")


def _kubernetes(where: str, options: str) -> KubernetesSource:
    namespace, slash, name = where.rpartition("/")
    service, colon, port = name.partition(":")
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host is None or not (ACCOUNT / "token").is_file():
        raise ConfigError("--discover kubernetes: this is no pod with a service account; use dns: or file:")
    if colon and not (port.isascii() and port.isdigit()):
        raise ConfigError(f"--discover kubernetes:{shown(where)}: the port is no number")
    own = namespace if slash else (ACCOUNT / "namespace").read_text().strip()
    host = f"[{host}]" if ":" in host else host
    url = f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
    return KubernetesSource(service, own, int(port) if colon else None, options, url)


def _worker(host: str, port: int, options: str) -> WorkerOption:
    return WorkerOption.parse(f"http://{f'[{host}]' if ':' in host else host}:{port}{options}")


@dataclass
class Discovery:
    """Takes in the workers that sources find, and lets go of those that they find no more.

    A source that fails keeps the workers that it found last: each one is polled anyway. One that is gone gets no new
    requests, and may end those that it has. One whose options have changed goes, and comes back at once with the new
    ones. All tables are by address: the same one with https is the same worker with another option.

    :param forget_s: so long after a worker has gone no request names it any more.
    """

    sources: Sequence[Source]
    backends: Backends
    engine: Engine[Any, Any]
    metrics: GatewayMetrics
    forget_s: float
    _found: dict[int, dict[str, WorkerOption]] = field(default_factory=dict)
    _ours: dict[str, tuple[Backend, asyncio.Task[None]]] = field(default_factory=dict)
    _gone: dict[str, tuple[float, Backend, asyncio.Task[None]]] = field(default_factory=dict)

    async def run(self) -> None:
        """Look again and again, for as long as the gateway runs."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    async def close(self) -> None:
        """Poll nobody any more."""
        tasks = [task for _, task in self._ours.values()] + [task for *_, task in self._gone.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        """Ask all sources once, and poll the workers that were found."""
        for index, source in enumerate(self.sources):
            try:
                async with asyncio.timeout(LOOK_S):
                    self._found[index] = _bounded(await source.look())
            except Exception as error:
                self.metrics.fault("discovery", f"{type(source).__name__}: {said(error)}; the workers before stay")
        wanted = {address: option for found in self._found.values() for address, option in found.items()}
        for address, (backend, _) in list(self._ours.items()):
            if wanted.get(address) != backend.option:
                self._leave(address, gone=address not in wanted)
        self._forget()
        for address in wanted.keys() - self._ours.keys():
            if (taken := self._taken(wanted[address])) is not None:
                self._ours[address] = taken, asyncio.create_task(self.backends.watch(taken, self.engine))

    def _taken(self, option: WorkerOption) -> Backend | None:
        """Take in a worker, or one that comes back; None for one that is there by another way."""
        if (back := self._gone.pop(option.address, None)) is not None:
            _, backend, watching = back
            watching.cancel()
            if option.url != backend.url:
                self.engine.forget(backend)
            self.backends.take_again(backend, option)
            return backend
        return None if self.backends.knows(option) else self.backends.take(option)

    def _leave(self, address: str, *, gone: bool) -> None:
        backend, task = self._ours.pop(address)
        task.cancel()
        if gone:
            log.info("%s is found no more", backend.id)
        self.backends.leave(backend)
        watching = asyncio.create_task(self.backends.watch_end(backend, self.engine))
        self._gone[address] = monotonic() + self.forget_s, backend, watching

    def _forget(self) -> None:
        now_s = monotonic()
        for address in [address for address, (until_s, *_) in self._gone.items() if until_s <= now_s]:
            _, backend, watching = self._gone.pop(address)
            watching.cancel()
            self.backends.forget(backend)
            self.engine.forget(backend)


def _bounded(found: list[WorkerOption]) -> dict[str, WorkerOption]:
    """Return workers by address. Raises ValueError when they are too many."""
    _check_number(len(found))
    return {option.address: option for option in found}


def _check_number(workers: int) -> None:
    if workers > MOST_WORKERS:
        raise ValueError(f"{workers} workers; {MOST_WORKERS} are the most")
