"""The workers behind the gateway: what each one can do, whether it is there, and what it says of its load."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError, one_line
from pdplugins.gateway.access.worker_keys import NO_KEYS, NONE, WorkerKey, WorkerKeys, key_refused
from pdplugins.gateway.engine import Engine, Facts, LoadReport, ServerKind
from pdplugins.gateway.errors import refused, said, shortage
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.workers import Worker, Workers
from pdplugins.limits import GatewayConfig
from pdplugins.processes.addresses import MOST_PORT, check_url

log = logging.getLogger("pdplugins.gateway")

FIXED_ROLES = {ServerKind.PREFILL: Role.PREFILL, ServerKind.DECODE: Role.DECODE}
"""Kinds of server whose role is not a label."""


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """One ``--worker``."""

    url: str
    bootstrap_port: int | None = None
    role: Role | None = None
    kind: ServerKind | None = None

    @property
    def address(self) -> str:
        """Host and port: the name of the worker."""
        return urlsplit(self.url).netloc

    @classmethod
    def parse(cls, text: str) -> WorkerOption:
        """Read ``URL[,bootstrap_port=N][,role=prefill|decode][,kind=dual|prefill|decode|unified]``."""
        url, *pairs = text.split(",")
        given = dict(pair.partition("=")[::2] for pair in pairs)
        check_url(url, "--worker")
        try:
            port, role, kind = (given.pop(name, None) for name in ("bootstrap_port", "role", "kind"))
            option = cls(url.rstrip("/"), int(port) if port else None, role and Role(role), kind and ServerKind(kind))  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"--worker {one_line(text)}: {one_line(error)}; roles are prefill and decode") from None
        if given:
            wrong = one_line(", ".join(given))
            raise ConfigError(f"--worker {one_line(text)}: unknown {wrong}; known are bootstrap_port, role and kind")
        if option.bootstrap_port is not None and not 1 <= option.bootstrap_port <= MOST_PORT:
            raise ConfigError(f"--worker {one_line(text)}: bootstrap_port is a port, 1 to {MOST_PORT}")
        return option


class Backend(Worker):
    """One server, and the gateway's book of it."""

    def __init__(self, option: WorkerOption, role: Role, key: WorkerKey = NONE) -> None:
        super().__init__(option.address, role)
        self.option = option
        self.key = key
        self.url = option.url
        self.host = urlsplit(option.url).hostname or ""
        self.kind: ServerKind | None = None
        """None until it has said what it is."""
        self.bootstrap_port = option.bootstrap_port
        self.incremental = False
        """Whether its streams hold new tokens only, and not all so far."""
        self.told = False
        """Whether it has been said why it is not there."""
        self._stamps: tuple[object, ...] = ()
        self._stamps_since_s = 0.0
        """Since when its load reports have had these time stamps."""

    def engine_hangs(self, stamps: tuple[object, ...], silence_s: float) -> bool:
        """Tell whether its engine has made no new load report for too long, though its HTTP server answers.

        Only a dual-role instance goes on reporting while all its requests wait for other servers.
        """
        now_s = monotonic()
        if stamps != self._stamps:
            self._stamps, self._stamps_since_s = stamps, now_s
        return self.kind is ServerKind.DUAL and any(stamps) and now_s - self._stamps_since_s > silence_s

    def introduce(self, facts: Facts) -> None:
        """Take in what the server says it is. What the user says takes precedence."""
        self.kind = self.option.kind or facts.kind
        self.bootstrap_port = self.option.bootstrap_port or facts.bootstrap_port
        self.incremental = facts.incremental
        self.view.role = FIXED_ROLES.get(self.kind, self.view.role)
        self.view.kv_capacity_tokens = facts.kv_capacity_tokens
        self.view.tp = facts.tp
        self.view.capabilities = self.kind.capabilities

    def report(self, report: LoadReport) -> None:
        """Take in what the server says of its load."""
        if report.kv_capacity_tokens:
            self.view.kv_capacity_tokens = report.kv_capacity_tokens
        self.view.used_kv_tokens = report.used_kv_tokens
        # Until its first token a prompt counts as waiting in the gateway's books: none is in the step beside those.
        running, waiting = report.running_requests, report.waiting_requests
        self.view.load.reported(running, waiting, report.waiting_tokens, step_tokens=0)


