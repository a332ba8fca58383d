"""What passes answers on takes about the same time for each token, however long the answer is."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.gateway.engines.sglang.calls import parse
from pdplugins.gateway.engines.sglang.relay import Relay
from pdplugins.gateway.errors import WorkerFailedError

TOKENS = 3000


def event(said: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


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


def test_a_worker_that_goes_on_without_tokens_is_not_read_anew_for_ever() -> None:
    """The first worker broke off inside a character, and the next one's tokens are to tell what it was."""
    body = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"max_new_tokens": 2 * TOKENS}}
    client: Any = Client()
    relay = Relay(parse("/generate", json.dumps(body).encode(), "r", None, {}), client, lambda _: None, silent)
    relay._incremental = True
    meta = {"id": "leg", "prompt_tokens": 3, "completion_tokens": 1, "finish_reason": None}
    first = [b"data: " + json.dumps({"text": "\ufffd", "output_ids": [5], "meta_info": meta}).encode() + b"\n\n", b""]
    empty = [b"data: {}\n\n"] * 2 * TOKENS + [b""]

    class Said(Answer):
        def __init__(self, pieces: list[bytes]) -> None:
            self.tokens = 1
            self.pieces = pieces

        async def piece(self) -> bytes:
            return self.pieces.pop(0)

    said: Any = Said(first)
    asyncio.run(relay.run(said, head=True))
    relay.fold()
    began_s = time.process_time()
    said = Said(empty)
    asyncio.run(relay.run(said))
    assert time.process_time() - began_s < 3.0
    assert client.sent == 1 + 2 * TOKENS


LONG = {"text": "x" * 4000, "output_ids": [5] * 1000, "meta_info": {"id": "leg", "finish_reason": None}}
SHORT = {"text": "y", "output_ids": [6], "meta_info": {"id": "leg", "finish_reason": None}}
FULL = {**SHORT, "text": "y" * TOKENS, "output_ids": [6] * TOKENS}


async def continued(piece: bytes, *, incremental: bool, most_bytes: int = 2**30) -> list[bytes]:
    """What the client of a stream whose events hold all so far gets of a second worker that says `piece`."""
    told: list[bytes] = []

    class Told(Client):
        async def send(self, data: bytes, content_type: str) -> None:
            told.append(data)

    class Said(Answer):
        def __init__(self, piece: bytes, *, incremental: bool) -> None:
            self.tokens = 1
            self.most_bytes = most_bytes
            self.backend = SimpleNamespace(id="w", incremental=incremental)
            self.pieces = [piece, b""]

        async def piece(self) -> bytes:
            return self.pieces.pop(0)

    body = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"max_new_tokens": 9 * TOKENS}}
    client: Any = Told()
    relay = Relay(parse("/generate", json.dumps(body).encode(), "r", None, {}), client, lambda _: None, silent)
    said: Any = Said(event(LONG), incremental=False)
    await relay.run(said, head=True)
    relay.fold()
    said = Said(piece, incremental=incremental)
    await relay.run(said)
    return told[1:]


@pytest.mark.parametrize(
    ("short", "incremental", "full"), [({}, False, {"text": "", "output_ids": []}), (SHORT, True, FULL)]
)
@pytest.mark.parametrize("end", [b"", b": ping\n\n", b"data: [DONE]\n\n", b": ping\n\ndata: [DONE]\n\n"])
def test_of_many_short_events_behind_a_long_answer_the_last_one_is_told(
    short: dict[str, Any], incremental: bool, full: dict[str, Any], end: bytes
) -> None:
    """Each one holds all so far at the client: of 40 KB of them half a minute of the loop was made, and gigabytes."""
    began_s = time.process_time()
    (told,) = asyncio.run(continued(event(short) * TOKENS + end, incremental=incremental))
    assert time.process_time() - began_s < 3.0
    (said, done, *_) = [*told.split(b"\n\n"), b""]
    shown = json.loads(said.removeprefix(b"data: "))
    assert shown["text"] == LONG["text"] + full["text"]
    assert shown["output_ids"] == LONG["output_ids"] + full["output_ids"]
    assert (done == b"data: [DONE]") == (b"DONE" in end)


def test_events_that_cannot_be_told_in_one_are_no_more_than_a_whole_answer() -> None:
    with pytest.raises(WorkerFailedError, match="does not end"):
        asyncio.run(continued((event(SHORT) + b"data: []\n\n") * TOKENS, incremental=True, most_bytes=2**20))


def test_the_name_of_a_request_is_put_into_an_answer_so_often_and_no_more() -> None:
    """It may be eight times as long as the name of its leg, which a worker can repeat as often as it likes."""

    class Said(Answer):
        rid, most_bytes = "leg" * 10, 2**20
        pieces = [event({"text": "leg" * 300_000, "output_ids": [5]}), b""]  # noqa: RUF012 - of one test

        async def piece(self) -> bytes:
            return self.pieces.pop(0)

    body = {"input_ids": [1, 2, 3], "stream": True, "rid": "r" * 256}
    said: Any = Said()
    client: Any = Client()
    client.started = False
    relay = Relay(parse("/generate", json.dumps(body).encode(), "", None, {}), client, lambda _: None, silent)
    tracemalloc.start()
    with pytest.raises(WorkerFailedError, match="does not end"):
        asyncio.run(relay.run(said))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 * 2**20


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
