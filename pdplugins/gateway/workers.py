"""The workers of a host that sends them requests itself: who is there, who rests, and who takes new work now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Generic, TypeVar

from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.gateway.books import WorkerBook
from pdplugins.gateway.deadlines import Deadlines
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.primitive import can_serve
from pdplugins.gateway.roles import WorkerLabels
from pdplugins.limits import GatewayConfig

log = logging.getLogger("pdplugins.gateway")


class Worker:
    """One worker, and the host's book of it."""

    def __init__(self, worker: str, role: Role) -> None:
        self.id = worker
        self.alive = False
        self.ends = False
        """Whether it gets nothing new, and ends what it has."""
        self.resting_until_s = 0.0
        self.view = WorkerBook(worker, role)
        self.waits = Deadlines()
        """For the beginning of an answer; they end as soon as this worker is lost."""

    def lost(self) -> None:
        """Take no new work, and end all waits for the beginning of an answer."""
        self.alive = self.ends = False
        self.view.cached_blocks.clear()
        self.view.used_kv_tokens = None
        self.waits.expire()


WorkerT = TypeVar("WorkerT", bound=Worker)
"""The host's own workers."""


class Workers(Generic[WorkerT]):
    """All workers. `ready` is the same tuple while no worker comes, goes or changes its role, as routers may expect."""

    def __init__(
        self, workers: Iterable[WorkerT], settings: GatewayConfig, metrics: GatewayMetrics | None = None
    ) -> None:
        self.by_id: dict[str, WorkerT] = {}
        self.views: dict[str, WorkerView] = {}
        self.ready: tuple[WorkerView, ...] = ()
        self.ready_ids: frozenset[str] = frozenset()
        self._metrics = metrics or GatewayMetrics()
        self.labels = WorkerLabels(self._metrics, lambda: self._change((*self.ready,)))
        self._settings = settings
        self._resting = False
        self._together = self._stale = False
        self.serves = asyncio.Event()
        """Set while the workers that take new work can serve a request between them."""
        self._on_change: Callable[[], None] | None = None
        self.on_lost: Callable[[str], None] = lambda worker: None
        """Is called with the name of a worker that is lost, and with it its KV cache."""
        for worker in workers:
            self.add(worker)

    def add(self, worker: WorkerT) -> None:
        """Take in a worker, which is not there before it has `came`."""
        self.by_id[worker.id] = worker
        self.views[worker.id] = worker.view
        worker.view.load.on_freed = self._on_change

    def forget(self, worker: WorkerT) -> None:
        """Let go of a worker that is not there, and that no request names any more."""
        del self.by_id[worker.id], self.views[worker.id]
        self.labels.forget(worker.id)

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever a worker may take more: it comes, goes, changes its role, reports or frees KV."""
        self._on_change = on_change
        for worker in self.by_id.values():
            worker.view.load.on_freed = on_change

    def refresh(self) -> None:
        """Find out who takes new work now; inside `together`, at its end."""
        if self._together:
            self._stale = True
            return
        now_s = monotonic()
        alive = [worker for worker in self.by_id.values() if worker.alive]
        rested = [worker for worker in alive if worker.resting_until_s <= now_s]
        self._resting = len(rested) < len(alive)
        usable = rested if can_serve(worker.view for worker in rested) else alive
        ready = tuple(worker.view for worker in usable)
        if ready != self.ready:
            self._change(ready)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Find out once who takes new work, after all the workers that come and go inside. Nothing may wait inside."""
        self._together = True
        try:
            yield
        finally:
            self._together, stale, self._stale = False, self._stale, False
            if stale:
                self.refresh()

    def now_ready(self) -> tuple[WorkerView, ...]:
        """Return the workers that take new work."""
        if self._resting:
            self.refresh()
        return self.ready

    def failed(self, worker: str, *, gone: bool) -> None:
        """Note that a worker failed a request. It gets no new ones for a while, or until it can be reached again."""
        failing = self.by_id[worker]
        failing.resting_until_s = monotonic() + self._settings.rest_s
        if gone:
            self.lost(failing, "it refuses connections")
        self.refresh()

    def came(self, worker: WorkerT) -> None:
        """Give a worker work from now on."""
        worker.alive, worker.ends = True, False
        self.labels.came(worker.view)
        self.refresh()

    def lost(self, worker: WorkerT, why: str) -> None:
        """Give a worker nothing any more."""
        if not worker.alive:
            return
        log.warning("%s is gone: %s", worker.id, why)
        worker.lost()
        self.on_lost(worker.id)
        self.labels.went(worker.id)
        self.refresh()

    def _change(self, ready: tuple[WorkerView, ...]) -> None:
        self.ready = ready
        self.ready_ids = frozenset(worker.id for worker in ready)
        if can_serve(ready):
            self.serves.set()
        else:
            self.serves.clear()
        if self._on_change is not None:
            self._on_change()
