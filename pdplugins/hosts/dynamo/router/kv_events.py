"""What workers say of their KV caches: which blocks they stored, removed and cleared.

Dynamo's workers publish it as *KV events*. Dynamo's own `KvRouter` hears workers that listen for subscribers
themselves, and not those that speak through a broker, as those of ``dynamo serve`` do. So this is a subscriber of its
own at the broker, over Dynamo's `RadixTree`. Where no broker is named it hears nothing.

A message has four frames: topic, publisher, its sequence number, and an envelope. That is a byte of version and four of
length, then msgpack, whose ``payload`` is a msgpack list of events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pdplugins.gateway.metrics import GatewayMetrics

TOPIC, EVENTS = "namespace.{}.component.{}.endpoint.{}.{}", "kv-events"
VERSION, HEADER_BYTES = 1, 5
"""Of the envelope."""
MOST = 500
"""Messages that are taken in at once: the rest waits in ZMQ's buffer, which drops what is too much."""
PUBLISHERS = 64
"""Of one worker, at most: one for each of its data-parallel ranks."""
_BROKER = re.compile(r"xpub=([^\s,;]+)")


@dataclass(slots=True)
class _Heard:
    """What one worker has said so far."""

    held: dict[int, set[int]] = field(default_factory=dict)
    """By data-parallel rank: hashes of the blocks that it has stored and not removed, as far as we have heard."""
    following: dict[bytes, int] = field(default_factory=dict)
    """Sequence number of the next message of each publisher."""


class KvEvents:
    """The blocks that workers hold. Call `start` before use, `hear` again and again, and `close` in the end."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._heard: dict[int, _Heard] = {}
        self._receive: Callable[[], Sequence[bytes] | None] = lambda: None
        self.close: Callable[[], None] = lambda: None
        """End the subscription."""

    def start(self, broker: str | None, paths: Iterable[str]) -> None:
        """Subscribe at the broker of Dynamo's ``DYN_ZMQ_BROKER_URL`` to the workers of these endpoints."""
        import zmq  # noqa: PLC0415 - comes with Dynamo
        from dynamo.llm import RadixTree, compute_block_hash_for_seq  # noqa: PLC0415

        self._hashes = compute_block_hash_for_seq
        self._tree = RadixTree()
        if (where := _BROKER.search(broker or "")) is None:
            return
        socket: Any = zmq.Context.instance().socket(zmq.SUB)
        for path in paths:
            socket.setsockopt_string(zmq.SUBSCRIBE, TOPIC.format(*path.rsplit(".", 2), EVENTS))
        socket.connect(where[1])

        def receive() -> Sequence[bytes] | None:
            try:
                frames: Sequence[bytes] = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            return frames

        def close() -> None:
            socket.close(0)

        self._receive, self.close = receive, close

    def hear(self, most_blocks: Mapping[int, int]) -> None:
        """Take in what has come. :param most_blocks: the blocks of each worker, by its instance: others are ignored."""
        for _ in range(MOST):
            try:
                if (frames := self._receive()) is None:
                    return
                self._take(frames, most_blocks)
            except Exception as error:  # whatever a worker says, requests are routed
                self._metrics.fault("odd_kv_event", repr(error), error)

    def cached(self, prompt: list[int], block_tokens: int) -> dict[int, int]:
        """Return how many leading tokens of a prompt workers hold, by instance: those that hold any."""
        if not any(any(heard.held.values()) for heard in self._heard.values()):
            return {}
        try:
            scores = self._tree.find_matches(self._hashes(prompt, block_tokens)).scores
        except Exception as error:  # as above
            self._metrics.fault("odd_kv_event", repr(error), error)
            return {}
        found: dict[int, int] = {}
        for (instance, _), blocks in scores.items():  # each rank has a KV cache of its own
            found[instance] = max(found.get(instance, 0), blocks * block_tokens)
        return found

    def forget(self, instance: int) -> None:
        """Forget a worker that has gone."""
        if self._heard.pop(instance, None) is not None:
            self._tree.remove_worker(instance)

    # --- what comes --------------------------------------------------------------------------------------------------

    def _take(self, frames: Sequence[bytes], most_blocks: Mapping[int, int]) -> None:
        _, publisher, sequence, envelope = frames
        if envelope[0] != VERSION:
            raise ValueError(f"version {envelope[0]} of the envelope")
        number = int.from_bytes(sequence, "big")
        unpack = msgspec.msgpack.decode
        for said in unpack(unpack(envelope[HEADER_BYTES:])["payload"]):
            instance = said["worker_id"]
            if instance in most_blocks:
                self._follow(instance, publisher, number)
                self._apply(instance, said["event"], most_blocks[instance])

    def _follow(self, instance: int, publisher: bytes, number: int) -> None:
        """Forget what a worker said before it lost messages on the way to us: it may have removed any of it."""
        heard = self._heard.setdefault(instance, _Heard())
        if number > heard.following.get(publisher, number) or len(heard.following) > PUBLISHERS:
            self._metrics.fault("lost_kv_events", f"{instance:x}: message {number} came")
            self.forget(instance)
            heard = self._heard.setdefault(instance, _Heard())
        heard.following[publisher] = number + 1

    def _apply(self, instance: int, event: Mapping[str, Any], most_blocks: int) -> None:
        """Take in one event. What builds on blocks that we never heard of, or removes such, does not matter here."""
        ranks = self._heard[instance].held
        data, held = event["data"], ranks.setdefault(event.get("dp_rank", 0), set())
        if data == "cleared":
            held.clear()
        elif (stored := data.get("stored")) is not None:
            if stored["parent_hash"] is not None and stored["parent_hash"] not in held:
                return
            held.update(block["block_hash"] for block in stored["blocks"])
        else:
            gone = held.intersection(data["removed"]["block_hashes"])
            held -= gone
            event = {**event, "data": {"removed": {"block_hashes": list(gone)}}}
        self._tree.apply_event(instance, json.dumps(event).encode())
        if (
            len(ranks) > PUBLISHERS or len(held) > 2 * most_blocks
        ):  # so much it cannot hold: we must have missed that it removed some
            would = f"it would hold {len(held)} blocks of {most_blocks}, in {len(ranks)} ranks"
            self._metrics.fault("lost_kv_events", f"{instance:x}: {would}")
            self.forget(instance)
