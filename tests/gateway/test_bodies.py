"""Bodies: too long, too deep, compressed, not JSON, or odd in any way. The client is told so, and nobody suffers."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pdplugins.gateway.engines.sglang.calls import parse
from pdplugins.gateway.engines.sglang.fields import KNOWN, OURS
from pdplugins.gateway.engines.sglang.protocol import BOOTSTRAP_FIELDS
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.nesting import too_nested
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, patient, stand
from tests.gateway.sockets import ends, head, sockets

MIB = 2**20


async def send(it: Stand, body: bytes, path: str = "/generate", *, as_json: bool = True, **headers: str) -> Any:
    """Return the status and the answer."""
    headers = {"Content-Type": "application/json", **headers}
    async with it.client.post(it.gateway.url + path, data=body, headers=headers) as answer:
        said = await answer.read()
        return answer.status, json.loads(said) if as_json else said


def deep(levels: int, bracket: bytes = b"[]") -> bytes:
    pair = (bracket[:1], bracket[1:]) if bracket == b"[]" else (b'{"a":', b"}")
    return b'{"x":' + pair[0] * (levels - 1) + b"1" + pair[1] * (levels - 1) + b"}"


BAD = {
    "not JSON": (b"{", 400, "the body is not JSON"),
    "empty": (b"", 400, "the body is not JSON"),
    "list": (b"[1]", 400, "the body is not a JSON object"),
    "a list that is almost JSON": (b"[NaN]", 400, "the body is not a JSON object"),
    "UTF-16": ("{}".encode("utf-16"), 400, "the body is not JSON"),
    "BOM": (b"\xef\xbb\xbf{}", 400, "the body is not JSON"),
    "not UTF-8": (b'{"text": "\xff"}', 400, "text is not JSON"),
    "a name that is not UTF-8": (b'{"text": "a", "pdplugins": {}, "\xff": 1}', 400, "the body is not JSON"),
    "more after the end": (b'{"text": "a"} x', 400, "the body is not JSON"),
    "65 deep": (deep(65), 400, "the body is nested more than 64 deep"),
    "65 objects": (deep(65, b"{}"), 400, "the body is nested more than 64 deep"),
    "1,000 deep": (deep(1_000), 400, "the body is nested more than 64 deep"),
    "a million deep": (deep(10**6), 400, "the body has too many values"),
    "deep and open": (b"[" * 10_000, 400, "the body is nested more than 64 deep"),
    "a million values": (b'{"x":[' + b"[]," * 10**6 + b"[]]}", 400, "the body has too many values"),
    "a dict among ids": (b'{"input_ids": [1, {"a": 1}]}', 400, "input_ids holds something that is no token id"),
    "a list among ids": (b'{"input_ids": [1, [2]]}', 400, "input_ids holds something that is no token id"),
    "null among ids": (b'{"input_ids": [1, null]}', 400, "input_ids holds something that is no token id"),
    "a batch of 3,000": (b'{"text": [' + b'"a",' * 2_999 + b'"a"]}', 400, "more than 2048 prompts or answers"),
    "a batch of 3,000 ids": (b'{"input_ids": [' + b"[1]," * 2_999 + b"[1]]}", 400, "more than 2048 prompts or answers"),
    "long sampling": (
        b'{"text":"a","sampling_params":{"x":"' + b"y" * 300_000 + b'"}}',
        400,
        "sampling_params is longer than 262144 bytes",
    ),
    "5 MiB": (b'{"text": "' + b"a" * 5 * MIB + b'"}', 413, "the body is longer than 4 MiB"),
}


@pytest.mark.moderate
def test_mistakes_of_a_client_are_told_in_openais_form() -> None:
    async def run() -> None:
        async with stand("dual") as it:
            for name, (body, status, why) in BAD.items():
                got, answer = await send(it, body)
                assert (got, answer["error"]["message"]) == (status, why), name
                assert answer["error"]["type"] == "invalid_request_error"
                assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert not it.workers[0].seen
            assert it.faults["gateway_error"] == 0
            assert it.gateway.admission._bytes == 0
            assert (await send(it, json.dumps(ask()).encode()))[1]["output_ids"] == answer_of(PROMPT, 9)

    asyncio.run(run())


@pytest.mark.parametrize(
    "more",
    [
        {"x": json.loads(deep(63))},
        {"text": '[[[{{{"' * 1_000, "input_ids": None},
        {"x": "\\" * 999 + '"[[['},
        {"x": [[1]] * 1_000},
        {"text": "\ud800", "input_ids": None},
        {"x": float("nan")},
        {"text": ["a", 'b, \\"c\\"', "["], "input_ids": None},
    ],
)
def test_what_is_within_the_limits_goes_on_as_it_came(more: dict[str, Any]) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed())
            body = ask(**more)
            body = {key: value for key, value in body.items() if value is not None}
            await send(it, json.dumps(body).encode())
            (seen, _) = it.workers[0].seen[0], it.workers[1].seen[0]
            for key in body:
                assert repr(seen[key]) == repr(body[key])
            if isinstance(body.get("text"), list):
                assert len(seen["bootstrap_room"]) == 3

    asyncio.run(run())


@pytest.mark.parametrize("what", ["good", "broken", "bomb"])
def test_compressed_bodies_are_refused_unread(what: str) -> None:
    said = {"good": json.dumps(ask()).encode(), "bomb": b" " * 2**26}
    body = gzip.compress(said[what]) if what in said else b"no gzip"

    async def run() -> None:
        async with stand("dual") as it:
            for encoding in ("gzip", "deflate", "br"):
                status, answer = await send(it, body, **{"Content-Encoding": encoding})
                assert (status, answer["error"]["type"]) == (415, "invalid_request_error")
            assert (await send(it, json.dumps(ask()).encode(), **{"Content-Encoding": "identity"}))[0] == 200

    asyncio.run(run())


@pytest.mark.moderate
def test_a_body_is_refused_by_what_its_head_says_of_its_length() -> None:
    async def run() -> None:
        async with stand("dual") as it, sockets(it.gateway.url) as connect:
            reader, writer = await connect()
            writer.write(head(5 * MIB))
            said = await ends(reader)
            assert said.startswith(b"HTTP/1.1 413")

    asyncio.run(run())


@pytest.mark.moderate
def test_bodies_have_a_limit_together_and_give_their_bytes_back() -> None:
    async def run() -> None:
        async with (
            stand("dual", token_s=1, settings=patient(max_bodies_mib=2)) as it,
            sockets(it.gateway.url) as connect,
        ):
            body = json.dumps(ask(count=3, x="x" * MIB)).encode()
            first = asyncio.create_task(send(it, body))
            assert await settled(lambda: len(it.workers[0].running) == 1)
            status, answer = await send(it, body)
            assert status == 503
            assert "the bodies of all requests" in answer["error"]["message"]
            _, writer = await connect()
            writer.write(head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
            assert (await send(it, json.dumps(ask(count=1)).encode()))[0] == 200
            assert (await first)[0] == 200
            assert await settled(lambda: it.gateway.admission._bytes == 0)

    asyncio.run(run())


@pytest.mark.moderate
def test_bodies_that_do_not_come_take_no_room() -> None:
    async def run() -> None:
        async with stand("unified", settings=patient(max_bodies_mib=8)) as it, sockets(it.gateway.url) as connect:
            for _ in range(8):
                _, writer = await connect()
                writer.write(head(4 * MIB) + b"{")
            assert await settled(lambda: it.gateway.admission._bytes == 8)
            assert (await send(it, json.dumps(ask()).encode()))[0] == 200
            assert it.gateway.metrics._overloads.labels("bodies")._value.get() == 0

    asyncio.run(run())


@pytest.mark.moderate
def test_bodies_that_fill_the_room_together_come_to_an_end() -> None:
    """Who asks for more is refused, so that another one has room for the rest."""

    async def run() -> None:
        async with stand("unified", settings=patient(max_bodies_mib=4)) as it, sockets(it.gateway.url) as connect:
            admission = it.gateway.admission
            body = json.dumps(ask(x="x" * (2 * MIB - 1000))).encode()
            opened = [await connect() for _ in range(4)]
            for _, writer in opened:
                writer.write(head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
                writer.write(b"%x\r\n" % len(body) + body[:MIB])
            assert await settled(lambda: admission._bytes == 4 * MIB)
            said = []
            for reader, writer in opened:
                writer.write(body[MIB:] + b"\r\n0\r\n\r\n")
                said.append((await reader.readuntil(b"\r\n"))[:12])
                assert admission._bytes <= 4 * MIB
            assert said == [b"HTTP/1.1 503", b"HTTP/1.1 200", b"HTTP/1.1 200", b"HTTP/1.1 200"]
            assert await settled(lambda: admission._bytes == 0)

    asyncio.run(run())


ENCODERS = ("encoder_urls", "need_wait_for_mm_inputs", "num_items_assigned", "kv_router_hint")
"""Where SGLang's servers ask for images that others encode, and for KV cache."""


