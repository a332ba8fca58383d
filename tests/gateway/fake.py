"""SGLang servers without an engine: the protocol, a model that is a hash of all tokens so far, and faults on demand.

The next token depends on every token before it, so an answer is right only if each leg got the right context. A decode
leg begins only when the prefill leg of its room has the same tokens, and the other way round, as in SGLang. Each worker
remembers the sequences that it holds, and says how much of a prompt it found.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler

from pdplugins.gateway.engines.sglang.protocol import dumps

VOCABULARY = 1000
KV_TOKENS = 100_000
"""Tokens of KV cache of one worker."""
MOST_TOKENS = 10_000
"""Output tokens of one request; more are refused with 400."""
CONTEXT_TOKENS = 32_768
"""A longer prompt is refused with 400."""
BYTES = 2000
"""From here on a token is one byte of text, so that a character may take several."""
CONTEXT = 5
"""Tokens of the prompt with which SGLang detokenizes the first new ones."""


def next_token(ids: Sequence[int]) -> int:
    return zlib.crc32(b",".join(b"%d" % token for token in ids)) % VOCABULARY + 10


def answer_of(ids: Sequence[int], count: int) -> list[int]:
    """What any worker must answer to a prompt."""
    known = list(ids)
    for _ in range(count):
        known.append(next_token(known))
    return known[len(ids) :]


def text_of(ids: Sequence[int]) -> str:
    """As a tokenizer says it: the beginning of a character is one U+FFFD."""
    return b"".join(b"<%d>" % i if i < BYTES else bytes([i - BYTES]) for i in ids).decode(errors="replace")


def spelled(text: str) -> list[int]:
    """Return a text as tokens of one byte each."""
    return [BYTES + byte for byte in text.encode()]


def said_of(prompt: Sequence[int], ids: Sequence[int], *, ended: bool) -> str:
    """Return the text of `ids` as SGLang tells it: without a character that may go on, except at the end."""
    if all(token < BYTES for token in ids):
        return text_of(ids)
    known, surr = list(prompt[-CONTEXT:]), 0
    read, text = len(known), ""
    for done, token in enumerate(ids, 1):
        known.append(token)
        new = text_of(known[surr:])[len(text_of(known[surr:read])) :]
        if ended and done == len(ids):
            return text + new
        if new and not new.endswith("\ufffd"):
            text, surr, read = text + new, read, len(known)
        elif done == len(ids):
            text += new[: new.rfind(" ") + 1]  # whole words are told at once
    return text


def tokenize(text: str) -> list[int]:
    return [ord(char) for char in text]


class Rooms:
    """Where the legs of pairs meet. What was never met, or with other tokens, is an error of the gateway."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[list[int], str, asyncio.Future[None]]] = {}
        self.met = 0
        self.mismatches: list[str] = []

    async def meet(self, room: int, ids: list[int], side: str) -> None:
        if room in self._waiting:
            other_ids, other_side, future = self._waiting.pop(room)
            if other_ids != ids or other_side == side:
                self.mismatches.append(
                    f"room {room}: {side} with {len(ids)}, {other_side} with {len(other_ids)} tokens"
                )
            if not future.done():
                future.set_result(None)
            self.met += 1
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting[room] = (ids, side, future)
        try:
            await future
        finally:
            self._waiting.pop(room, None)

    @property
    def alone(self) -> int:
        return len(self._waiting)


