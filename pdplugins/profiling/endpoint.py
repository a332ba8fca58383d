"""Measures a live OpenAI endpoint: TTFT of single prompts, and ITL of batches that decode together.

For prefill, prompts run one at a time, and the median TTFT of each length counts. Lengths and batches take turns: a
slow spell of the endpoint then spoils one measurement of each, not all of one.

For decode, `concurrency` streams start at once. Each is long enough that all of them decode together for a while. This
window begins when the last stream gets its first token, and ends when the first stream gets its last one. The gaps
between tokens in the window are steps of a batch of `concurrency`. Contexts grow while streams run. So prompts are
shorter than the wanted context, such that the middle of the window has that context.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pdplugins.errors import PdpluginsError, one_line
from pdplugins.perf.table import Curve, Surface
from pdplugins.workloads import client
from pdplugins.workloads.trace import TraceRequest

WINDOW_TOKENS = 32
"""Fewest tokens of each stream in the measured window."""
SETTLE_TOKENS = 8
"""Tokens of each stream that are skipped before the window, because steps are uneven after a stream joins."""
MOST_SPREADS = 6
"""How often streams of a batch are made longer until all of them decode together. Mostly once or twice is enough."""
STREAM_S, SILENCE_S = 1800.0, 600.0
"""The longest stream, and the longest time without data in it."""
MOST_EVENTS_BYTES, MOST_TOKEN_BYTES = 2**20, 2**14
"""Bytes of the longest stream: these, and as many again for each token."""
MOST_REASON = 2000
"""Bytes that are read of an answer that refuses."""
KEPT_S = 2.0
"""How long an idle connection is kept. SGLang closes one after 5 s, and may do so just as a request is sent."""
FAR_SHARE = 0.1
"""If the measured context misses the wanted one by more than this share, the profile has a note on it."""


class EndpointError(PdpluginsError):
    """The endpoint did not answer like an OpenAI endpoint."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The points to measure, in tokens and in requests."""

    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A prefill and a decode table in the layout of a profile file."""

    prefill: dict[str, Any]
    decode: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A batch that decoded together."""

    itl_s: float
    context_tokens: float
    """Mean context in the window."""


