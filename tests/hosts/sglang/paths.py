"""The ways in which one request can be served by two dual-role instances, as a gateway would ask for them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from benchmarks.rig.servers import Server

Tokens = list[int]
KEPT_S = 2.0
"""For so long a client keeps an idle connection: SGLang closes it after 5 s, at worst just as a request comes."""
GREEDY = {"temperature": 0}
FILTER = {"top_p": 0.9, "top_k": 50}
"""For requests with seeds beside others. SGLang draws its noise per token id in a step where no request has a filter (a
greedy one counts), else per rank of a token: so a seed without a filter gives other tokens beside other requests."""


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    ids: Tokens
    logprobs: list[float]
    """Of each token; none unless they were asked for."""
    cached: int
    """Tokens of the prompt whose KV cache was there."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Answer:
        meta = body["meta_info"]
        logprobs = [entry[0] for entry in meta.get("output_token_logprobs") or ()]
        return cls(list(body["output_ids"]), logprobs, meta["cached_tokens"])

    def __add__(self, rest: Answer) -> Answer:
        return Answer(self.ids + rest.ids, self.logprobs + rest.logprobs, rest.cached)

    def equals(self, other: Answer) -> bool:
        """Whether tokens are the same, and logprobs but for rounding."""
        pairs = list(zip(self.logprobs, other.logprobs, strict=False))
        close = len(self.logprobs) == len(other.logprobs) and all(abs(mine - its) < 1e-3 for mine, its in pairs)
        return self.ids == other.ids and close


@dataclass(frozen=True)
class Client:
    """Sends requests with these sampling settings."""

    session: aiohttp.ClientSession
    sampling: Mapping[str, Any]
    logprobs: bool = False

    def drawn(self, rng: random.Random) -> Client:
        """A client whose settings are drawn: greedy or with a seed, with logprobs or without."""
        sampling = rng.choice([GREEDY, seeded(rng) | FILTER])
        return replace(self, sampling=sampling, logprobs=rng.random() < 0.5)

    async def post(self, server: Server, prompt: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, **self.sampling},
            "return_logprob": self.logprobs,
            **more,
        }
        async with self.session.post(server.url + "/generate", json=body) as answer:
            data: dict[str, Any] = await answer.json()
            if "output_ids" not in data:
                raise RuntimeError(f"{answer.status} {server.url}: {data}")
            return data

    async def local(self, server: Server, prompt: Sequence[int], tokens: int, **more: Any) -> Answer:
        """Served by one server alone."""
        return Answer.of(await self.post(server, prompt, tokens, **more))

    async def pair(self, first: Server, second: Server, prompt: Sequence[int], tokens: int, **more: Any) -> Answer:
        """Prefilled by `first`, decoded by `second`; the answer of the latter."""
        address = {**first.address(), **more}
        _, answer = await asyncio.gather(
            self.local(first, prompt, tokens, **address), self.local(second, prompt, tokens, **address)
        )
        return answer

    async def push(self, first: Server, second: Server, prefix: Sequence[int]) -> None:
        """Prefill `prefix` on `first` and leave its KV cache on `second`."""
        if prefix:
            await self.pair(first, second, prefix, 1)

    async def split(self, first: Server, second: Server, prompt: Sequence[int], tokens: int, at: int) -> Answer:
        """Tokens [0, at) of prompt and output on `first`, the rest on `second`: any micro-request."""
        if at < len(prompt):
            await self.push(first, second, prompt[:at])
            return await self.local(second, prompt, tokens)
        if at == len(prompt):
            return await self.pair(first, second, prompt, tokens)
        begun = await self.local(first, prompt, min(at - len(prompt), tokens))
        if len(begun.ids) == tokens:
            return begun
        return begun + await self.pair(first, second, [*prompt, *begun.ids], tokens - len(begun.ids))

    async def load(self, server: Server) -> dict[str, Any]:
        async with self.session.get(server.url + "/v1/loads") as answer:
            return dict((await answer.json())["loads"][0])

    async def becomes_idle(self, server: Server, within_s: float = 120.0) -> None:
        """Wait until no request and no KV cache in use is left."""
        deadline = time.monotonic() + within_s
        while True:
            load = await self.load(server)
            counts = {name: count for name, count in load["disaggregation"].items() if name.endswith("_reqs")}
            counts |= {name: load[name] for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}
            if not any(counts.values()):
                return
            assert time.monotonic() < deadline, counts
            await asyncio.sleep(0.2)


def connections(timeout_s: float) -> aiohttp.ClientSession:
    """Connections to servers; every request ends within `timeout_s`."""
    connector = aiohttp.TCPConnector(keepalive_timeout=KEPT_S)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=timeout_s))


def seeded(rng: random.Random) -> dict[str, float]:
    """Sampling settings with a seed of their own."""
    return {"temperature": 0.8, "sampling_seed": rng.getrandbits(31)}


def prompt_of(rng: random.Random, tokens: int) -> Tokens:
    """Random token ids, none of them special."""
    return [rng.randrange(4, 98) for _ in range(tokens)]


def edges_of(prompt: int, output: int, chunk: int) -> list[int]:
    """Every kind of boundary at which a request can be split."""
    edges = {0, 1, prompt // 2, prompt - 1, prompt, prompt + 1, prompt + output // 2, prompt + output - 1}
    edges |= {at for at in (chunk - 1, chunk, chunk + 1, 2 * chunk) if at < prompt}
    return sorted(edges)


def run(test: Callable[[Client], Awaitable[None]], **settings: Any) -> None:
    """Run `test` with a client of the given settings."""

    async def main() -> None:
        async with connections(240) as session:
            await test(Client(session, **{"sampling": GREEDY, **settings}))

    asyncio.run(main())
