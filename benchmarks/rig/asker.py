"""A client: asks one frontend at a rate that swings, for ever, and prints a line of JSON for each answer.

python benchmarks/rig/asker.py URL MODEL RATE SEED
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time

import aiohttp

ISL, OSL = (200, 1500), (4, 40)
"""Shortest and longest prompt and output, in tokens."""
SWING_S = 30.0
LOW = 0.3
"""Share of the highest rate that is the lowest one."""
DEADLINE_S = 30.0


async def one(session: aiohttp.ClientSession, url: str, model: str, dice: random.Random) -> None:
    sent_s, osl = time.monotonic(), dice.randint(*OSL)
    prompt = [300 + dice.randrange(500) for _ in range(dice.randint(*ISL))]
    body = {"model": model, "prompt": prompt, "max_tokens": osl, "ignore_eos": True}
    said = ""
    try:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            data = await answer.read()
        good = answer.status == 200 and json.loads(data)["usage"]["completion_tokens"] == osl
        if not good:
            said = f"{answer.status} {data[-200:]!r}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        good, said = False, f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - sent_s
    sys.stdout.write(json.dumps({"sent_s": sent_s, "took_s": took_s, "good": good, "said": said}) + "\n")
    sys.stdout.flush()


async def main(url: str, model: str, rate: float, seed: int) -> None:
    dice, began_s = random.Random(seed), time.monotonic()
    tasks: set[asyncio.Task[None]] = set()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(DEADLINE_S)) as session:
        while True:
            swing = 0.5 - 0.5 * math.cos(2 * math.pi * (time.monotonic() - began_s) / SWING_S)
            await asyncio.sleep(dice.expovariate(rate * (LOW + (1 - LOW) * swing)))
            task = asyncio.create_task(one(session, url, model, dice))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
