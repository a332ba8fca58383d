"""Replays a trace against an OpenAI endpoint and writes one JSON line per finished request.

The client is a separate process, so that work in the launcher's event loop does not distort its measurements. Requests
leave at the times of the trace, whether or not earlier ones have come back (open loop). Every time counts from the
moment that the trace asked for, so a client that lags shows up as latency and never flatters the server. Only the later
rounds of a session wait. They wait for the answer before them and then for their gap, and count from there.

Prompts are token ids, so a prompt has exactly as many tokens as the trace says. Where the trace has prefix blocks,
equal blocks have equal ids; elsewhere ids are unique. A later round repeats the ids of its history. The stream does not
give the ids of answers, so other ids replace them. A prefix cache then finds the earlier prompt but not its answer. The
options min_tokens, max_tokens and ignore_eos fix the output lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, TextIO

import aiohttp
import numpy as np
import uvloop

from pdplugins.errors import PdpluginsError, shown
from pdplugins.workloads import jsonl, traces, transform
from pdplugins.workloads.trace import TraceRequest

_TOKEN_IDS = (300, 500)
"""Range of the ids in a prompt. They are plain tokens in every vocabulary, however small."""
_SILENCE_S = 600.0
"""A stream without data for this long has failed."""
_EVENT_END = b"\n\n"
MOST_EVENT = 2**20
"""Bytes of the largest event of a stream. One of a token has a few hundred."""


def prompt(request: TraceRequest, index: int, seed: int) -> list[int]:
    """Return the token ids of the prompt of request number `index` in a trace."""
    if not request.blocks:
        return _tokens(request.isl_tokens, seed, index, 0)
    size = jsonl.BLOCK_TOKENS
    ids = [token for block in request.blocks for token in _tokens(size, seed, block, 1)]
    missing = request.isl_tokens - len(ids)
    return ids[: request.isl_tokens] + (_tokens(missing, seed, index, 0) if missing > 0 else [])


def _tokens(count: int, *seeds: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seeds).integers(*_TOKEN_IDS, count).tolist()
    return ids


def body(ids: list[int], osl_tokens: int, model: str) -> bytes:
    """Return the body of the completion request for a prompt of these token ids."""
    fields = {
        "model": model,
        "prompt": ids,
        "max_tokens": osl_tokens,
        "min_tokens": osl_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "nvext": {"extra_fields": ["worker_id"]},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


class Answer:
    """The answer to one streamed request. It is fed with bytes as they arrive, and holds token times and counts."""

    def __init__(self) -> None:
        self.token_times_s: list[float] = []
        self.completion_tokens: int | None = None
        self.finish_reason: object = None
        self.workers: dict[str, int] = {}
        self.done = False
        self.error: str | None = None
        self._rest = bytearray()

    def feed(self, data: bytes, now_s: float) -> None:
        """Take in the next bytes of the stream, which arrived at `now_s`. Raises ValueError for what is no such stream.

        Bytes before the last one have been searched, so many small pieces of one event are searched once.
        """
        searched = max(len(self._rest) - 1, 0)
        self._rest += data
        if self._rest.find(_EVENT_END, searched) >= 0:
            *events, rest = bytes(self._rest).split(_EVENT_END)
            self._rest = bytearray(rest)
            for event in events:
                self._checked(event, now_s)
        if len(self._rest) > MOST_EVENT:
            raise ValueError(f"an event of the stream has more than {MOST_EVENT} bytes")

    def _checked(self, event: bytes, now_s: float) -> None:
        try:
            self._take(event, now_s)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise ValueError(f"an event of the stream is none of a completion: {shown(event[:200])}") from None

    def _take(self, event: bytes, now_s: float) -> None:
        # Parsing the JSON of every token would cost more than all else here, so only the first and unusual ones are.
        if event.startswith(b"data: {") and b'"text":"' in event and b'"finish_reason":"' not in event:
            if not self.token_times_s:
                self.workers = (_data(event).get("nvext") or {}).get("worker_id") or {}
            self.token_times_s.append(now_s)
        elif event == b"data: [DONE]":
            self.done = True
        elif event.startswith(b"data: "):
            self._last(_data(event), now_s)
        elif event.startswith(b"event: error"):
            self.error = event.decode(errors="replace")

    def _last(self, chunk: dict[str, Any], now_s: float) -> None:
        choices = chunk.get("choices", ())
        if any(choice.get("text") for choice in choices):
            self.token_times_s.append(now_s)
        self.finish_reason = next(filter(None, (choice.get("finish_reason") for choice in choices)), self.finish_reason)
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
            if type(tokens) not in {int, NoneType}:
                raise ValueError
            self.completion_tokens = tokens
        if "error" in chunk:
            self.error = str(chunk["error"])


def _data(event: bytes) -> dict[str, Any]:
    chunk = json.loads(event[len(b"data: ") :])
    return chunk if isinstance(chunk, dict) else {}


class Client:
    """Sends the requests of one trace, and writes the outcome of each."""

    def __init__(self, url: str, model: str, requests: list[TraceRequest], seed: int, out: TextIO) -> None:
        self._url = f"{url}/v1/completions"
        self._model = model
        self._requests = requests
        self._seed = seed
        self._out = out
        self._start_s = 0.0

    async def run(self) -> None:
        """Send every request at its time and return when all have finished."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._start_s = time.perf_counter()
            self._write({"started": time.time()})
            async with asyncio.TaskGroup() as group:
                index = 0
                for request in self._requests:
                    ids = prompt(request, index, self._seed)
                    data = body(ids, request.osl_tokens, self._model)
                    await asyncio.sleep(self._start_s + request.arrival_s - time.perf_counter())
                    group.create_task(self._rounds(session, index, request, ids, data))
                    index += 1 + len(request.rounds)

    async def _rounds(
        self, session: aiohttp.ClientSession, index: int, first: TraceRequest, ids: list[int], data: bytes
    ) -> None:
        """Send a request and the later rounds of its session. If a round fails, later ones fail too, without a send."""
        error = await self._one(session, index, first, data)
        osl_tokens = first.osl_tokens
        for number, later in enumerate(first.rounds, start=index + 1):
            so_far = ids + _tokens(osl_tokens, self._seed, number, 2)
            ids = so_far[: later.history(len(so_far))] + _tokens(later.new_tokens, self._seed, number, 0)
            osl_tokens = later.osl_tokens
            arrival_s = time.perf_counter() - self._start_s + (0.0 if error else later.gap_s)
            request = TraceRequest(arrival_s, len(ids), osl_tokens)
            if error:
                lost = Answer()
                lost.error = "not sent: an earlier round of its session failed"
                self._write(self._record(number, request, lost))
                continue
            data = body(ids, osl_tokens, self._model)
            await asyncio.sleep(self._start_s + arrival_s - time.perf_counter())
            error = await self._one(session, number, request, data)

    async def _one(self, session: aiohttp.ClientSession, index: int, request: TraceRequest, data: bytes) -> str | None:
        """Send one request, write its outcome, and return its error."""
        answer = Answer()
        try:
            await self._stream(session, data, answer)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        record = self._record(index, request, answer)
        self._write(record)
        return None if record["error"] is None else str(record["error"])

    async def _stream(self, session: aiohttp.ClientSession, data: bytes, answer: Answer) -> None:
        headers = {"Content-Type": "application/json"}
        async with session.post(self._url, data=data, headers=headers) as response:
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                return
            async for piece in response.content.iter_any():
                answer.feed(piece, time.perf_counter() - self._start_s)

    def _record(self, index: int, request: TraceRequest, answer: Answer) -> dict[str, Any]:
        error = answer.error or self._shortfall(request, answer)
        return {
            "request": index,
            "arrival_s": round(request.arrival_s, 4),
            "finished_s": round(time.perf_counter() - self._start_s, 4),
            "isl_tokens": request.isl_tokens,
            "osl_tokens": answer.completion_tokens or len(answer.token_times_s),
            "token_times_s": [round(at_s, 4) for at_s in answer.token_times_s],
            "error": error,
            "workers": answer.workers,
        }

    def _shortfall(self, request: TraceRequest, answer: Answer) -> str | None:
        if not answer.done:
            return f"the stream ended after {len(answer.token_times_s)} of {request.osl_tokens} tokens"
        if answer.completion_tokens != request.osl_tokens:
            return f"{answer.completion_tokens} tokens came instead of {request.osl_tokens}"
        return None

    def _write(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._out.flush()


def load(path: Path, duration_s: float | None, speed: float) -> list[TraceRequest]:
    """Read a trace, clip it to its first `duration_s` seconds and replay it `speed` times as fast."""
    requests = traces.read(path)
    return transform.scale(transform.clip(requests, duration_s) if duration_s else requests, speed)


def _arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "--url", {"required": True, "help": "root of the OpenAI endpoint, http://host:port"}
    yield "--model", {"required": True, "help": "name of the model"}
    yield "--trace", {"required": True, "type": Path, "help": "trace file"}
    yield "--duration", {"type": float, "help": "seconds of trace time to replay (all of it)"}
    yield "--speed", {"type": float, "default": 1.0, "help": "how many times as fast (1)"}
    yield "--seed", {"type": int, "default": 0, "help": "seed of the prompts (0)"}
    yield "--out", {"required": True, "type": Path, "help": "file for one JSON line per request"}
    yield "--hold", {"action": "store_true", "help": "start sending when a line comes on standard input"}


def main(arguments: list[str] | None = None) -> int:
    """Run the client; the exit code is 2 when the trace cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m pdplugins.workloads.client", description=__doc__)
    for name, how in _arguments():
        parser.add_argument(name, **how)
    options = parser.parse_args(arguments)
    try:
        requests = load(options.trace, options.duration, options.speed)
    except PdpluginsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 2
    with options.out.open("w", encoding="utf-8") as out:
        lasts_s = max((request.arrival_s for request in requests), default=0.0)
        out.write(json.dumps({"requests": transform.total(requests), "lasts_s": lasts_s}) + "\n")
        out.flush()
        # End of file instead of a line means that the launcher has died.
        if options.hold and not sys.stdin.readline():
            return 1
        uvloop.run(Client(options.url, options.model, requests, options.seed, out).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