@dataclass
class Faults:
    """What goes wrong, from now on."""

    status: int | None = None
    error_event: bool = False
    event_code: int = 500
    """Streams: the error event of OpenAI's endpoints; of ``/generate`` an end that says it was aborted."""
    reset: bool = False
    """The connection is reset before anything is answered."""
    die_after_tokens: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Of an answer with `status`."""
    body: bytes = b'{"error": {"message": "asked for"}}'
    """Of an answer with `status`."""
    hang: bool = False
    times: int = 1_000_000


@dataclass
class FakeWorker:
    """One server. `mode`: dual, prefill, decode or unified."""

    mode: str
    rooms: Rooms
    bootstrap_port: int
    token_s: float = 0.0
    incremental: bool = False
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self.held: list[list[int]] = []
        self.seen: list[dict[str, Any]] = []
        self.served: Counter[str] = Counter()
        self.cached: list[int] = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.used_tokens = 0
        """Prompt tokens of the requests that run."""
        self.loads: dict[str, int] = {}
        self.stamps: Iterator[float] | None = itertools.count(1.0)
        """Of its load reports: an engine that stands still makes no new ones."""
        self.polls = 0
        self.padding = ""
        """Is added to every event and answer of ``/generate``."""
        self.speech: list[int] = []
        """Tokens that it says in place of the hash: what of them the prompt does not end with yet."""
        self.says: dict[str, bytes] = {}
        """What it answers by path, instead of what is so; to requests only the next `faults.times` times."""
        self.said_type = "application/json"
        self.said_types: dict[str, str] = {}
        """By path, where not `said_type`."""
        self.said_status: dict[str, int] = {}
        """By path, where not 200."""
        self.piece_bytes = 0
        """Streams: bytes of one write, where not a whole event."""
        self.ends_after_s = 0.0
        """Streams: how long after the last event the body ends."""
        self.endless: bytes | None = None
        """Streams: what it says for ever."""
        self.key: str | None = None
        self.admin_key: str | None = None
        """What aborts must carry, where there is one, in place of `key`."""
        self.strangers: list[str] = []
        """Paths of the requests without the right key."""
        self.given: list[str | None] = []
        """The authorization of each request."""
        self.tls: ssl.SSLContext | None = None

    async def start(self) -> FakeWorker:
        app = web.Application(client_max_size=2**28, middlewares=[self._checked])
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/v1/models", self._models)
        for path in ("/model_info", "/get_model_info"):
            app.router.add_get(path, self._model)
        for path in ("/v1/tokenize", "/tokenize"):
            app.router.add_post(path, self._tokenize)
        for path in ("/v1/detokenize", "/detokenize"):
            app.router.add_post(path, self._detokenize)
        app.router.add_post("/abort_request", self._abort)
        for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self._serve)
        self.runner = web.AppRunner(  # idle connections end as SGLang's do
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1, keepalive_timeout=5
        )
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", getattr(self, "port", 0), ssl_context=self.tls).start()
        self.port = self.runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        await self.runner.cleanup()

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check keys as SGLang does."""
        key = (self.admin_key or self.key) if request.path == "/abort_request" else self.key
        self.given.append(request.headers.get("authorization"))
        if key is not None and self.given[-1] != f"Bearer {key}":
            self.strangers.append(request.path)
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    async def _info(self, request: web.Request) -> web.Response:
        if (odd := self.says.get(request.path)) is not None:
            return web.Response(body=odd, content_type="application/json")
        mode = {"dual": "decode", "unified": "null"}.get(self.mode, self.mode)
        info = {"disaggregation_mode": mode, "disaggregation_bootstrap_port": self.bootstrap_port}
        info |= {"incremental_streaming_output": self.incremental, "tp_size": 2}
        return web.json_response(info | {"api_key": self.key, "model_path": "/models/secret/tiny", "version": "0.5.23"})

    async def _loads(self, request: web.Request) -> web.Response:
        self.polls += 1
        if self.faults.hang:
            await asyncio.sleep(60)
        if (odd := self.says.get(request.path)) is not None:
            return web.Response(body=odd, content_type="application/json")
        core: dict[str, Any] = {
            "num_running_reqs": len(self.running),
            "num_waiting_reqs": 0,
            "num_waiting_uncached_tokens": 0,
        }
        stamp = None if self.stamps is None else next(self.stamps)
        core |= {"max_total_num_tokens": KV_TOKENS, "num_used_tokens": self.used_tokens}
        return web.json_response({"loads": [core | {"timestamp": stamp} | self.loads]})

    async def _models(self, request: web.Request) -> web.Response:
        if (odd := self.says.get(request.path)) is not None:
            status = self.said_status.get(request.path, 200)
            return web.Response(body=odd, status=status, content_type="application/json")
        return web.json_response({"object": "list", "data": [{"id": "fake"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if (odd := self.says.get(request.path)) is not None:
            return web.Response(body=odd, content_type="application/json")
        try:
            body = await request.json()
            text = body["prompt"] if "prompt" in body else "".join(m["content"] for m in body["messages"])
            return web.json_response({"tokens": tokenize(text), "count": len(text)})
        except (TypeError, ValueError, KeyError):
            return not_a_request()

    async def _detokenize(self, request: web.Request) -> web.Response:
        try:
            if (odd := self.says.get(request.path)) is not None:
                return web.Response(body=odd, content_type="application/json")
            tokens = (await request.json())["tokens"]
            several = bool(tokens) and isinstance(tokens[0], list)
            texts = [text_of([int(token) for token in ids]) for ids in (tokens if several else [tokens])]
            return web.json_response({"text": texts if several else texts[0]})
        except (TypeError, ValueError, KeyError, OverflowError):
            return not_a_request()

    async def _model(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "/models/secret/tiny", "is_generation": True})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.json_response({})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.seen.append(body)
        rid = body["rid"]
        prompt = body.get("input_ids") or body.get("text") or body.get("prompt")
        if isinstance(prompt, str | list) and len(prompt) > CONTEXT_TOKENS:  # at once: to read it takes seconds
            return too_long()
        try:
            ids, count = prompt_of(request.path, body)
            tokens = len(ids)
            next_token(ids)
            good = isinstance(count, int) and 0 < count < MOST_TOKENS
        except (TypeError, ValueError, KeyError, AttributeError):
            good = False
        if not good:
            return not_a_request()
        self.running.add(rid)
        self.used_tokens += tokens
        try:
            if tokens > CONTEXT_TOKENS:
                return too_long()
            return await self._answer(request, body)
        finally:
            self.running.discard(rid)
            self.used_tokens -= tokens

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        faults = self.faults
        faulty = faults.times > 0 and (
            faults.status or faults.error_event or faults.hang or faults.reset or faults.die_after_tokens == 0
        )
        if faulty:
            faults.times -= 1
        if faulty and faults.reset:
            reset(request)
        if faulty and faults.hang:
            await asyncio.sleep(60)
        if faulty and faults.status:
            return web.Response(
                body=faults.body, status=faults.status, headers=faults.headers, content_type="application/json"
            )
        if (odd := self.says.get(request.path)) is not None and faults.times > 0:
            faults.times -= 1
            status, kind = self.said_status.get(request.path, 200), self.said_types.get(request.path, self.said_type)
            return web.Response(body=odd, status=status, content_type=kind)
        ids, count = prompt_of(request.path, body)
        role = self._role(body)
        if role is None:
            return web.json_response({"error": {"message": f"{self.mode} cannot do that"}}, status=400)
        self.served[role] += 1
        samples = body.get("n") or (body.get("sampling_params") or {}).get("n")
        if role != "local" and isinstance(samples, int) and samples > 1:
            await asyncio.sleep(60)  # both sides of SGLang make all samples in one room
        if role != "local":
            room = body["bootstrap_room"]
            await self.rooms.meet(room[0] if isinstance(room, list) else room, ids, role)
        cached = max((common(held, ids) for held in self.held), default=0)
        self.cached.append(cached)
        self.held.append(ids)
        count = 1 if role == "prefill" else count
        answer = self._answer_of(ids, count)
        if not body.get("stream"):
            await asyncio.sleep(self.token_s * count)
            self.held.append(ids + answer)
            said = event(request.path, body, ids, answer, count, cached, role)
            return web.json_response(said | ({"padding": self.padding * count} if self.padding else {}))
        return await self._stream(request, body, ids, answer, cached, role, bool(faulty))

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        ids: list[int],
        answer: list[int],
        cached: int,
        role: str,
        bad: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        faults = self.faults
        while self.endless is not None:
            await response.write(self.endless)
        if bad and faults.error_event:
            error: dict[str, Any] = {"error": {"message": "KV transfer failed", "code": faults.event_code}}
            if request.path == "/generate":
                error = event(request.path, body, ids, [], len(answer), cached, role)
                reason = {
                    "type": "abort",
                    "message": "KV transfer failed",
                    "status_code": faults.event_code,
                    "err_type": None,
                }
                error["meta_info"]["finish_reason"] = reason
            await response.write(b"data: " + dumps(error) + b"\n\ndata: [DONE]\n\n")
            return response
        for done in range(1, len(answer) + 1):
            if faults.die_after_tokens is not None and done > faults.die_after_tokens and faults.times > 0:
                faults.times -= 1
                assert request.transport is not None
                request.transport.abort()
                raise ConnectionResetError
            await asyncio.sleep(self.token_s)
            said = event(request.path, body, ids, answer[:done], len(answer), cached, role)
            if self.incremental and request.path == "/generate":
                before = said_of(ids, answer[: done - 1], ended=False)
                said |= {"output_ids": answer[done - 1 : done], "text": said["text"][len(before) :]}
            if self.padding:
                said["padding"] = self.padding
            data = b"data: " + dumps(said) + b"\n\n"
            size = self.piece_bytes or len(data)
            for begin in range(0, len(data), size):
                await response.write(data[begin : begin + size])
                if self.piece_bytes:
                    await asyncio.sleep(0)
        self.held.append(ids + answer)
        await response.write(b"data: [DONE]\n\n")
        await asyncio.sleep(self.ends_after_s)
        return response

    def _answer_of(self, ids: list[int], count: int) -> list[int]:
        if not self.speech:
            return answer_of(ids, count)
        done = next(n for n in range(len(self.speech), -1, -1) if ids[len(ids) - n :] == self.speech[:n])
        return self.speech[done : done + count]

    def _role(self, body: dict[str, Any]) -> str | None:
        port = body.get("bootstrap_port")
        port = port[0] if isinstance(port, list) else port
        if port is None:
            return "local" if self.mode in ("dual", "unified") else None
        role = "prefill" if port == self.bootstrap_port else "decode"
        return role if self.mode in ("dual", role) else None


def too_long() -> web.Response:
    return web.json_response({"error": {"message": "longer than the context"}}, status=400)


def not_a_request() -> web.Response:
    return web.json_response({"error": {"message": "not a request"}}, status=400)


def reset(request: web.Request) -> NoReturn:
    """Send a TCP reset."""
    assert request.transport is not None
    linger = struct.pack("ii", 1, 0)
    request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    request.transport.abort()
    raise ConnectionResetError


def prompt_of(path: str, body: dict[str, Any]) -> tuple[list[int], int]:
    """Token ids of the prompt (of the first one of a batch), and the number of tokens to make."""
    if path == "/generate":
        prompt = body.get("input_ids") or body.get("text")
        count = body.get("sampling_params", {}).get("max_new_tokens", 128)
    elif path == "/v1/completions":
        prompt, count = body["prompt"], body.get("max_tokens", 16)
    else:
        prompt = "".join(message["content"] for message in body["messages"])
        count = body.get("max_completion_tokens") or body.get("max_tokens") or 8
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return (tokenize(prompt) if isinstance(prompt, str) else list(prompt)), count


def event(
    path: str, body: dict[str, Any], ids: list[int], sofar: list[int], count: int, cached: int, role: str
) -> dict[str, Any]:
    ended = len(sofar) == count
    usage = {"prompt_tokens": len(ids), "completion_tokens": len(sofar), "cached_tokens": cached}
    if path == "/generate":
        reason = {"type": "length", "length": count} if ended else None
        weights = [{"version": "w1", "start": 0, "end": len(sofar)}]
        meta: dict[str, Any] = {"id": body["rid"], "finish_reason": reason, **usage, "weight_versions": weights}
        if body.get("return_logprob"):
            of_prompt = [[-1.0, token, None] for token in ids] if role == "prefill" else []
            meta |= {"input_token_logprobs": of_prompt, "input_top_logprobs": [[entry] for entry in of_prompt]}
        return {"text": said_of(ids, sofar, ended=ended), "output_ids": list(sofar), "meta_info": meta}
    reason = "length" if ended else None
    shown = sofar[-1:] if body.get("stream") else sofar
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    if path == "/v1/completions":
        choice["text"] = text_of(shown)
    else:
        choice["delta" if body.get("stream") else "message"] = {"role": "assistant", "content": text_of(shown)}
    return {"id": body["rid"], "choices": [choice], **({"usage": usage} if ended else {})}


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with; the last one of a prompt is always computed."""
    count = 0
    for a, b in zip(one, other[:-1], strict=False):
        if a != b:
            break
        count += 1
    return count


async def settled(condition: Any, seconds: float = 60.0) -> bool:
    """Wait until `condition()` holds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)
    return bool(condition())
