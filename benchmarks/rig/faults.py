"""Faults on real servers behind a gateway: one function makes each kind, and says what became of the requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp

from benchmarks.rig import servers
from benchmarks.rig.named import OPEN, name_of
from benchmarks.rig.stage import DEADLINE_S, GRACE_S, TOKENS, Stage, address, last_event, send, until

CHUNK = 256
"""Tokens of one prefill step of the servers; KV cache is sent after each one."""
LONG = 14 * CHUNK
"""A prompt whose transfer goes on for as many steps."""
UNDER_WAY_S = 1.2
"""For so long after an abort KV cache may be under way: many steps, and less than servers hold its place (2 s)."""


class Came(StrEnum):
    """What became of a request."""

    RIGHT = "right"
    """The tokens of a unified server."""
    ERROR = "clear error"
    """An HTTP status or an error event that says why, or a closed connection; inside the deadline."""
    LEFT = "client left"
    WRONG = "wrong"
    """Other tokens, or an end without a reason: a defect."""
    HUNG = "hung"
    """Neither inside the deadline: a defect."""


@dataclass(frozen=True)
class Ask:
    """One request, and where it is to run."""

    ids: list[int]
    count: int
    stream: bool
    first: str
    second: str
    split: int


@dataclass
class Tally:
    """What one kind of fault came to."""

    faults: int = 0
    requests: Counter[Came] = field(default_factory=Counter)
    longest_s: float = 0.0
    said: Counter[str] = field(default_factory=Counter)
    """Clear errors, and what was wrong."""

    @property
    def defects(self) -> int:
        """Requests that got a wrong answer, or none."""
        return self.requests[Came.WRONG] + self.requests[Came.HUNG]

    def add(self, came: Came, took_s: float, what: str = "") -> None:
        """Enter one request."""
        self.requests[came] += 1
        if came is not Came.LEFT:
            self.longest_s = max(self.longest_s, took_s)
        if what:
            self.said[f"{came}: {what}"] += 1


def prompt(dice: random.Random, tokens: int) -> list[int]:
    """Return token ids that no prefix cache holds."""
    return [dice.randrange(4, 512) for _ in range(tokens)]


def any_ask(dice: random.Random, one: str, two: str, tokens: int | None = None) -> Ask:
    """Return a request by any primitive in which two workers take part, or one: pair, push, head, warm, local."""
    tokens = tokens or dice.choice([40, CHUNK + 10, 900, 2000])
    count = dice.choice([4, 20, 60])
    split = dice.choice([tokens, tokens, dice.randrange(1, tokens), tokens + count // 2])
    second = dice.choice([two, two, two, OPEN, one])
    return Ask(prompt(dice, tokens), count, dice.random() < 0.5, one, second, tokens if second == OPEN else split)


def long_pair(dice: random.Random, first: str, second: str) -> Ask:
    """Return a request whose KV cache moves from the one to the other in many parts."""
    return Ask(prompt(dice, LONG), 8, dice.random() < 0.5, first, second, LONG)


async def asked(stage: Stage, ask: Ask, tally: Tally, leave: Callable[[bytes], bool] | None = None) -> None:
    """Send a request and enter what became of it.

    :param leave: tells after each part of a stream whether the client leaves now.
    """
    began = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE_S + GRACE_S):
            status, data = await _answer(stage, ask, leave)
    except TimeoutError:
        tally.add(Came.HUNG, time.monotonic() - began, f"{ask.first},{ask.second},{ask.split} of {len(ask.ids)}")
        return
    except (aiohttp.ClientError, ConnectionError) as error:
        tally.add(Came.ERROR, time.monotonic() - began, f"connection closed ({type(error).__name__})")
        return
    took_s = time.monotonic() - began
    if data is None:
        tally.add(Came.LEFT, took_s)
        return
    said = last_event(data) if data.startswith(b"data: ") else json.loads(data)
    if "error" in said:
        tally.add(Came.ERROR, took_s, _short(said["error"]))
    elif status == 200 and said.get("output_ids") == await stage.right(ask.ids, ask.count):
        tally.add(Came.RIGHT, took_s)
    else:
        got = said.get("output_ids")
        what = f"status {status}, {said.get('meta_info', {}).get('finish_reason')}, {got and len(got)} of {ask.count}"
        tally.add(Came.WRONG, took_s, f"{what} {str(said)[:120] if got is None else ''}")


async def _answer(stage: Stage, ask: Ask, leave: Callable[[bytes], bool] | None) -> tuple[int, bytes | None]:
    sampling = {"max_new_tokens": ask.count, "temperature": 0, "ignore_eos": True}
    rid = name_of(ask.first, ask.second, ask.split, f"{random.getrandbits(48):x}")
    body = {"input_ids": ask.ids, "sampling_params": sampling, "stream": ask.stream, "rid": rid}
    async with stage.client.post(stage.gateway.url + "/generate", json=body) as answer:
        data = b""
        async for part in answer.content.iter_any():
            data += part
            if leave is not None and leave(data):
                return answer.status, None
        return answer.status, data


def _short(error: object) -> str:
    said = error.get("message", "") if isinstance(error, dict) else str(error)
    words = str(said).split("; the last: ")[0].split(":")
    return words[0][:80] if len(words) == 1 else f"{words[0]}:{words[-1]}"[:80]


# --- clients ----------------------------------------------------------------------------------------------------------


async def clients_leave(stage: Stage, dice: random.Random, count: int, tally: Tally) -> None:
    """Leave in every phase: at once, while it waits, prefills or is sent, at the first token, in mid decode."""

    async def leaves(ask: Ask, after_s: float, after_events: int) -> None:
        tally.faults += 1
        began = time.monotonic()
        if ask.stream and dice.random() < 0.5:
            await asked(stage, ask, tally, lambda data: data.count(b"\n\n") >= after_events)
            return
        task = asyncio.create_task(asked(stage, ask, tally))
        _, late = await asyncio.wait([task], timeout=after_s)
        if late:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            tally.add(Came.LEFT, time.monotonic() - began)

    one, two = map(address, stage.pair)
    asks = [any_ask(dice, *dice.sample([one, two], 2)) for _ in range(count)]
    await asyncio.gather(*(leaves(ask, dice.random() ** 2 * 1.5, dice.randrange(1, 10)) for ask in asks))


# --- peers ------------------------------------------------------------------------------------------------------------


def peer(kind: str) -> Callable[[Stage, random.Random, int, Tally], Awaitable[None]]:
    """Return the fault that one of the two halves of a request is sent to the impostor called `kind`.

    Pairs, pushes and warm prefills: a whole answer that is asked of the impostor alone would last for the deadline.
    """

    async def meet(stage: Stage, dice: random.Random, count: int, tally: Tally) -> None:
        there = stage.impostors[kind].id

        def ask() -> Ask:
            here = address(dice.choice(stage.pair))
            if kind == "half" and dice.random() < 0.5:
                found = any_ask(dice, here, there)
            else:  # that of "half" has the bootstrap address of the first server
                found = any_ask(dice, there, here if kind != "half" else address(stage.b))
            return found if found.first != found.second and found.split <= len(found.ids) else ask()

        tally.faults += count
        async with stage.joined(kind):
            await asyncio.gather(*(asked(stage, ask(), tally) for _ in range(count)))

    return meet


async def garbage(stage: Stage, dice: random.Random, count: int, tally: Tally) -> None:
    """Send nonsense to the ports at which peers meet, while requests go on there."""
    one, two = map(address, stage.pair)
    asks = [long_pair(dice, *dice.sample([one, two], 2)) for _ in range(2)]
    running = [asyncio.create_task(asked(stage, ask, tally)) for ask in asks]
    for _ in range(count):
        server = dice.choice(stage.pair)
        bootstrap = f"http://127.0.0.1:{server.bootstrap_port}/route"
        rank = {"prefill_dp_rank": 0, "prefill_cp_rank": 0, "target_tp_rank": 0, "target_pp_rank": 0}
        async with stage.client.get(bootstrap, params=rank) as answer:
            peer = await answer.json()
        noise = dice.randbytes(dice.randrange(1, 3000))
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
        kind = dice.randrange(4)
        with contextlib.suppress(aiohttp.ClientError, OSError):
            if kind == 0:
                await _pour("127.0.0.1", server.bootstrap_port, noise)
            elif kind == 1:
                await _pour(peer["rank_ip"], peer["rank_port"], greeting + noise if dice.random() < 0.5 else noise)
            elif kind == 2:
                await (await stage.client.put(bootstrap, data=noise)).read()
            else:
                await (await stage.client.get(bootstrap, params=dict.fromkeys(rank, "none"))).read()
        tally.faults += 1
    await asyncio.gather(*running)


async def _pour(host: str, port: int, data: bytes) -> None:
    _, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def foreign_message(stage: Stage, dice: random.Random, count: int, tally: Tally) -> None:
    """Send messages that are well-formed for ZMQ, and foreign for SGLang, to a prefill role; then ask it."""
    import zmq  # noqa: PLC0415 - comes with SGLang
    import zmq.asyncio  # noqa: PLC0415

    first, second = dice.sample(stage.pair, 2)
    rank = {"prefill_dp_rank": 0, "prefill_cp_rank": 0, "target_tp_rank": 0, "target_pp_rank": 0}
    async with stage.client.get(f"http://127.0.0.1:{first.bootstrap_port}/route", params=rank) as answer:
        peer = await answer.json()
    with zmq.asyncio.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(f"tcp://{peer['rank_ip']}:{peer['rank_port']}")
        for _ in range(count):
            await socket.send_multipart([dice.randbytes(20) for _ in range(dice.randrange(1, 5))])
            tally.faults += 1
        await asyncio.sleep(0.2)
    await asked(stage, long_pair(dice, address(first), address(second)), tally)


async def left_kv_is_taken(
    stage: Stage, dice: random.Random, count: int, tally: Tally, most_s: float = UNDER_WAY_S
) -> None:
    """A client leaves while KV cache is under way; others take at once what was reserved for it, and then it comes.

    It may not be written over theirs. All other KV cache is in use by prefix caches, so that they take what was
    reserved.

    :param most_s: how long it is under way after the abort, where the others have not taken theirs before.
    """
    tokens, others = 600, 8
    full = [_alone(dice, at, LONG, 1) for at in map(address, stage.pair) for _ in range(TOKENS // LONG)]
    await asyncio.gather(*(asked(stage, ask, Tally()) for ask in full))
    for _ in range(count):
        first, second = dice.sample(stage.pair, 2)
        with stage.link_down():
            leaves = asyncio.create_task(asked(stage, long_pair(dice, address(first), address(second)), Tally()))

            async def moving(first: servers.Server = first, leaves: asyncio.Task[None] = leaves) -> bool:
                return (await stage.load(first))["num_used_tokens"] >= 2 * CHUNK or leaves.done()

            await until(moving, DEADLINE_S, "no transfer began", pause_s=0)
            tally.said["transfers under way"] += not leaves.done()
            leaves.cancel()
            await asyncio.gather(leaves, return_exceptions=True)
            tally.add(Came.LEFT, 0.0)
            tally.faults += 1
            asks = [_alone(dice, address(second), tokens, 100) for _ in range(others)]
            takers = [asyncio.create_task(asked(stage, ask, tally)) for ask in asks]

            async def taken(second: servers.Server = second) -> bool:
                return (await stage.load(second))["num_used_tokens"] >= tokens * others

            with contextlib.suppress(TimeoutError):
                await until(taken, most_s, "not taken", pause_s=0.02)
        await asyncio.gather(*takers)
        await stage.settled()


def _alone(dice: random.Random, at: str, tokens: int, count: int) -> Ask:
    return Ask(prompt(dice, tokens), count, dice.random() < 0.5, at, at, tokens)


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass
class Transfers:
    """Requests in flight, some of which are in the middle of their transfer."""

    first: servers.Server
    second: servers.Server
    tasks: Sequence[asyncio.Task[None]]
    under_way: int


async def in_mid_transfer(stage: Stage, dice: random.Random, tally: Tally, count: int = 4) -> Transfers:
    """Return once KV cache moves: a prefill for another server begins when that one has named its places, and sends
    what each step has computed; here two steps or more have been made, and the prompt has more."""
    first, second = dice.sample(stage.pair, 2)
    asks = [long_pair(dice, address(first), address(second)) for _ in range(count)]
    asks += [any_ask(dice, address(second), address(second), 300) for _ in range(2)]
    tasks = [asyncio.create_task(asked(stage, ask, tally)) for ask in asks]

    async def moving() -> bool:
        held = (await stage.load(first))["num_used_tokens"]
        return 2 * CHUNK <= held < LONG or all(task.done() for task in tasks[:count])

    await until(moving, DEADLINE_S, "no transfer began", pause_s=0)
    return Transfers(first, second, tasks, sum(not task.done() for task in tasks[:count]))


def stopped(least_s: float, most_s: float) -> Callable[[Stage, random.Random, int, Tally], Awaitable[None]]:
    """Return the fault that one side stands still in mid transfer for so long: all of it, or its engine alone."""

    async def stop(stage: Stage, dice: random.Random, count: int, tally: Tally) -> None:
        for _ in range(count):
            at = await in_mid_transfer(stage, dice, tally)
            victim = dice.choice([at.first, at.second])
            engine_only = dice.random() < 0.5
            send(victim, signal.SIGSTOP, engine_only=engine_only)
            try:
                await asyncio.sleep(dice.uniform(least_s, most_s))
            finally:
                send(victim, signal.SIGCONT, engine_only=engine_only)
            await asyncio.gather(*at.tasks)
            tally.faults += 1
            tally.said["transfers under way"] += at.under_way
            await stage.settled()

    return stop


async def server_killed(stage: Stage, dice: random.Random, count: int, tally: Tally) -> None:
    """Kill one side in mid transfer, and start it again on the same ports: by turns who sends and who gets."""
    for _ in range(count):
        at = await in_mid_transfer(stage, dice, tally)
        victim = (at.first, at.second)[tally.faults % 2]
        victim.signal(signal.SIGKILL)
        victim.process.wait()
        tally.faults += 1
        tally.said["transfers under way"] += at.under_way
        victim.log.rename(victim.log.with_name(f"{victim.log.stem}-killed-{os.urandom(3).hex()}.log"))
        victim.start()
        await asyncio.gather(*at.tasks)
        await asyncio.to_thread(victim.wait)
        await stage.settled()


async def gateway_killed(stage: Stage, dice: random.Random, count: int, tally: Tally) -> None:
    """Kill the gateway in mid transfer: the servers must see by themselves that their clients are gone."""
    for _ in range(count):
        at = await in_mid_transfer(stage, dice, tally)
        stage.gateway.kill()
        tally.faults += 1
        tally.said["transfers under way"] += at.under_way
        await asyncio.gather(*at.tasks)
        await stage.gateway.start()
        await stage.settled()


Fault = Callable[[Stage, random.Random, int, Tally], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "client leaves": clients_leave,
    "bootstrap never answers": peer("hole"),
    "bootstrap refuses": peer("refuse"),
    "other half never comes": peer("half"),
    "left KV cache is taken": left_kv_is_taken,
    "garbage at the ports": garbage,
    "foreign message": foreign_message,
    "side stops for 1-4 s": stopped(1, 4),
    "side stops for 15-20 s": stopped(15, 20),
    "side is killed": server_killed,
    "gateway is killed": gateway_killed,
}


async def all_is_well(stage: Stage, dice: random.Random, count: int, tally: Tally | None = None) -> Tally:
    """Ask `count` things at once with nothing wrong; all must be right. Enter them into `tally`, and return it."""
    tally = tally or Tally()
    one, two = map(address, stage.pair)
    asks = [any_ask(dice, *dice.sample([one, two], 2)) for _ in range(count)]
    await asyncio.gather(*(asked(stage, ask, tally) for ask in asks))
    return tally
