"""The gateway's cost: what the benchmark sends."""

from __future__ import annotations

import asyncio
from typing import Any

import gateway


class Noting:
    """A way to nobody, which notes the prompts."""

    pid = None

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    async def ask(self, _: Any, prompt: list[int], **how: Any) -> float:
        self.prompts.append(tuple(prompt))
        return 0.1


def test_no_prompt_that_is_timed_was_sent_before() -> None:
    way: Any = Noting()
    figures = asyncio.run(gateway.measure(way, 2, 5, 40, stream=True))
    warm_up, timed = way.prompts[:2], way.prompts[2:]
    assert len(set(timed)) == len(timed) == 5
    assert not set(warm_up) & set(timed)
    assert figures["p50_ms"] == 100.0
