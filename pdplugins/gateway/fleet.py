"""The workers: what each one can do, whether it is there, and what it says of its load."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.gateway.engines.sglang.protocol import LOADS, SERVER_INFO
from pdplugins.gateway.settings import GatewaySettings
from pdplugins.gateway.views import View

log = logging.getLogger("pdplugins.gateway")

POLL_TIMEOUT_S = 3.0
MISSES = 3
"""Polls without an answer after which a worker counts as gone."""


class Kind(StrEnum):
    """What a server can do."""

    DUAL = "dual"
    """Prefill for others, decode for others, and serve alone, at once: SGLang with the plugin of pdplugins."""
    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"
    """Serves alone only."""


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """One ``--worker``."""

    url: str
    bootstrap_port: int | None = None
    role: Role | None = None
    kind: Kind | None = None

    @classmethod
    def parse(cls, text: str) -> WorkerOption:
        """Read ``URL[,bootstrap_port=N][,role=prefill|decode][,kind=dual|prefill|decode|unified]``."""
        url, *pairs = text.split(",")
        given = dict(pair.partition("=")[::2] for pair in pairs)
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
            raise ConfigError(f"--worker {text}: {url!r} is no URL; write for example http://127.0.0.1:30000")
        try:
            port, role, kind = (given.pop(name, None) for name in ("bootstrap_port", "role", "kind"))
            option = cls(url.rstrip("/"), port and int(port), role and Role(role), kind and Kind(kind))  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"--worker {text}: {error}; roles are prefill and decode") from None
        if given:
            raise ConfigError(f"--worker {text}: unknown {', '.join(given)}; known are bootstrap_port, role and kind")
        return option


class Worker:
    """One server."""

    def __init__(self, option: WorkerOption, role: Role) -> None:
        parts = urlsplit(option.url)
        self.option = option
        self.url = option.url
        self.id = parts.netloc
        self.host = parts.hostname or ""
        self.kind: Kind | None = None
        """None until it has said what it is."""
        self.bootstrap_port = option.bootstrap_port
        self.incremental = False
        """Whether its streams hold new tokens only, and not all so far."""
        self.alive = False
        self.resting_until_s = 0.0
        self.view = View(self.id, role, 0)
        self._waits: set[asyncio.Timeout] = set()
        self._said: tuple[Any, float] = (None, 0.0)
        """The time stamp of its last load report, and since when it has been that."""

    @asynccontextmanager
    async def awaited(self, within_s: float | None) -> AsyncIterator[None]:
        """Raise TimeoutError in what is done inside after `within_s`, or as soon as this worker is lost."""
        async with asyncio.timeout(within_s) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)

    def stands_still(self, stamp: Any, silence_s: float) -> bool:
        """Tell whether its engine has made no new load report for too long, though its HTTP server answers.

        Only a dual-role instance makes them also while all its requests wait for others.
        """
        now_s = monotonic()
        if stamp != self._said[0]:
            self._said = (stamp, now_s)
        return self.kind is Kind.DUAL and any(stamp) and now_s - self._said[1] > silence_s

    def lost(self) -> None:
        """Take no new work, and end the wait of all who wait for an answer to begin."""
        self.alive = False
        self.view.cached_blocks.clear()
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now_s)

    @property
    def prefills(self) -> bool:
        """Whether it can prefill for another one."""
        return self.kind in (Kind.DUAL, Kind.PREFILL)

    @property
    def decodes(self) -> bool:
        """Whether it can decode what another one has prefilled."""
        return self.kind in (Kind.DUAL, Kind.DECODE)

    @property
    def alone(self) -> bool:
        """Whether it can serve a request alone."""
        return self.kind in (Kind.DUAL, Kind.UNIFIED)


class Fleet:
    """All workers. `ready` is the same tuple for as long as no worker comes or goes, as routers may expect.

    :param dual: decode servers run pdplugins' dual-role instance (``sglang.dual_role`` of the config).
    :param prefill: dual-role workers without a role that are labelled prefill, the first ones.
    """

    def __init__(self, options: Sequence[WorkerOption], *, dual: bool, prefill: int, settings: GatewaySettings) -> None:
        roles = [Role.PREFILL] * prefill + [Role.DECODE] * len(options)
        self.workers = [Worker(option, option.role or role) for option, role in zip(options, roles, strict=False)]
        self.by_id = {worker.id: worker for worker in self.workers}
        if len(self.by_id) < len(self.workers):
            raise ConfigError("--worker: two workers have the same address; give each one once")
        self.ready: tuple[View, ...] = ()
        self._dual = dual
        self._settings = settings
        self._resting = False

    def refresh(self) -> None:
        """Find out who takes new work now."""
        now_s = monotonic()
        alive = [worker for worker in self.workers if worker.alive]
        rested = [worker for worker in alive if worker.resting_until_s <= now_s]
        self._resting = len(rested) < len(alive)
        usable = rested if serves(rested) else alive
        ready = tuple(worker.view for worker in usable)
        if ready != self.ready:
            self.ready = ready

    def now_ready(self) -> tuple[View, ...]:
        """Return the workers that take new work."""
        if self._resting:
            self.refresh()
        return self.ready

    def pick(self, can: Callable[[Worker], bool]) -> list[Worker]:
        """Return the ready workers that `can`."""
        return [worker for view in self.now_ready() if can(worker := self.by_id[view.id])]

    def failed(self, worker_id: str, *, gone: bool) -> None:
        """Note that a worker failed a request: it rests; one that cannot be reached stays away until it answers."""
        worker = self.by_id[worker_id]
        worker.resting_until_s = monotonic() + self._settings.rest_s
        if gone and worker.alive:
            self._lost(worker, "connection failed")
        self.refresh()

    # --- watching ------------------------------------------------------------------------------------------------

    async def watch(self, worker: Worker, session: aiohttp.ClientSession) -> None:
        """Poll one worker, for as long as the gateway runs."""
        misses = 0
        while True:
            try:
                async with asyncio.timeout(POLL_TIMEOUT_S):
                    await self.look(worker, session)
                misses = 0
            except aiohttp.ClientConnectorError as error:
                self._lost(worker, str(error))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError) as error:
                misses += 1
                if misses >= MISSES:
                    self._lost(worker, f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._settings.poll_s)

    async def look(self, worker: Worker, session: aiohttp.ClientSession) -> None:
        """Ask a worker once, for what it is when that is not known yet, and for its load."""
        if not worker.alive:
            async with session.get(worker.url + SERVER_INFO, raise_for_status=True) as answer:
                self._introduce(worker, await answer.json())
        async with session.get(worker.url + LOADS, params={"include": "core"}, raise_for_status=True) as answer:
            loads = (await answer.json())["loads"]
        report(worker.view, loads)
        if worker.stands_still([load.get("timestamp") for load in loads], self._settings.silence_s):
            self._lost(worker, f"its engine has not said its load for {self._settings.silence_s:g} s")
            return
        if not worker.alive:
            worker.alive = True
            log.info("%s is there: %s, label %s", worker.id, worker.kind, worker.view.role)
            self.refresh()

    def _introduce(self, worker: Worker, info: dict[str, Any]) -> None:
        mode = info.get("disaggregation_mode")
        if worker.option.kind is not None:
            worker.kind = worker.option.kind
        elif mode == "prefill":
            worker.kind = Kind.PREFILL
        elif mode == "decode":
            worker.kind = Kind.DUAL if self._dual else Kind.DECODE
        else:
            worker.kind = Kind.UNIFIED
        worker.bootstrap_port = worker.option.bootstrap_port or info.get("disaggregation_bootstrap_port")
        worker.incremental = bool(info.get("incremental_streaming_output"))
        if worker.kind in (Kind.PREFILL, Kind.DECODE):
            worker.view.role = Role(worker.kind.value)
        worker.view.kv_capacity_tokens = int(info.get("max_total_num_tokens") or 0)

    def _lost(self, worker: Worker, why: str) -> None:
        if not worker.alive:
            return
        log.warning("%s is gone: %s", worker.id, why)
        worker.lost()
        self.refresh()


def serves(workers: Sequence[Worker]) -> bool:
    """Tell whether these workers can serve a request between them."""
    return any(worker.alone for worker in workers) or (
        any(worker.prefills for worker in workers) and any(worker.decodes for worker in workers)
    )


def report(view: View, loads: Sequence[dict[str, Any]]) -> None:
    """Enter what a worker says of its load, summed over its data-parallel ranks."""

    def total(name: str) -> int:
        return sum(int(load.get(name) or 0) for load in loads)

    view.load.reported(total("num_running_reqs"), total("num_waiting_reqs"), total("num_waiting_uncached_tokens"))
    if capacity := total("max_total_num_tokens"):
        view.kv_capacity_tokens = capacity
