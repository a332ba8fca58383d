"""What the router learns from the KV events of workers, and what it makes of those that are odd, lost or too many."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from pdplugins.config import Choice
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.hosts.dynamo.router.kv_events import KvEvents
from pdplugins.hosts.dynamo.router.workers import DynamoWorker
from pdplugins.types import Role
from tests.hosts.dynamo.router.rig import Rig, settings, until

pytestmark = pytest.mark.dynamo

SIZE, WORKER, OTHER = 64, 2**63 + 5, 7
PROMPT = list(range(1000, 1000 + 10 * SIZE))
MOST = {WORKER: 20}


def message(
    number: int, *events: Any, worker: int = WORKER, publisher: bytes = b"p" * 8, rank: int | None = 0
) -> list[bytes]:
    """What a worker publishes: these events, each the `data` of one. Without ranks it may leave them out."""
    of = {} if rank is None else {"dp_rank": rank}
    said = [{"worker_id": worker, "event": {"event_id": number, "data": data, **of}} for data in events]
    packed = msgspec.msgpack.encode({"payload": msgspec.msgpack.encode(said)})
    return [b"topic", publisher, number.to_bytes(8, "big"), b"\x01" + len(packed).to_bytes(4, "big") + packed]


class Told:
    """KV events of messages that a test gives."""

    def __init__(self) -> None:
        from dynamo.llm import compute_block_hash_for_seq  # noqa: PLC0415 - may be missing

        self.metrics = GatewayMetrics()
        self.events = KvEvents(self.metrics)
        self.events.start(None, ())
        self.hashes = compute_block_hash_for_seq(PROMPT, SIZE)

    def stored(self, start: int, end: int) -> dict[str, Any]:
        """The event of storing these blocks of the prompt."""
        blocks = [
            {"block_hash": number, "tokens_hash": self.hashes[number], "mm_extra_info": None}
            for number in range(start, end)
        ]
        return {"stored": {"parent_hash": start - 1 if start else None, "start_position": None, "blocks": blocks}}

    def hear(self, *messages: list[bytes]) -> dict[int, int]:
        """Take in messages; return what is cached of the prompt."""
        waiting = list(messages)
        self.events._receive = lambda: waiting.pop(0) if waiting else None
        self.events.hear(MOST)
        return self.events.cached(PROMPT, SIZE)

    @property
    def faults(self) -> Counter[str]:
        return self.metrics.faults


def test_what_is_stored_and_removed_is_known() -> None:
    told = Told()
    assert told.hear() == {}
    assert told.hear(message(3, told.stored(0, 4)), message(4, told.stored(4, 6))) == {WORKER: 6 * SIZE}
    assert told.hear(message(5, {"removed": {"block_hashes": [5, 4, 3]}})) == {WORKER: 3 * SIZE}
    assert told.hear(message(6, "cleared", told.stored(0, 1))) == {WORKER: SIZE}
    told.events.forget(WORKER)
    assert told.hear() == {}
    assert not told.faults


def test_each_rank_of_a_worker_has_a_kv_cache_of_its_own() -> None:
    """The one that holds most of a prompt counts. Each has a publisher of its own."""
    told = Told()

    def said(rank: int, *events: Any, number: int = 1) -> list[bytes]:
        return message(number, *events, publisher=bytes([rank]) * 8, rank=rank)

    assert told.hear(said(0, told.stored(0, 6)), said(1, told.stored(0, 2))) == {WORKER: 6 * SIZE}
    everything = {"removed": {"block_hashes": list(range(6))}}
    assert told.hear(said(0, everything, number=2)) == {WORKER: 2 * SIZE}
    assert told.hear(said(0, told.stored(0, 3), number=3), said(1, "cleared", number=2)) == {WORKER: 3 * SIZE}
    assert told.hear(said(0, everything, number=4)) == {}
    other = {"block_hash": 99, "tokens_hash": 5, "mm_extra_info": None}
    stored = {"stored": {"parent_hash": None, "start_position": None, "blocks": [other]}}
    assert told.hear(said(1, stored, number=3)) == {}
    assert not told.faults


def test_a_worker_without_ranks_need_not_name_one() -> None:
    told = Told()
    assert told.hear(message(1, told.stored(0, 2), rank=None)) == {WORKER: 2 * SIZE}
    assert not told.faults


def test_what_was_stored_before_we_heard_does_not_matter() -> None:
    told = Told()
    removed = {"removed": {"block_hashes": [77, 1, 78]}}
    assert told.hear(message(3, removed, told.stored(4, 6), told.stored(0, 2), removed)) == {WORKER: SIZE}
    assert not told.faults


def test_who_is_not_registered_is_not_heard() -> None:
    told = Told()
    assert told.hear(message(0, told.stored(0, 4), worker=OTHER)) == {}
    assert not told.faults


def test_after_a_gap_nothing_is_known_of_the_worker_but_what_it_says_then() -> None:
    told = Told()
    told.hear(message(0, told.stored(0, 4)))
    assert told.hear(message(2, told.stored(4, 6))) == {}, "what it builds on may have been removed"
    assert told.faults == {"lost_kv_events": 1}
    assert told.hear(message(3, told.stored(0, 2))) == {WORKER: 2 * SIZE}


def test_what_no_worker_can_hold_is_forgotten() -> None:
    told = Told()
    told.hear(message(0, told.stored(0, 4)))
    blocks = [{"block_hash": 100 + n, "tokens_hash": n, "mm_extra_info": None} for n in range(50)]
    many = {"stored": {"parent_hash": None, "start_position": None, "blocks": blocks}}
    assert told.hear(message(1, many)) == {}
    assert told.faults == {"lost_kv_events": 1}
    assert told.hear(message(2, told.stored(0, 4))) == {WORKER: 4 * SIZE}


@pytest.mark.parametrize(
    "odd",
    [
        [b"topic"],
        [b"topic", b"p", b"0", b""],
        [b"topic", b"p", b"0", b"\x02" + message(0)[3][1:]],
        [b"topic", b"p", b"0", b"\x01abcd" + msgspec.msgpack.encode([1])],
        [b"topic", b"p", b"0", json.dumps({"payload": []}).encode()],
        message(0, {"stored": 3}),
        message(0, {"stored": {"parent_hash": None, "blocks": [{"block_hash": "x"}]}}),
        message(0, {"moved": {}}),
        message(0, 3),
    ],
)
def test_odd_messages_are_counted_and_the_next_one_is_heard(odd: list[bytes]) -> None:
    told = Told()
    later = message(1, told.stored(0, 4), publisher=b"q" * 8)
    assert told.hear(odd, later) == {WORKER: 4 * SIZE}
    assert told.faults == {"odd_kv_event": 1}


def test_an_odd_prompt_is_not_looked_up() -> None:
    told = Told()
    told.hear(message(0, told.stored(0, 4)))
    assert told.events.cached([-1] * SIZE, SIZE) == {}
    assert told.faults == {"odd_kv_event": 1}


def test_a_prefix_that_came_by_another_way_is_seen(rig: Rig) -> None:
    """A cache-aware router takes the worker that has the prompt, though it never sent that there.

    These workers serve no other test: those of the tests of faults may have little KV cache left.
    """
    config = settings("dopd", any_role=False)
    config = config.model_copy(update={"router": Choice(name="cache-aware"), "planner": None})

    async def prefill(worker: DynamoWorker, prompt: list[int]) -> None:
        from dynamo._core import Context  # noqa: PLC0415 - may be missing

        body = {
            "model": "tiny", "token_ids": prompt, "stop_conditions": {"max_tokens": 1}, "sampling_options": {},
            "output_options": {}, "eos_token_ids": [], "annotations": [],
        }  # fmt: skip
        context = Context(f"aside-{prompt[0]}")
        async for _ in await worker.clients[Role.PREFILL].direct(
            body, worker.instance, annotated=False, context=context
        ):
            pass

    async def run() -> Counter[str]:
        async with rig.routed(config, 2, 1) as component:
            prefills = [one for one in component.workers.by_id.values() if one.view.role is Role.PREFILL]
            processes = rig.workers(2, 1, both=False)
            chosen: Counter[str] = Counter()
            cached = component.workers._kv_events.cached
            for seed, worker in zip((233, 461), prefills, strict=True):
                # ZMQ drops what a worker publishes before the broker has told it who listens.
                await prefill(worker, [300 + seed] * 640)
                prompt = [300 + (7 * n + seed) % 500 for n in range(1300)]
                await prefill(worker, prompt)
                await until(lambda at=worker, of=prompt: cached(of, SIZE).get(at.instance) == 1280)
                before = processes[worker.id].served()
                assert (await rig.ask(1300, 3, seed=seed))[0] == 200
                chosen[worker.id] += (processes[worker.id].served() - before)["prefill.generate"]
            assert not component.metrics.faults
        return chosen

    chosen = rig.run(run())
    assert sorted(chosen.values()) == [1, 1]
