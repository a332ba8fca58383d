"""The ways in which one request can be served by two dual-role instances, as a gateway would ask for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Tokens = list[int]


@dataclass(frozen=True)
class Instance:
    """A server as a client sees it."""

    url: str
    bootstrap_port: int = 0

    def address(self) -> dict[str, Any]:
        """What says that this instance prefills; both sides get the same."""
        return {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.bootstrap_port,
            "bootstrap_room": random.getrandbits(62),
        }


@dataclass
class Client:
    """Sends requests with these sampling settings."""

    session: aiohttp.ClientSession
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 0})
    logprobs: bool = False

    async def generate(self, instance: Instance, prompt: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, **self.sampling},
            "return_logprob": self.logprobs,
            **more,
        }
        async with self.session.post(instance.url + "/generate", json=body) as answer:
            data: dict[str, Any] = await answer.json()
            if "output_ids" not in data:
                raise RuntimeError(f"{answer.status} {instance.url}: {data}")
            return data

    async def tokens(self, instance: Instance, prompt: Sequence[int], tokens: int) -> Tokens:
        """Served by one instance alone."""
        return list((await self.generate(instance, prompt, tokens))["output_ids"])

    async def pair(self, first: Instance, second: Instance, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """Prefilled by `first`, decoded by `second`; the answer of the latter."""
        address = first.address()
        _, answer = await asyncio.gather(
            self.generate(first, prompt, tokens, **address), self.generate(second, prompt, tokens, **address)
        )
        return answer

    async def push(self, first: Instance, second: Instance, prefix: Sequence[int]) -> None:
        """Prefill `prefix` on `first` and leave its KV cache on `second`."""
        if prefix:
            await self.pair(first, second, prefix, 1)

    async def split(self, first: Instance, second: Instance, prompt: Sequence[int], tokens: int, at: int) -> Tokens:
        """Tokens [0, at) of prompt and output on `first`, the rest on `second`: any micro-request."""
        if at < len(prompt):
            await self.push(first, second, prompt[:at])
            return await self.tokens(second, prompt, tokens)
        if at == len(prompt):
            return list((await self.pair(first, second, prompt, tokens))["output_ids"])
        begun = await self.tokens(first, prompt, min(at - len(prompt), tokens))
        if len(begun) == tokens:
            return begun
        rest = await self.pair(first, second, [*prompt, *begun], tokens - len(begun))
        return begun + list(rest["output_ids"])


def prompt_of(rng: random.Random, tokens: int) -> Tokens:
    """Random token ids, none of them special."""
    return [rng.randrange(4, 98) for _ in range(tokens)]
