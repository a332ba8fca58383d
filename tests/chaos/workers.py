"""Faults of workers: one of them goes wrong for a while, under requests, and is right again afterwards."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from tests.chaos.clients import PATHS, Act, asked, together
from tests.chaos.plan import DEADLINE_S, Tally
from tests.chaos.stage import Stage
from tests.gateway.fake import FakeWorker, Faults
from tests.gateway.rig import ask

NONSENSE = (
    *(b"<html>", b"", b"[]", b'"x"', b"5", b"null", b"[" * 5_000 + b"]" * 5_000, b'{"a": "\xff"}', b"\x00" * 100),
    *(b'{"max_total_num_tokens": 1e999}', b'{"loads": [1]}', b'{"loads": [null]}', b'{"loads": null}', b'{"a": 1}'),
    *(b'{"loads": [{"num_running_reqs": 1e999}]}', b'{"loads": [{"num_used_tokens": NaN}]}', b'{"loads": [{}]}'),
    *(b'{"loads": [{"num_running_reqs": -5}]}', b'{"loads": [' + b" " * 5 * 2**20 + b"]}", b'{"tp_size": {"a": 1}}'),
)
ODD_EVENTS: tuple[Any, ...] = (
    *({}, [], 5, None, "x", {"meta_info": 5}, {"meta_info": [1]}, {"meta_info": {"completion_tokens": 1e999}}),
    *({"output_ids": 5, "meta_info": {}}, {"text": [1], "meta_info": {}}, {"choices": 5}, {"choices": [None]}),
    *({"error": 5}, {"error": {"message": [], "code": {}}}, {"meta_info": {"finish_reason": {"type": 5}}}),
)


@asynccontextmanager
async def wrong(*workers: FakeWorker, **faults: Any) -> AsyncIterator[None]:
    """These workers have these faults inside."""
    for worker in workers:
        worker.faults = Faults(**faults)
    try:
        yield
    finally:
        for worker in workers:
            worker.faults = Faults()
            worker.says.clear()


async def load(stage: Stage, dice: Random, tally: Tally, count: int = 12) -> None:
    """Requests of others, which may fail, but only in time."""
    bodies = [(asked(dice, stream=dice.random() < 0.6), "/generate") for _ in range(count)]
    bodies += [(json.dumps({"prompt": "hello", "max_tokens": 5, "stream": True}).encode(), PATHS[1])]
    await together([stage.request(body, tally, path) for body, path in bodies])


def one(many: bool = False, **faults: Any) -> Act:
    """One worker (or all of them) has these faults."""

    async def act(stage: Stage, dice: Random, tally: Tally) -> None:
        ends_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends_s:
            workers = stage.workers if many else [dice.choice(stage.workers)]
            async with wrong(*workers, **faults):
                before = [worker.faults.times for worker in workers]
                await load(stage, dice, tally)
                if [worker.faults.times for worker in workers] != before:
                    return
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(f"no request met the fault: {dict(tally.came)}")

    return act


def says(paths: tuple[str, ...], many: bool = False) -> Act:
    """A worker answers polls with nonsense."""

    async def act(stage: Stage, dice: Random, tally: Tally) -> None:
        workers = stage.workers if many else [dice.choice(stage.workers)]
        async with wrong(*workers):
            for _ in range(5):
                for worker in workers:
                    worker.says.update({path: dice.choice(NONSENSE) for path in paths})
                await asyncio.sleep(0.15)
                await load(stage, dice, tally, 3)

    return act


def odd_answers(stream: bool) -> Act:
    """A worker answers requests with JSON, or events, of any content."""

    async def act(stage: Stage, dice: Random, tally: Tally) -> None:
        worker = dice.choice(stage.workers)
        try:
            for _ in range(5):
                said = json.dumps(dice.choice(ODD_EVENTS)).encode()
                if stream:
                    events = dice.choice([b"", b": comment\n\n", b"data:\n\n", b"event: x\nid: 3\n"])
                    said = events + b"data: " + said + dice.choice([b"\n\n", b"\r\n\r\n", b"", b"\n\ndata: [DONE]\n\n"])
                async with wrong(worker, times=3):
                    worker.said_type = "text/event-stream" if stream else "application/json"
                    worker.says.update(dict.fromkeys(PATHS, said))
                    await load(stage, dice, tally, 4)
        finally:
            worker.said_type = "application/json"

    return act


async def endless_event(stage: Stage, dice: Random, tally: Tally) -> None:
    worker = dice.choice(stage.workers)
    worker.endless = dice.choice([b"x", b"data: x"]) * 2**14
    try:
        await together([stage.request(ask([1, 2], 3, stream=True), tally) for _ in range(6)])
    finally:
        worker.endless = None


async def pieces(stage: Stage, dice: Random, tally: Tally) -> None:
    """Events come in pieces of a few bytes."""
    for worker in stage.workers:
        worker.piece_bytes = dice.randrange(1, 30)
    try:
        await load(stage, dice, tally)
    finally:
        for worker in stage.workers:
            worker.piece_bytes = 0


async def stands_still(stage: Stage, dice: Random, tally: Tally) -> None:
    """The engine of a worker makes no new load reports."""
    worker = dice.choice(stage.workers)
    stamps, worker.stamps = worker.stamps, itertools.repeat(7.0)
    try:
        await load(stage, dice, tally)
        await asyncio.sleep(1)
    finally:
        worker.stamps = stamps


async def dies(stage: Stage, dice: Random, tally: Tally) -> None:
    """A worker ends in the middle of requests, and is there again a moment later."""
    worker = dice.choice(stage.workers)
    async with asyncio.TaskGroup() as group:
        group.create_task(load(stage, dice, tally))
        await asyncio.sleep(dice.uniform(0, 0.05))
        await worker.stop()
        await asyncio.sleep(dice.uniform(0, 1))
        await worker.start()


async def killed(stage: Stage, dice: Random, tally: Tally) -> None:
    """SIGKILL of the worker that is a process."""
    assert stage.child is not None
    async with asyncio.TaskGroup() as group:
        group.create_task(load(stage, dice, tally))
        await asyncio.sleep(dice.uniform(0, 0.05))
        await stage.child.stop()
        await stage.child.start()


async def stopped(stage: Stage, dice: Random, tally: Tally) -> None:
    """SIGSTOP of the worker that is a process, for a while."""
    assert stage.child is not None
    stage.child.signal(signal.SIGSTOP)
    try:
        await load(stage, dice, tally)
    finally:
        stage.child.signal(signal.SIGCONT)


PAUSE_S = 0.1
"""Between batches of requests until one of them meets the fault. A worker may be at rest, or have another part, or idle
connections may have taken all places of the gateway until it closes them."""
POLLS = ("/server_info", "/v1/loads")
FULL = {"status": 503, "headers": {"Retry-After": "1"}}
WORKER: dict[str, Act] = {
    "nonsense to polls": says(POLLS),
    "nonsense to tokenizer calls": says(("/v1/tokenize",), many=True),
    "TCP resets": one(reset=True, times=5),
    "a worker that fails": one(status=500, times=8),
    "a worker that refuses the key": one(status=401, times=8),
    "error events": one(error_event=True, times=4),
    "an event without end": endless_event,
    "events in pieces": pieces,
    "an engine that stands still": stands_still,
}
HURTS: dict[str, Act] = {
    "nonsense to polls, everywhere": says(POLLS, many=True),
    "a full worker": one(**FULL),
    "full workers, everywhere": one(many=True, **FULL),
    "TCP resets, everywhere": one(many=True, reset=True, times=6),
}
"""Faults for which requests may be refused."""
CUTS: dict[str, Act] = {
    "death mid-stream": one(die_after_tokens=2, times=4),
    "a worker that dies": dies,
}
"""Faults that end streams which nobody else can go on with; all other requests are answered elsewhere."""
FAILS: dict[str, Act] = {"silence": one(hang=True, times=2)}
"""Faults that only the end of its time takes a whole answer out of: the worker goes on saying its load."""
ODD: dict[str, Act] = {
    "odd answers": odd_answers(stream=False),
    "odd event streams": odd_answers(stream=True),
}
"""Faults that reach the clients of the worker as they are."""
PROCESS: dict[str, Act] = {"a worker that is killed": killed, "a worker that is stopped": stopped}
"""Faults of the worker that is a process."""
