"""Open-loop load on one endpoint of SGLang's API, and which of its requests were in time."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

VOCABULARY = (4, 500)
"""Token ids of prompts."""
TIMEOUT = aiohttp.ClientTimeout(total=600)


@dataclass(frozen=True)
class Ask:
    """One request: when it comes, and how long it is."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Heard:
    """What its client saw of it; without times where it failed, or was cut off."""

    ask: Ask
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True)
class Slo:
    """Objectives of each request."""

    ttft_s: float
    tpot_s: float

    def grace_s(self, asks: Sequence[Ask]) -> float:
        """Return the seconds after an arrival in which any request can still be in time."""
        return self.ttft_s + self.tpot_s * max(ask.output_tokens for ask in asks)


def lengths(dice: random.Random) -> tuple[int, int]:
    """Return prompt and output tokens of a request: seven of ten prompts are short, the others long."""
    prompt = dice.randrange(32, 257) if dice.random() < 0.7 else dice.randrange(512, 1537)
    return prompt, dice.randrange(8, 33)


def poisson(rate: float, seconds: float, seed: int) -> list[Ask]:
    """Return what comes in `seconds` at `rate` requests a second."""
    dice, asks, now_s = random.Random(seed), list[Ask](), 0.0
    while (now_s := now_s + dice.expovariate(rate)) < seconds:
        asks.append(Ask(now_s, *lengths(dice)))
    return asks


def session() -> aiohttp.ClientSession:
    """Return connections of a client, as many as it likes. SGLang closes one after 5 idle seconds."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2), timeout=TIMEOUT)


def body(ask: Ask, dice: random.Random, *, sampled: bool = False) -> bytes:
    """Return a request whose prompt no cache knows.

    :param sampled: as `pdplugins profile from-endpoint` asks: the server samples as it does by default, and may not end
        early. On a CPU that takes a step a good part of a millisecond more than the most likely token does.
    """
    most = ask.output_tokens
    sampling = {"max_new_tokens": most, "ignore_eos": True}
    sampling |= {"min_new_tokens": most} if sampled else {"temperature": 0}
    ids = [dice.randrange(*VOCABULARY) for _ in range(ask.prompt_tokens)]
    return json.dumps({"input_ids": ids, "sampling_params": sampling, "stream": True}).encode()


async def send(client: aiohttp.ClientSession, url: str, ask: Ask, data: bytes) -> Heard:
    """Send one request now, and read its stream."""
    began = time.perf_counter()
    first_s = last_s = 0.0
    tail = b""
    headers = {"Content-Type": "application/json"}
    try:
        async with client.post(url + "/generate", data=data, headers=headers) as answer:
            async for piece in answer.content.iter_any():
                if first_s or b"data:" in piece:
                    last_s = time.perf_counter()
                    first_s = first_s or last_s
                tail = (tail + piece)[-4096:]
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return Heard(ask)
    if status != 200 or f'"completion_tokens":{ask.output_tokens}'.encode() not in tail.replace(b" ", b""):
        return Heard(ask)
    return Heard(ask, first_s - began, (last_s - first_s) / max(ask.output_tokens - 1, 1))


async def offer(url: str, asks: Sequence[Ask], slo: Slo, seed: int, *, sampled: bool = False) -> list[Heard]:
    """Send each request when it is due; cut off what can no longer be in time once the last one has had its chance."""
    dice = random.Random(seed)
    bodies = [body(ask, dice, sampled=sampled) for ask in asks]
    began = time.perf_counter()

    async def one(ask: Ask, data: bytes) -> Heard:
        await asyncio.sleep(began + ask.arrival_s - time.perf_counter())
        return await send(client, url, ask, data)

    async with session() as client:
        tasks = [asyncio.create_task(one(ask, data)) for ask, data in zip(asks, bodies, strict=True)]
        await asyncio.wait(tasks, timeout=asks[-1].arrival_s + slo.grace_s(asks))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [Heard(ask) if task.cancelled() else task.result() for ask, task in zip(asks, tasks, strict=True)]


async def saturate(url: str, seconds: float, at_once: int, seed: int, *, sampled: bool = False) -> float:
    """Return the requests/s that come whole while `at_once` clients each send one after the other.

    The first third, in which the servers fill, does not count.
    """
    dice, done = random.Random(seed), list[float]()
    began = time.perf_counter()

    async def one() -> None:
        while time.perf_counter() < began + seconds:
            ask = Ask(0.0, *lengths(dice))
            if (await send(client, url, ask, body(ask, dice, sampled=sampled))).ttft_s is not None:
                done.append(time.perf_counter() - began)

    async with session() as client:
        clients = [asyncio.create_task(one()) for _ in range(at_once)]
        await asyncio.wait(clients, timeout=seconds)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return sum(at_s > seconds / 3 for at_s in done) / (seconds * 2 / 3)


def scores(heard: Sequence[Heard], slo: Slo) -> dict[str, Any]:
    """Return shares of all requests that were in time, and latencies of those that came whole."""
    whole = [(one.ttft_s, one.tpot_s) for one in heard if one.ttft_s is not None and one.tpot_s is not None]
    in_time = [(ttft_s <= slo.ttft_s, tpot_s <= slo.tpot_s) for ttft_s, tpot_s in whole]
    found: dict[str, Any] = {
        "requests": len(heard),
        "whole": len(whole),
        "attainment": sum(map(all, in_time)) / len(heard),
        "ttft_attainment": sum(ttft for ttft, _ in in_time) / len(heard),
        "tpot_attainment": sum(tpot for _, tpot in in_time) / len(heard),
    }
    for index, name in enumerate(("ttft", "tpot")):
        times = sorted(pair[index] for pair in whole)
        found[f"{name}_p50_s"] = round(statistics.median(times), 4) if times else None
        found[f"{name}_p99_s"] = round(times[int(0.99 * len(times))], 4) if times else None
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}
