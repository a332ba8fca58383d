"""Faults of clients and of the operator: each brings one about, and leaves when it has been dealt with."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from collections.abc import Awaitable, Callable
from random import Random
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

from tests.chaos.plan import DEADLINE_S, Tally
from tests.chaos.stage import LIMITS, Stage
from tests.gateway.rig import ask

MIB = 2**20
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")


async def together(works: list[Awaitable[Any]]) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)  # type: ignore[arg-type]


def asked(dice: Random, **more: Any) -> bytes:
    prompt = [dice.randrange(10, 1000) for _ in range(dice.randrange(1, 200))]
    return json.dumps(ask(prompt, dice.randrange(1, 30), **more)).encode()


# --- slow and idle clients --------------------------------------------------------------------------------------------


async def closed_by_gateway(stage: Stage, begun: bytes, tally: Tally) -> None:
    """Say the beginning of something and then nothing; the gateway answers or closes in time."""
    with tally.one():
        async with stage.connection() as (reader, writer), asyncio.timeout(DEADLINE_S):
            writer.write(begun)
            try:
                said = await reader.read()
            except ConnectionResetError:
                said = b""
    tally.came["refused" if said else "closed"] += 1


async def slow_heads(stage: Stage, dice: Random, tally: Tally) -> None:
    whole = stage.head(10)
    begun = [whole[: dice.randrange(len(whole))] for _ in range(20)]
    await together([closed_by_gateway(stage, head, tally) for head in begun])


async def slow_bodies(stage: Stage, dice: Random, tally: Tally) -> None:
    begun = [stage.head(1000) + b"x" * dice.randrange(999) for _ in range(10)]
    chunked = stage.head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    begun += [chunked + dice.choice([b"", b"5\r\nab", b"5\r\nabcde\r\n"]) for _ in range(10)]
    await together([closed_by_gateway(stage, body, tally) for body in begun])


async def trickled_bodies(stage: Stage, dice: Random, tally: Tally) -> None:
    """A byte now and then, so that the connection is never idle."""

    async def one() -> None:
        with tally.one():
            async with stage.connection() as (reader, writer), asyncio.timeout(DEADLINE_S):
                writer.write(stage.head(10_000))
                answer = asyncio.create_task(reader.read(1))
                while not answer.done():
                    writer.write(b" ")
                    await asyncio.wait([answer], timeout=0.1)
                answer.exception()
        tally.came["refused"] += 1

    await together([one() for _ in range(10)])


async def non_reading_streams(stage: Stage, dice: Random, tally: Tally) -> None:
    """Streams that nobody reads: each ends, or its connection is closed."""
    body = json.dumps(ask(list(range(50)), 600, stream=True)).encode()  # 1 MB, as each event has all tokens so far

    async def one() -> None:
        with tally.one():
            async with stage.connection(buffer=1024) as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(stage.message(body))
                await asyncio.sleep(dice.uniform(1, 4))
        tally.came["left"] += 1

    await together([one() for _ in range(8)])


async def idle_connections(stage: Stage, dice: Random, tally: Tally) -> None:
    """More connections than there may be, on which nothing is said."""
    count = int(LIMITS["max_connections"]) + 50

    async def one() -> None:
        try:
            async with stage.connection() as (reader, _), asyncio.timeout(DEADLINE_S):
                await reader.read()
        except TimeoutError:
            raise AssertionError("an idle connection is never closed") from None
        except OSError:
            pass  # closed at once
        tally.came["closed"] += 1

    await together([one() for _ in range(count)])


# --- bodies -----------------------------------------------------------------------------------------------------------


async def huge_bodies(stage: Stage, dice: Random, tally: Tally) -> None:
    chunked = stage.head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    endless = chunked + b"100000\r\n" + b"x" * MIB + b"\r\n"

    async def too_long() -> None:
        with tally.one():
            async with stage.connection() as (reader, writer), asyncio.timeout(DEADLINE_S):
                said = asyncio.create_task(reader.read(12))
                writer.write(endless)
                while not said.done():
                    try:
                        writer.write(b"100000\r\n" + b"x" * MIB + b"\r\n")
                        await writer.drain()
                    except OSError:
                        break
                await asyncio.wait([said])
                said.exception()
        tally.came["refused"] += 1

    big = [b'{"text":"' + b"a" * size + b'"}' for size in (4 * MIB + 1, 3 * MIB, 3 * MIB)]
    lists = [b'{"input_ids":[' + b"[1]," * MIB + b"[1]]}", b'{"x":[' + b"{}," * MIB + b"{}]}", b"[" * 4 * MIB]
    works: list[Awaitable[Any]] = [stage.request(body, tally) for body in [*big, *lists]]
    works += [stage.raw(stage.head(length), tally) for length in (5 * MIB, 2**31, 2**63)]
    await together([*works, too_long()])


async def gzip_bombs(stage: Stage, dice: Random, tally: Tally) -> None:
    bomb = gzip.compress(b" " * 2**24)
    encodings = ("gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP")
    said = [stage.message(bomb, more=f"Content-Encoding: {encoding}\r\n") for encoding in encodings]
    await together([stage.raw(data, tally) for data in said])


async def deep_json(stage: Stage, dice: Random, tally: Tally) -> None:
    bodies = []
    for depth in (65, 1_000, 5_000, 100_000, 1_000_000):
        lists = b"[" * depth + b"]" * depth
        bodies += [b'{"x":' + lists + b"}", lists, b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth]
    await together([stage.request(body, tally, dice.choice(PATHS)) for body in bodies])


ODD_VALUES = (
    *(None, True, -1, 0, 10**30, -(10**30), 1.5, float("nan"), float("inf"), "", "x", "\ud800", "\x00"),
    *([], {}, [[]], [1, [2]], [1, {"a": 1}], [None], ["a", 1], {"a": {"b": []}}, "x" * 70_000, [1] * 3_000),
)
FIELDS = (
    *("prompt", "input_ids", "text", "messages", "sampling_params", "max_tokens", "stream", "n", "rid", "model"),
    *("session_id", "user", "stop", "logprobs", "return_logprob", "echo", "seed", "temperature", "priority"),
    *(
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "stream_options",
        "tools",
        "lora_path",
    ),
)


async def odd_bodies(stage: Stage, dice: Random, tally: Tally) -> None:
    """Fields of any kind; whatever is no request is refused, by gateway or worker."""
    bodies = []
    for _ in range(40):
        body = {field: dice.choice(ODD_VALUES) for field in dice.sample(FIELDS, dice.randrange(1, 6))}
        body = (ask([1, 2, 3], 3) if dice.random() < 0.5 else {}) | body
        data = json.dumps(body).encode()
        if dice.random() < 0.2:
            data = data[: dice.randrange(len(data))]
        if dice.random() < 0.1:
            data += dice.randbytes(5)
        bodies.append(data)
    await together([stage.request(body, tally, dice.choice(PATHS)) for body in bodies])
    for worker in stage.workers:
        worker.rooms.mismatches.clear()


async def odd_names(stage: Stage, dice: Random, tally: Tally) -> None:
    """Sessions and requests with names of any length and content, many of them."""
    names = ["x" * MIB, "\n\r\0", "../../etc/passwd", "{{7*7}}", "\ud83d", "é" * 1000, "' OR 1=1 --", "", "a" * 257]
    bodies = [ask([1, 2, 3], 2, **{field: name}) for name in names for field in ("user", "session_id", "rid", "model")]
    bodies += [ask([1, 2, 3], 1, session_id=f"{dice.random()}") for _ in range(100)]
    dice.shuffle(bodies)
    for at in range(0, len(bodies), 20):
        await together([stage.request(body, tally) for body in bodies[at : at + 20]])
    headers = [f"X-Session-Id: {name}\r\n" for name in ("a" * 8_000, "\x01", "é", "", "x;y=z")]
    await together([stage.raw(stage.message(asked(dice), more=line), tally) for line in headers])


# --- HTTP -------------------------------------------------------------------------------------------------------------

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
MALFORMED = (
    *(
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"\r\n" * 9 + b"x\r\n\r\n",
    ),
    *(b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n", GET + b"X: " + b"a" * 9_000 + b"\r\n\r\n"),
    *(GET + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"\r\n", GET + b" folded: x\r\n\r\n"),
    *(
        GET + b"X\x00Y: z\r\n\r\n",
        GET + b": no name\r\n\r\n",
        GET + b"X: a\rb\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ),
    *(GET + b"Content-Length: many\r\n\r\n", GET + b"Content-Length: -1\r\n\r\n", GET + b"Content-Length: 1_0\r\n\r\n"),
    *(
        GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    *(
        GET + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        GET + b"Transfer-Encoding: xchunked\r\n\r\n",
    ),
    *(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
    ),
    *(
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //x/../health HTTP/1.1\r\nHost: x\r\n\r\n",
    ),
    *(
        b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /workers HTTP/1.1\r\nHost: x\r\n\r\n",
        b"DELETE /generate HTTP/1.1\r\nHost: x\r\n\r\n",
    ),
    *(
        GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        GET + b"Expect: 100-continue\r\n\r\n",
        GET + b"Expect: x\r\n\r\n",
    ),
    *(
        GET + b"Range: bytes=0-\r\n\r\n",
        GET + b"Host: y\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: x\r\n\r\n",
    ),
    b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n",
    b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
)


async def malformed_http(stage: Stage, dice: Random, tally: Tally) -> None:
    """To both listeners; bytes of good requests are changed, too."""
    changed = []
    for _ in range(20):
        data = bytearray(stage.message(asked(dice)))
        for _ in range(dice.randrange(1, 8)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        changed.append(bytes(data))
    await together([stage.raw(data, tally) for data in [*MALFORMED, *changed]])
    await together([stage.raw(data, tally, admin=True) for data in dice.sample(MALFORMED, 20)])


async def wrong_doors(stage: Stage, dice: Random, tally: Tally) -> None:
    """Paths, methods and types that are not served; a POST that a browser would send."""
    paths = [
        "/",
        "/v1/embeddings",
        "/flush_cache",
        "/abort_request",
        "/workers",
        "/metrics",
        "/v1/models/x",
        "/generate/",
    ]
    types = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "application/jsonx",
    ]
    said = [stage.message(b"{}", path) for path in paths]
    said += [stage.message(asked(dice)).replace(b"application/json", kind.encode()) for kind in types]
    said += [
        stage.message(b"{}").replace(b"POST", method) for method in (b"PUT", b"PATCH", b"DELETE", b"HEAD", b"BREW")
    ]
    await together([stage.raw(data, tally) for data in said])


async def bad_keys(stage: Stage, dice: Random, tally: Tally) -> None:
    good = f"Authorization: Bearer {stage.key}"
    odd = [
        "",
        "Authorization: ",
        "Authorization: Bearer",
        "Authorization: Basic eDp5",
        f"{good}x",
        f"X{good}",
        "Authorization: Bearer " + "k" * 8_000,
        "Authorization: Bearer pdp-" + "A" * 43,
        f"Authorization: {stage.key}",
    ]
    for line in odd * 3:
        head = await stage.raw(stage.message(asked(dice)).replace(good.encode(), line.encode()), tally)
        assert not head.startswith(b"HTTP/1.1 200"), (line, head)


async def pipelined_requests(stage: Stage, dice: Random, tally: Tally) -> None:
    """Many requests at once on one connection, most of which are never read."""

    async def one() -> None:
        with tally.one():
            async with stage.connection() as (reader, writer), asyncio.timeout(DEADLINE_S):
                writer.write(stage.message(asked(dice)) * 50)
                await reader.read(2**12)
        tally.came["left"] += 50

    await together([one() for _ in range(4)])


# --- load -------------------------------------------------------------------------------------------------------------


async def burst(stage: Stage, dice: Random, tally: Tally) -> None:
    """Twice as many requests at once as there may be."""
    await together([stage.request(asked(dice), tally) for _ in range(2 * int(LIMITS["max_requests"]))])


async def leaving_clients(stage: Stage, dice: Random, tally: Tally) -> None:
    """Before the answer, in a stream, with a reset or without."""

    async def one() -> None:
        with tally.one():
            async with stage.connection() as (reader, writer), asyncio.timeout(DEADLINE_S):
                data = stage.message(asked(dice, stream=dice.random() < 0.7))
                writer.write(data[: dice.choice([len(data), dice.randrange(len(data))])])
                await writer.drain()
                if dice.random() < 0.5:
                    await asyncio.wait([asyncio.create_task(reader.read(1))], timeout=0.2)
                await asyncio.sleep(dice.uniform(0, 0.05))
                if dice.random() < 0.5:
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        tally.came["left"] += 1

    await together([one() for _ in range(60)])


# --- the operator -----------------------------------------------------------------------------------------------------


async def reloads(stage: Stage, dice: Random, tally: Tally) -> None:
    """SIGHUP, while the file of keys is good, wrong, gone and good again: a bad file changes nothing."""
    good = stage.keys.read_bytes()
    bad: list[bytes | None] = [good, b"no key\n", b"\xff\x00" * 1000, b"x" * 300_000, None, good]
    for content in bad:
        if content is None:
            stage.keys.unlink()
        else:  # at once: the gateway may read it at any moment, and half a file has other keys
            whole = stage.keys.with_suffix(".new")
            whole.write_bytes(content)
            whole.replace(stage.keys)
        stage.reload()
        tally.came["answered"] += 1
        await asyncio.sleep(dice.uniform(0, 0.2))


Act = Callable[[Stage, Random, Tally], Awaitable[None]]
CLIENTS: dict[str, Act] = {
    "slow heads": slow_heads,
    "slow bodies": slow_bodies,
    "trickled bodies": trickled_bodies,
    "streams that nobody reads": non_reading_streams,
    "idle connections beyond the limit": idle_connections,
    "huge bodies": huge_bodies,
    "gzip bombs": gzip_bombs,
    "deep JSON": deep_json,
    "odd bodies": odd_bodies,
    "odd names": odd_names,
    "malformed HTTP": malformed_http,
    "wrong paths, methods and types": wrong_doors,
    "bad keys": bad_keys,
    "pipelined requests": pipelined_requests,
    "clients that leave": leaving_clients,
}
FILLS: dict[str, Act] = {"burst beyond the limit": burst}
"""Faults that fill the gateway, for everyone."""
OPERATOR: dict[str, Act] = {"reload of good and bad keys": reloads}
