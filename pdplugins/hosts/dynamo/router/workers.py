"""The workers of a stack as the router sees them: found in Dynamo's discovery, with the load that their engines report.

Discovery is slow to notice a worker that has died. So a worker that refuses a request is gone at once, and comes back
by itself when it has rested and is still, or again, registered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from time import monotonic
from typing import Any

from pdplugins.contracts.workers import Capabilities, Role
from pdplugins.gateway.books import BLOCK_TOKENS
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.prompts import blocks_of
from pdplugins.gateway.workers import Worker, Workers
from pdplugins.hosts.dynamo.loads import ForwardPass, from_message
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.engines import EngineKind
from pdplugins.hosts.dynamo.router.kv_events import KvEvents
from pdplugins.hosts.dynamo.router.places import NAMESPACE, Place
from pdplugins.limits import GatewayConfig

log = logging.getLogger("pdplugins.router")

LOOK_S = 0.1
"""Pause between two looks at discovery and the engines' reports: about the time until a new worker gets work."""
SILENT_S = 1.0
"""Time without a reported step after which an engine is idle: it reports nothing between two requests."""
FORGET_S = 3600.0
"""Time after which a worker that is gone is forgotten; no request can name it any more."""


class DynamoWorker(Worker):
    """One worker process: its instance, and a client for each phase that it serves."""

    def __init__(self, name: str, role: Role, instance: int, clients: Mapping[Role, Any]) -> None:
        super().__init__(name, role)
        self.instance = instance
        self.clients = clients
        self.bootstrap: tuple[str, int] | None = None
        """Host and port at which others arrange transfers of KV cache with it, where its engine has such an address."""
        self.gone_since_s = 0.0
        self.block_tokens = 1
        """Tokens of one block of its KV cache."""
        self._own = 0
        """Entries in the books. One that will decode here has one while it prefills elsewhere."""
        self._legs = 0
        """Legs that are open here: what its engines may report of ours."""
        self._most = [0, 0]
        """Most legs that were open here at once, before the last look and since."""
        self._reports: tuple[bytes, ...] = ()
        self._reported_s = 0.0

    def introduce(self, card: Mapping[str, Any], tp: int, capabilities: Capabilities) -> None:
        """Take in its model card. Raises KeyError, TypeError or ValueError for an odd one."""
        if address := card["runtime_config"].get("disaggregated_endpoint"):
            self.bootstrap = str(address["bootstrap_host"]), int(address["bootstrap_port"])
        blocks = int(card["runtime_config"]["total_kv_blocks"])
        if (size := int(card["kv_cache_block_size"])) < 1:
            raise ValueError(f"blocks of {size} tokens")
        self.block_tokens = size
        self.view.kv_capacity_tokens = blocks * self.block_tokens
        self.view.tp = tp
        self.view.capabilities = capabilities

    def enters(self) -> None:
        """Note an entry in the books for one of our requests."""
        self._own += 1

    def leaves(self) -> None:
        """Note the end of that."""
        self._own -= 1

    @contextmanager
    def leg(self) -> Iterator[None]:
        """Note that a leg is open here."""
        self._legs += 1
        self._most[1] = max(self._most[1], self._legs)
        try:
            yield
        finally:
            self._legs -= 1

    def report(self, reports: tuple[bytes, ...], decode: Callable[[bytes], Any]) -> None:
        """Take in what its engines said of their last steps: what is more than ours is of other clients.

        A report is older than our books, and engines take a moment to stop, so ours are the most that were here lately.
        """
        now_s = monotonic()
        if reports != self._reports:
            self._reports, self._reported_s = reports, now_s
        elif now_s - self._reported_s < SILENT_S:
            return
        most, self._most = max(self._most), [self._most[1], self._legs]
        seen = ForwardPass(*(0.0,) * len(ForwardPass._fields))
        if now_s - self._reported_s < SILENT_S:
            readable = [message for message in map(decode, reports) if message is not None]  # None: another version
            seen = reduce(ForwardPass.plus, map(from_message, readable), seen)
        self._take_in(seen, most)

    def _take_in(self, seen: ForwardPass, most: int) -> None:
        waiting = int(seen.queued_prefills + seen.queued_decodes)
        others = max(int(seen.prefills + seen.decodes) + waiting - most, 0)
        of_others = min(others, waiting)
        book = self.view.load
        book.reported(
            self._own + others - of_others, of_others, int(seen.queued_prefill_tokens), int(seen.prefill_tokens)
        )
        used = max(int(seen.decode_tokens + seen.prefill_tokens), book.running_tokens + book.queued_tokens)
        self.view.used_kv_tokens = min(used, self.view.kv_capacity_tokens)


