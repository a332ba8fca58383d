"""What passes answers on takes about the same time for each token, however long the answer is."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

from pdplugins.gateway.engines.sglang.calls import parse
from pdplugins.gateway.engines.sglang.relay import Relay

TOKENS = 3000


async def silent(*_: Any) -> None:
    """A worker that tells no texts."""


class Client:
    """Takes all that is sent."""

    started = True

    def __init__(self) -> None:
        self.sent = 0

    async def send(self, data: bytes, content_type: str) -> None:
        self.sent += 1

    async def whole(self, body: bytes, content_type: str) -> None:
        raise AssertionError


class Answer:
    """The first `TOKENS` tokens of an answer, from a server whose streams hold new tokens only."""

    rid, content_type, stream, prefill_reply, most_bytes = "leg", "text/event-stream", True, b"", 2**30
    backend = SimpleNamespace(id="w", incremental=True)
    refused = None

    def __init__(self) -> None:
        self.tokens = 0

    async def piece(self) -> bytes:
        if self.tokens == TOKENS:
            return b""
        self.tokens += 1
        ends = {"type": "length", "length": TOKENS} if self.tokens == TOKENS else None
        meta = {"id": "leg", "prompt_tokens": 3, "completion_tokens": self.tokens, "finish_reason": ends}
        return b"data: " + json.dumps({"text": "a", "output_ids": [self.tokens], "meta_info": meta}).encode() + b"\n\n"


def test_the_long_beginning_of_an_answer_is_not_read_anew_for_each_token() -> None:
    """Two thousand tokens took seven seconds of the loop when all events so far were parsed at each one."""
    body = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"max_new_tokens": 2 * TOKENS}}
    call = parse("/generate", json.dumps(body).encode(), "r", None, {})
    client: Any = Client()
    relay = Relay(call, client, lambda _: None, silent)
    began_s = time.process_time()
    answer: Any = Answer()
    assert not asyncio.run(relay.run(answer, head=True)), "another worker goes on"
    relay.fold()
    assert time.process_time() - began_s < 3.0
    assert relay.ids == list(range(1, TOKENS + 1))
    assert client.sent == TOKENS


def test_the_end_mark_does_not_hide_what_the_worker_has_counted() -> None:
    """It may come alone, behind events of eight tokens each, whose number only the worker tells."""
    meta = {"id": "leg", "prompt_tokens": 3, "completion_tokens": 16, "finish_reason": {"type": "length", "length": 16}}
    event = {"text": "a", "output_ids": list(range(8)), "meta_info": meta}
    pieces = [b"data: " + json.dumps(event).encode() + b"\n\n", b"data: [DONE]\n\n", b""]

    class Ended(Answer):
        async def piece(self) -> bytes:
            return pieces.pop(0)

    body = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"max_new_tokens": 16}}
    relay = Relay(parse("/generate", json.dumps(body).encode(), "r", None, {}), Client(), lambda _: None, silent)  # type: ignore[arg-type]
    assert asyncio.run(relay.run(Ended()))  # type: ignore[arg-type]
    assert relay.usage("completion_tokens") == 16