@pytest.mark.parametrize("name", sorted({*OURS, *ENCODERS} - {*BOOTSTRAP_FIELDS}))
def test_who_is_paired_with_whom_is_not_up_to_a_client(name: str) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed())
            assert (await it.post("/generate", ask(**{name: 3})))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert [worker.seen[0][name] for worker in it.workers] == [None, None]

    asyncio.run(run())


HONEST = b'{"input_ids":[' + b"1234," * (4 * MIB // 5 - 10) + b"1]}"
HOSTILE = {
    "lists": b'{"input_ids":[' + b"[1]," * (MIB - 10) + b"[1]]}",
    "dicts": b'{"x":[' + b"{}," * (4 * MIB // 3 - 10) + b"{}]}",
    "keys": b"{" + b",".join(b'"%x":0' % number for number in range(4 * MIB // 10)) + b"}",
    "deep": b'{"x":[' + (b"[" * 60 + b"]" * 60 + b",") * (4 * MIB // 121 - 10) + b"1]}",
    "texts": b'{"text":[' + b'"",' * (4 * MIB // 3 - 10) + b'""]}',
    "escapes": b'{"text":"' + b"\\\\" * (2 * MIB - 10) + b'"}',
    "digits": b'{"input_ids":[' + b"1," * (2 * MIB - 10) + b"1]}",
    "numbers": b'{"input_ids":[' + b"1" * 4_000 + b",1" * (2 * MIB - 2_100) + b"]}",
}


@pytest.mark.moderate
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_long_body_takes_much_longer_than_an_honest_one(kind: str) -> None:
    """While a body is read nobody else is served. The longest honest one has token ids only.

    Both take turns, and the best of each counts: other programs slow down a caller of theirs, by a half at times.
    """
    turns = [(took_s(HOSTILE[kind]), took_s(HONEST)) for _ in range(5)]
    hostile_s, honest_s = map(min, zip(*turns, strict=True))
    assert hostile_s < 2 * honest_s


def took_s(body: bytes) -> float:
    """The CPU time of reading a body."""
    began_s = time.process_time()
    with contextlib.suppress(GatewayError):
        parse("/generate", body, "rid")
    return time.process_time() - began_s


def nesting(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(nesting, inner), default=0)


TEXT = st.text(st.sampled_from('[]{}"\\ a\u00e9'), max_size=12)
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=20,
)


@pytest.mark.moderate
@given(JSON, st.integers(1, 6), st.booleans())
def test_nesting_is_counted_exactly(value: Any, most: int, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert (too_nested(body, most) is None) == (nesting(value) <= most)


FIELDS = st.sampled_from([*KNOWN, "x"])
PATHS = st.sampled_from(["/generate", "/v1/completions", "/v1/chat/completions"])
ODD = JSON | st.floats() | st.integers(-(10**30), 10**30) | st.just("\ud800")


@pytest.mark.moderate
@settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(PATHS, st.dictionaries(FIELDS, ODD, max_size=6)), min_size=20, max_size=40))
def test_no_body_is_a_fault_of_the_gateway(requests: list[tuple[str, dict[str, Any]]]) -> None:
    async def run() -> None:
        async with stand("dual", "dual", settings=patient(retries=0)) as it:
            for number, (path, body) in enumerate(requests):
                it.route(Fixed()).split = (None, 0, 3, 10_000)[number % 4]
                status, _ = await send(it, json.dumps(body).encode(), path, as_json=False)
                assert status not in (415, 500), (path, body)
            assert it.faults["gateway_error"] == 0
            assert await settled(it.idle)
            for worker in it.workers:
                worker.rooms.mismatches.clear()

    asyncio.run(run())


@pytest.mark.moderate
@given(
    PATHS, st.dictionaries(FIELDS, ODD, max_size=4).map(json.dumps).map(str.encode) | st.binary(max_size=40), st.data()
)
def test_any_bytes_are_a_request_or_an_error_of_the_client(path: str, body: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(body)))
    body = body[:at] + data.draw(st.binary(max_size=4)) + body[at + data.draw(st.integers(0, 3)) :]
    status = 0
    try:
        parse(path, body, "rid")
    except GatewayError as error:
        status = error.status
    assert status in (0, 400)