class DynamoWorkers(Workers[DynamoWorker]):
    """The workers of one kind of engine. Call `start` before use, and keep `watch` running.

    :param both: whether each worker serves both phases.
    :param tp: GPUs of one worker of each role.
    """

    def __init__(
        self,
        kind: EngineKind,
        settings: GatewayConfig,
        metrics: GatewayMetrics,
        *,
        both: bool,
        tp: Mapping[Role, int],
        namespace: str = NAMESPACE,
    ) -> None:
        super().__init__((), settings, metrics)
        self._kind = kind
        self._places = kind.places(both=both, namespace=namespace)
        self._both = both
        self._endpoints = len(Role) if both and kind.two_endpoints else 1
        """Endpoints that a worker registers; it is there once it has all of them."""
        self._tp = tp
        self._clients: dict[Place, Any] = {}
        self._subscribers: dict[str, Any] = {}
        self._known: dict[int, DynamoWorker] = {}
        self._kv_events = KvEvents(metrics)

    async def start(self, runtime: Any) -> None:
        """Begin to watch discovery and the engines' reports."""
        from dynamo.common.forward_pass_metrics import decode  # noqa: PLC0415 - brings Dynamo in
        from dynamo.llm import FpmEventSubscriber  # noqa: PLC0415

        self._decode = decode
        for place in self._places:
            endpoint = runtime.endpoint(place.path)
            self._clients[place] = await endpoint.client()
            if place.component not in self._subscribers:
                subscriber = self._subscribers[place.component] = FpmEventSubscriber(endpoint)
                subscriber.start_tracking()
        self._kv_events.start(os.environ.get("DYN_ZMQ_BROKER_URL"), (place.path for place in self._places))

    def stop(self) -> None:
        """End the subscriptions."""
        for subscriber in self._subscribers.values():
            subscriber.shutdown()
        self._kv_events.close()

    def heed(self, call: PreprocessedCall) -> None:
        """Note which prefix blocks of a prompt workers say that they have cached, whoever sent them there."""
        if len(call.prompt) < BLOCK_TOKENS:
            return
        for size in {worker.block_tokens for worker in self._known.values()}:
            for instance, tokens in self._kv_events.cached(call.prompt, size).items():
                worker = self._known.get(instance)
                if worker is not None and worker.block_tokens == size and tokens >= BLOCK_TOKENS:
                    blocks = blocks_of(call)[: tokens // BLOCK_TOKENS]
                    worker.view.cached_blocks.add(blocks, worker.view.kv_capacity_tokens)

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """See who is registered, and what engines report."""
        found: dict[int, list[Place]] = {}
        for place, client in self._clients.items():
            for instance in client.instance_ids():
                found.setdefault(instance, []).append(place)
        now_s = monotonic()
        with self.together():
            self._compare(found, now_s)
        self._report()
        self._kv_events.hear(
            {
                instance: worker.view.kv_capacity_tokens // worker.block_tokens
                for instance, worker in self._known.items()
            }
        )
        self._forget(now_s)

    def _compare(self, found: dict[int, list[Place]], now_s: float) -> None:
        """Let go of who is not registered any more, and take in who is and can serve."""
        for instance in self._known.keys() - found.keys():  # another one may come under the same name
            self._vanished(self._known.pop(instance), now_s)
        cards: dict[str, dict[str, str]] = {}
        for instance, places in found.items():
            worker = self._known.get(instance)
            if worker is None and len(places) == self._endpoints:
                worker = self._introduced(instance, places, cards)
            if worker is not None and not worker.alive and worker.resting_until_s <= now_s:
                log.info("%s is there: it serves %s", worker.id, " and ".join(sorted(worker.clients)))
                worker.view.used_kv_tokens = 0
                self.came(worker)

    def _introduced(self, instance: int, places: list[Place], cards: dict[str, dict[str, str]]) -> DynamoWorker | None:
        """Return the worker that has registered; None before its card is there."""
        role = next((place.role for place in places if place.role is not None), None)
        component = places[0].component
        if component not in cards:
            cards[component] = self._subscribers[component].get_model_cards()
        text = cards[component].get(str(instance))
        if role is None or text is None:
            return None
        try:
            card = json.loads(text)
            name = str(card["runtime_config"].get("stable_routing_id") or f"{instance:x}")
            if (before := self.by_id.get(name)) is not None and before.instance in self._known:
                name = f"{instance:x}"  # another one has this name
            worker = DynamoWorker(name, role, instance, self._by_phase(places))
            worker.introduce(card, self._tp[role], self._kind.capabilities(role, both=self._both))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self._metrics.fault("odd_card", f"{instance:x}: {error!r}", error)
            return None
        self.add(worker)
        self._known[instance] = worker
        return worker

    def _by_phase(self, places: list[Place]) -> dict[Role, Any]:
        """Return the client of each phase that a worker serves: one endpoint may serve both."""
        clients = {place.phase: self._clients[place] for place in places}
        return dict.fromkeys(Role, *clients.values()) if self._both and len(clients) == 1 else clients

    def _vanished(self, worker: DynamoWorker, now_s: float) -> None:
        worker.gone_since_s = now_s
        self._kv_events.forget(worker.instance)
        self.lost(worker, "it is not registered any more")

    def _report(self) -> None:
        reports: dict[int, list[bytes]] = {}
        for subscriber in self._subscribers.values():
            for (instance, _), raw in subscriber.get_recent_stats().items():
                reports.setdefault(int(instance), []).append(raw)
        for instance, worker in self._known.items():
            try:
                worker.report(tuple(reports.get(instance, ())), self._decode)
            except Exception as error:  # the others' reports count all the same
                self._metrics.fault("odd_report", f"{instance:x}: {error!r}", error)

    def _forget(self, now_s: float) -> None:
        gone = [worker for worker in self.by_id.values() if worker.gone_since_s and not worker.alive]
        for worker in gone:
            if now_s - worker.gone_since_s > FORGET_S:
                self.forget(worker)