class Backends(Workers[Backend]):
    """The servers that a gateway is given, and that it polls.

    :param prefill: dual-role workers without a role that are labelled prefill, the first ones.
    """

    def __init__(
        self,
        options: Sequence[WorkerOption],
        *,
        prefill: int,
        settings: GatewayConfig,
        metrics: GatewayMetrics | None = None,
        keys: WorkerKeys = NO_KEYS,
    ) -> None:
        roles = [Role.PREFILL] * prefill + [Role.DECODE] * len(options)
        self.all = [
            Backend(option, option.role or role, keys.of(option.url))
            for option, role in zip(options, roles, strict=False)
        ]
        super().__init__(self.all, settings, metrics)
        self._prefill = prefill
        self._keys = keys
        if len(self.by_id) < len(self.all):
            raise ConfigError("--worker: two workers have the same address; give each one once")

    # --- workers that come and go ----------------------------------------------------------------------------------

    def knows(self, option: WorkerOption) -> bool:
        """Tell whether a worker of this address is there."""
        return option.address in self.by_id

    def take(self, option: WorkerOption) -> Backend:
        """Take in a worker that has been found; `watch` has to poll it."""
        self._keys.warn([option.url])
        backend = Backend(option, option.role or self._lacking(), self._keys.of(option.url))
        self.all.append(backend)
        self.add(backend)
        return backend

    def take_again(self, backend: Backend, option: WorkerOption) -> None:
        """Take in a worker that has left, with the options of now; `watch` has to poll it.

        It stays the same object: requests that it has not ended yet hold it.
        """
        if option != backend.option:
            log.info("%s has other options now", backend.id)
            self._keys.warn([option.url] if option.url != backend.url else [])
            backend.option, backend.url, backend.key = option, option.url, self._keys.of(option.url)
            backend.view.role = option.role or self._lacking()
            backend.told = False
        self.all.append(backend)

    def _lacking(self) -> Role:
        """Return the label of a worker for which no role is given."""
        labelled = sum(backend.view.role is Role.PREFILL for backend in self.all)
        return Role.PREFILL if labelled < self._prefill else Role.DECODE

    def leave(self, backend: Backend) -> None:
        """Send a worker that is to go nothing more. What it has begun it may end; then `forget` it."""
        self.all.remove(backend)
        if backend.alive:
            backend.alive, backend.ends = False, True
            self.labels.went(backend.id)
            self.refresh()

    # --- watching ------------------------------------------------------------------------------------------------

    async def watch(self, backend: Backend, engine: Engine[Any, Any]) -> None:
        """Poll one worker, for as long as the gateway runs. Whatever it answers, it is polled again."""
        misses = 0
        while True:
            try:
                async with asyncio.timeout(self._settings.poll_timeout_s):
                    await self.look(backend, engine)
                misses = 0
            except Exception as error:
                misses += 1
                self._missed(backend, error, misses)
            await asyncio.sleep(self._settings.poll_s)

    async def watch_end(self, backend: Backend, engine: Engine[Any, Any]) -> None:
        """Poll a worker that gets nothing new until it is gone, and end then all waits for its answers."""
        misses = 0
        while misses < self._settings.poll_misses:
            await asyncio.sleep(self._settings.poll_s)
            try:
                async with asyncio.timeout(self._settings.poll_timeout_s):
                    report = await engine.load(backend)
                if backend.engine_hangs(report.stamps, self._settings.silence_s):
                    break
                misses = 0
            except Exception as error:
                if not shortage(error):
                    misses = self._settings.poll_misses if refused(error) else misses + 1
        log.warning("%s, which had left, is gone", backend.id)
        backend.lost()
        self.on_lost(backend.id)

    async def first_look(self, backend: Backend, engine: Engine[Any, Any]) -> None:
        """Ask a worker what it is, if it answers now. Else it is polled later."""
        try:
            async with asyncio.timeout(self._settings.connect_s):
                await self.look(backend, engine)
        except Exception as error:
            self._missed(backend, error, 1)

    def _missed(self, backend: Backend, error: Exception, misses: int) -> None:
        """Note a poll without a good answer. A worker that refuses connections is gone at once."""
        if not (backend.alive or backend.told or shortage(error)):
            backend.told = True
            log.warning("%s is not there: %s", backend.id, key_refused(error) or said(error))
        if shortage(error):
            self._metrics.fault("out_of_descriptors", error)
        elif refused(error):
            self.lost(backend, str(error))
        else:
            self._metrics.fault("poll_missed", f"{backend.id}: {said(error)}")
            if misses >= self._settings.poll_misses:
                self.lost(backend, said(error))

    async def look(self, backend: Backend, engine: Engine[Any, Any]) -> None:
        """Ask a worker once, for what it is when that is not known yet, and for its load."""
        if not backend.alive:
            backend.introduce(await engine.describe(backend))
        report = await engine.load(backend)
        backend.report(report)
        if backend.engine_hangs(report.stamps, self._settings.silence_s):
            self.lost(backend, f"its engine has not said its load for {self._settings.silence_s:g} s")
            return
        if not backend.alive:
            backend.told = False
            log.info("%s is there: %s, label %s", backend.id, backend.kind, backend.view.role)
            self.came(backend)