@dataclass(slots=True)
class Point:
    """A batch size, and a mean context, that are measured several times."""

    batch: int
    context: int
    spread_tokens: int = 0
    """Tokens by which the streams are longer than their window, so that all of them decode together in it."""
    found: list[Cell] = field(default_factory=list)

    async def measure(self, endpoint: Endpoint, prefill: Curve) -> None:
        """Measure it once. The first time takes more runs: how long streams must be depends on the time of a step."""
        for _ in range(MOST_SPREADS):
            osl = SETTLE_TOKENS + WINDOW_TOKENS + self.spread_tokens
            isl = max(self.context - self.spread_tokens // 2 - SETTLE_TOKENS - WINDOW_TOKENS // 2, 1)
            times = await endpoint.streams(self.batch, isl, osl)
            if (cell := _window(times, isl)) is not None:
                self.found.append(cell)
                return
            step_s = statistics.median((t[-1] - t[0]) / (len(t) - 1) for t in times)
            joined_s = max(t[0] for t in times) - min(t[0] for t in times)
            needed = int(1.25 * max(joined_s, (self.batch - 1) * prefill(isl)) / step_s)
            self.spread_tokens = max(needed, 2 * self.spread_tokens, WINDOW_TOKENS)
        raise EndpointError(
            f"{endpoint.url}: it does not decode {self.batch} requests of {self.context} tokens at once: the last one "
            "began when the first had ended; give a smaller --concurrency or --contexts"
        )

    def median(self) -> Cell:
        """Return the median time of what was found, at the mean of the contexts."""
        itl_s = statistics.median(one.itl_s for one in self.found)
        return Cell(itl_s, statistics.fmean(one.context_tokens for one in self.found))


class Endpoint:
    """Sends streams, each with a new random prompt."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, seed: int) -> None:
        self._session = session
        self.url = url
        self._model = model
        self._seed = seed
        self._index = itertools.count()

    async def stream(self, isl_tokens: int, osl_tokens: int) -> tuple[float, list[float]]:
        """Run one request to its end. Return when it was sent, and when each token came."""
        request = TraceRequest(arrival_s=0.0, isl_tokens=isl_tokens, osl_tokens=osl_tokens)
        data = client.body(client.prompt(request, next(self._index), self._seed), osl_tokens, self._model)
        answer, sent_s = client.Answer(), time.perf_counter()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        url = f"{self.url}/v1/completions"
        try:
            async with self._session.post(url, data=data, headers=headers, allow_redirects=False) as response:
                await self._check(response, isl_tokens)
                await _read(response, answer, osl_tokens)
        except TimeoutError:
            raise EndpointError(f"{self.url}: no whole answer in time; is the endpoint up, and not busy?") from None
        except aiohttp.ClientError as error:
            raise EndpointError(f"{self.url}: {one_line(error) or 'no answer'}; is the endpoint up?") from None
        except ValueError as error:
            raise EndpointError(f"{self.url}: {one_line(error)}; is it an OpenAI endpoint?") from None
        if answer.error or not answer.token_times_s:
            raise EndpointError(f"{self.url}: {one_line(answer.error or 'the stream ended without tokens')}")
        if not answer.done:
            raise EndpointError(f"{self.url}: a stream ended before it was whole; does a proxy cut it?")
        tokens = answer.completion_tokens
        if tokens is None:  # it tells no usage, and an event may bring several tokens
            tokens = osl_tokens if answer.finish_reason in (None, "length") else len(answer.token_times_s)
        if tokens < osl_tokens:
            raise EndpointError(
                f"{self.url}: an answer of {tokens} tokens where {osl_tokens} were asked for; step times need whole "
                "ones, so it must take ignore_eos or min_tokens, and allow as many"
            )
        times_s = answer.token_times_s
        if osl_tokens > 2 and times_s[0] == times_s[-1]:
            raise EndpointError(f"{self.url}: all tokens of a stream came at once; does a proxy hold them back?")
        return sent_s, _each_token(times_s, osl_tokens)

    async def streams(self, count: int, isl_tokens: int, osl_tokens: int) -> list[list[float]]:
        """Run so many requests at once. Return when each token of each one came."""
        failed: list[EndpointError] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.stream(isl_tokens, osl_tokens)) for _ in range(count)]
        except* EndpointError as errors:
            failed = [error for error in errors.exceptions if isinstance(error, EndpointError)]
        if failed:
            raise failed[0]
        return [task.result()[1] for task in tasks]

    async def _check(self, response: aiohttp.ClientResponse, isl_tokens: int) -> None:
        """Raise EndpointError for an answer that is no plain stream. Of one that says why, only the start is read."""
        if 300 <= response.status < 400:
            where = one_line(response.headers.get("Location", "somewhere"), 100)
            raise EndpointError(f"{self.url}: it redirects to {where}; give that URL, if you trust it")
        if response.status != 200:
            reason = one_line((await response.content.read(MOST_REASON)).decode(errors="replace"), 200)
            raise EndpointError(f"{self.url}: HTTP {response.status} for {isl_tokens} tokens: {reason}")
        if (coding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise EndpointError(f"{self.url}: it sends {one_line(coding, 40)}, not plain text; turn compression off")


async def _read(response: aiohttp.ClientResponse, answer: client.Answer, tokens: int) -> None:
    """Feed the stream to `answer`. Raises ValueError where it is too long for so many tokens."""
    left = MOST_EVENTS_BYTES + tokens * MOST_TOKEN_BYTES
    async for piece in response.content.iter_any():
        if (left := left - len(piece)) < 0:
            raise ValueError(f"the stream is too long for {tokens} tokens")
        answer.feed(piece, time.perf_counter())


def _each_token(times_s: list[float], tokens: int) -> list[float]:
    """Return when each of `tokens` tokens came, from the times of the events that brought them.

    An engine that is faster than its HTTP server sends several tokens in one event (SGLang). The event does not say how
    many, so they are spread evenly.
    """
    if len(times_s) >= tokens:
        return times_s
    events = np.arange(len(times_s))
    spread: list[float] = np.interp(np.linspace(0, events[-1], tokens), events, times_s).tolist()
    return spread


async def measure(url: str, model: str, grid: Grid, repeats: int, seed: int) -> Measured:
    """Measure all points of `grid`. Raises EndpointError when the endpoint cannot serve them."""
    timeout = aiohttp.ClientTimeout(total=STREAM_S, sock_read=SILENCE_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    plain: dict[str, Any] = {"cookie_jar": aiohttp.DummyCookieJar(), "auto_decompress": False}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, **plain) as session:
        endpoint = Endpoint(session, url, model, seed)
        points = [Point(batch, context) for batch, context in itertools.product(grid.batches, grid.contexts)]
        ttfts_s: list[list[float]] = [[] for _ in grid.prompts]
        with Progress(*columns, transient=True) as bar:
            task = bar.add_task("warming up", total=1 + repeats * (len(grid.prompts) + len(points)))
            await endpoint.stream(grid.prompts[0], 2 * WINDOW_TOKENS)
            for _ in range(repeats):
                for tokens, found in zip(grid.prompts, ttfts_s, strict=True):
                    bar.update(task, advance=1, description=f"prompts of {tokens} tokens")
                    found.append(await _ttft(endpoint, tokens))
                prefill = Curve(grid.prompts, [*map(statistics.median, ttfts_s)])
                for point in points:
                    bar.update(task, advance=1, description=f"batches of {point.batch} at context {point.context}")
                    await point.measure(endpoint, prefill)
    return _tables(grid, [*map(statistics.median, ttfts_s)], [point.median() for point in points], repeats)


def without_handoff(found: Measured, transfer_s: Callable[[float], float]) -> Measured:
    """Correct `found` for an endpoint whose first token comes from the decode worker, after the KV transfer.

    Its TTFT includes a transfer and one decode step, which are subtracted. Raises EndpointError when nothing is left.
    """
    decode = found.decode
    step_ms = Surface(decode["batch"], decode["context_tokens"], decode["raw_ms"])
    left_ms = [
        round(ms - step_ms(1, tokens) - 1e3 * transfer_s(tokens), 3)
        for tokens, ms in zip(found.prefill["tokens"], found.prefill["raw_ms"], strict=True)
    ]
    if min(left_ms) <= 0:
        raise EndpointError("a TTFT is shorter than the KV transfer and a decode step; is the endpoint disaggregated?")
    note = "prefill: TTFT less the KV transfer, at the rate given, and one decode step"
    return replace(found, prefill=found.prefill | {"raw_ms": left_ms}, notes=(*found.notes, note))


async def _ttft(endpoint: Endpoint, tokens: int) -> float:
    """Return the TTFT of a prompt of `tokens` tokens."""
    sent_s, times_s = await endpoint.stream(tokens, 2)
    return times_s[0] - sent_s


def _window(times: list[list[float]], isl_tokens: int) -> Cell | None:
    """Return the measurement of the window in which all streams decoded, or None when it was too short."""
    start_s, end_s = max(t[min(SETTLE_TOKENS, len(t) - 1)] for t in times), min(t[-1] for t in times)
    gaps, contexts = [], []
    for stream in times:
        inside = [index for index, at_s in enumerate(stream) if start_s <= at_s <= end_s]
        if len(inside) < WINDOW_TOKENS // 2:
            return None
        first, last = inside[0], inside[-1]
        gaps.append((stream[last] - stream[first]) / (last - first))
        contexts.append(isl_tokens + (first + last) / 2)
    return Cell(statistics.fmean(gaps), statistics.fmean(contexts))


def _tables(grid: Grid, ttft_s: list[float], cells: list[Cell], repeats: int) -> Measured:
    width = len(grid.contexts)
    rows = [[round(1e3 * cell.itl_s, 3) for cell in cells[i : i + width]] for i in range(0, len(cells), width)]
    wanted = [context for _, context in itertools.product(grid.batches, grid.contexts)]
    off = max(abs(cell.context_tokens / context - 1) for cell, context in zip(cells, wanted, strict=True))
    notes = [f"prefill: median TTFT of {repeats} prompts of each length, one at a time, as the client feels it"]
    notes.append(
        f"decode: mean time between tokens while all streams of a batch decoded together, median of {repeats} batches"
    )
    if off > FAR_SHARE:
        notes.append(f"the mean context of a batch missed the table's by up to {off:.0%}")
    return Measured(
        {"tokens": list(grid.prompts), "raw_ms": [round(1e3 * ttft, 3) for ttft in ttft_s]},
        {"batch": list(grid.batches), "context_tokens": list(grid.contexts), "raw_ms": rows},
        tuple(notes),
    )
