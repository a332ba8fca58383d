"""What is measured of servers that nobody else uses, so that the simulator can foretell what they do with traffic."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fusion_live import SHAPE

from benchmarks.rig import load
from benchmarks.rig.load import Ask, Heard
from benchmarks.rig.speed import Speed

TOKENS = 131_072
"""KV cache of a server: more than a run needs. Once it is full, the tokens of a prompt lie scattered in it, and NIXL
sends each of them by itself, which takes as long as some of the prefill."""
PROMPTS, BATCHES, CONTEXTS = (1, 64, 128, 256, 512, 1024, 1536), (1, 2, 4, 8, 16), (64, 512, 1024)
"""What the profile is measured at, in tokens and requests."""
ENDS = (1, 64, 1536)
"""Prompts whose TTFT is taken through the gateway: the first for what a request costs, the others for a transfer."""
REPEATS, TURNS = 5, 3
"""Of each such prompt. The layouts take turns, because a machine is not always as fast."""
SOME_TRANSFER = 1e-3, 1e-7
"""Latency and time per token, where none is measured or needed."""
PROMPT, SHORT, LONG, PACE_S = Ask(0.0, 512, 2), Ask(0.0, 128, 20), Ask(0.0, 128, 100), 30.0
"""For so long such requests are sent in turns, to see how fast a server is. A neighbour's work comes in bursts."""
CHUNK = 256
"""Tokens of a step: `servers.FLAGS`."""
DICE = random.Random(0)  # noqa: S311 - prompts, not secrets


def _body(ask: Ask) -> bytes:
    """Return a request like those of the profile."""
    return load.body(ask, DICE, sampled=True)


async def ttfts_s(url: str, tokens: int) -> list[float]:
    """Return the TTFT of prompts of so many tokens, one at a time."""
    ask, found = Ask(0.0, tokens, 2), []
    async with load.session() as client:
        for _ in range(REPEATS):
            heard = await load.send(client, url, ask, _body(ask))
            assert heard.ttft_s is not None, "a request failed"
            found.append(heard.ttft_s)
    return found


class Slower(NamedTuple):
    """By how much a server is slower."""

    prefill: float = 1.0
    fresh: float = 1.0
    """In the first decode steps after a pause."""
    decode: float = 1.0
    """In later ones."""


AS_FAST = Slower()


@dataclass(frozen=True)
class Pace:
    """How fast a server is."""

    ttft_s: float
    fresh_s: float
    """The TPOT of `SHORT`, which comes after a pause."""
    tpot_s: float
    """That of the tokens that `LONG` has more. The first decode steps after a pause take longer."""

    @classmethod
    async def now_and_then(cls, url: str, pause: Callable[[], Awaitable[None]]) -> Pace:
        """Measure a server that is idle between two requests, as with traffic.

        :param pause: waits until the next request.
        """
        found: dict[Ask, list[Heard]] = {PROMPT: [], SHORT: [], LONG: []}
        until_s = time.perf_counter() + PACE_S
        async with load.session() as client:
            while time.perf_counter() < until_s:
                for ask, heard in found.items():
                    await pause()
                    heard.append(await load.send(client, url, ask, _body(ask)))
        return cls.heard(*found.values())

    @classmethod
    def heard(cls, prompts: Sequence[Heard], shorts: Sequence[Heard], longs: Sequence[Heard]) -> Pace:
        """Return the means of what a client heard."""
        ttft_s = statistics.fmean(one.ttft_s for one in prompts if one.ttft_s is not None)
        fresh_s, all_s = (
            statistics.fmean(one.tpot_s for one in heard if one.tpot_s is not None) for heard in (shorts, longs)
        )
        few, many = SHORT.output_tokens - 1, LONG.output_tokens - 1
        return cls(ttft_s, fresh_s, (many * all_s - few * fresh_s) / (many - few))

    @classmethod
    def mean(cls, paces: Sequence[Pace]) -> Pace:
        """Return the mean of several."""
        return cls(*map(statistics.fmean, zip(*map(astuple, paces), strict=True)))

    def per(self, speed: Speed) -> Pace:
        """Return how many pieces of work the machine does meanwhile: of its cores in prefill, of its memory in decode.

        Step times of both phases follow those pieces when the machine becomes faster or slower.
        """
        return Pace(self.ttft_s / speed.compute_s, self.fresh_s / speed.memory_s, self.tpot_s / speed.memory_s)

    def at(self, speed: Speed) -> Pace:
        """Return the seconds of so many pieces of work."""
        return Pace(self.ttft_s * speed.compute_s, self.fresh_s * speed.memory_s, self.tpot_s * speed.memory_s)

    def slower_than(self, other: Pace) -> Slower:
        """Return by how much it is slower."""
        return Slower(*(mine / its for mine, its in zip(astuple(self), astuple(other), strict=True)))


def measured_profile(url: str, model: Path, out: Path, repeats: int) -> dict[str, Any]:
    """Return what `pdplugins profile from-endpoint` says of an idle server."""
    axes = {"--prompts": PROMPTS, "--concurrency": BATCHES, "--contexts": CONTEXTS}
    words = [word for name, values in axes.items() for word in (name, ",".join(map(str, values)))]
    words += ["--repeats", str(repeats)]
    program = str(Path(sys.executable).with_name("pdplugins"))
    command = [program, "profile", "from-endpoint", url, "--model", str(model), "--gpu", "h100", "--out", str(out)]
    subprocess.run([*command, "--shape", str(model / "config.json"), "--force", *words], check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@dataclass(frozen=True)
class Engine:
    """What was measured of one stock server, as its client feels it."""

    raw: dict[str, Any]
    """Its profile."""

    @property
    def tables(self) -> dict[str, Any]:
        """The prefill and the decode table as they were measured."""
        return {name: next(iter(self.raw[name].values())) for name in ("prefill", "decode")}

    @property
    def step_ms(self) -> float:
        """A decode step of one request."""
        found: float = self.tables["decode"]["raw_ms"][0][0]
        return found

    @property
    def outside_ms(self) -> float:
        """What a request costs outside of the engine: a prompt of one token takes the engine a decode step."""
        of_one_token: float = self.tables["prefill"]["raw_ms"][0]
        return max(of_one_token - self.step_ms, 0.0)

    @property
    def pace(self) -> Pace:
        """What it says of the requests that a pace is measured with."""
        prefill, decode = (self.tables[name] for name in ("prefill", "decode"))
        ttft_ms = prefill["raw_ms"][prefill["tokens"].index(PROMPT.prompt_tokens)]
        few, many = SHORT.output_tokens, LONG.output_tokens
        contexts = [SHORT.prompt_tokens + few / 2, LONG.prompt_tokens + (few + many) / 2]
        tpots_ms = np.interp(contexts, decode["context_tokens"], decode["raw_ms"][0])
        return Pace(ttft_ms / 1e3, *map(float, tpots_ms / 1e3))

    def profile(self, transfer: tuple[float, float], slower: Slower = AS_FAST) -> dict[str, Any]:
        """Return the profile of the engine alone.

        A request that decodes alone has mostly come after a pause; larger batches are of times without pauses.

        :param transfer: latency, and time per token.
        :param slower: by how much it is.

        The simulator cuts prompts into chunks itself, and each chunk takes what a step takes at least. So the prompts
        of several chunks lose that of all but one.
        """
        table = self.tables["prefill"]
        more = [(tokens - 1) // CHUNK * self.step_ms for tokens in table["tokens"]]
        engine = [ms - self.outside_ms - less for ms, less in zip(table["raw_ms"], more, strict=True)]
        rising = [round(max(engine[: index + 1]), 3) for index in range(len(engine))]
        here, gib = "this server", 2.0**30
        memory = {
            "gpu_bytes": gib + TOKENS * SHAPE.kv_bytes, "reserved_bytes": 0, "model_bytes": gib,
            "kv_bytes_per_token": SHAPE.kv_bytes, "source": here,
        }  # fmt: skip
        latency_s, per_token_s = transfer
        link = {"latency_s": latency_s, "bytes_per_s": SHAPE.kv_bytes / per_token_s, "source": here}
        scale = {"prefill": slower.prefill, "decode": slower.decode, "source": "beside a busy neighbour"}
        of_one, *of_more = self.tables["decode"]["raw_ms"]
        alone = [round(ms * slower.fresh / slower.decode, 3) for ms in of_one]
        prefill = {"1": table | {"raw_ms": rising}}
        decode = {"1": self.tables["decode"] | {"raw_ms": [alone, *of_more]}}
        found = {"memory": memory, "transfer": link, "scale": scale, "prefill": prefill, "decode": decode}
        return self.raw | found


class Besides(NamedTuple):
    """What the simulator is told of the work on a request besides its steps."""

    frontend_s: float = 0.0
    begin_s: float = 0.0


class Late(NamedTuple):
    """What the simulator is told of late hand-overs."""

    late_handoff_s: float = 0.0
    late_step_s: float = 0.0
    late_step_token_s: float = 0.0


@dataclass(frozen=True)
class Idle:
    """What was measured of servers that nobody else used."""

    engine: Engine
    ends_s: dict[str, list[float]]
    """TTFT of the prompts of `ENDS`, by layout."""
    busy_s: dict[str, list[float]]
    """Seconds of processor time for such a request, by layout: of the first server, or of both unified ones."""
    server_s: float
    """The TTFT of the first of them without the gateway."""

    @property
    def gateway_s(self) -> float:
        """What the way through the gateway takes longer than the one to a server."""
        return max(self.ends_s["unified"][0] - self.server_s, 0.0)

    @property
    def besides(self) -> Besides:
        """The work on a request besides its steps."""
        return Besides(self.gateway_s, self.engine.outside_ms / 1e3)

    def transfer(self, layout: str) -> tuple[float, float]:
        """Return latency and time per token of a hand-over of a layout."""
        pairs = zip(self.ends_s[layout][1:], self.ends_s["unified"][1:], strict=True)
        short, long = (both - one for both, one in pairs)
        per_token_s = max((long - short) / (ENDS[2] - ENDS[1]), 1e-7)
        return max(short - ENDS[1] * per_token_s, 1e-4), per_token_s

    def late(self, early: str, late: str) -> Late:
        """Return what a hand-over takes that is asked for late, beyond an early one.

        Each server has a core of its own. So what it computes longer for such a request keeps its engine busy.

        :param early: the layout whose hand-overs are asked for with the prompt.
        :param late: the one whose hand-overs are asked for when the prompt is computed, and take a step.
        """
        short, long = (two - one for one, two in zip(self.busy_s[early][1:], self.busy_s[late][1:], strict=True))
        token_s = max((long - short) / (ENDS[2] - ENDS[1]), 0.0)
        busy_s = max(short - ENDS[1] * token_s, 0.0)
        waited_s = self.ends_s[late][1] - self.ends_s[early][1] - short
        return Late(max(waited_s, 0.0), max(busy_s - self.engine.step_ms / 1e3, 0.0), token_s)

    def facts(self) -> dict[str, Any]:
        """Return it for the result."""
        hand_overs = {name: self.transfer(name) for name in self.ends_s if name != "unified"}
        return {
            **self.engine.tables,
            "pace": asdict(self.engine.pace),
            "gateway_ms": round(1e3 * self.gateway_s, 3),
            "begin_ms": round(1e3 * self.besides.begin_s, 3),
            "hand_over_ms": {name: round(1e3 * latency_s, 3) for name, (latency_s, _) in hand_overs.items()},
            "hand_over_us_per_token": {name: round(1e6 * each_s, 3) for name, (_, each_s) in hand_overs.items()},
            "ttft_ms": {
                name: dict(zip(ENDS, [round(1e3 * one, 3) for one in found], strict=True))
                for name, found in self.ends_s.items()
            },
            "busy_ms": {
                name: dict(zip(ENDS, [round(1e3 * one, 3) for one in found], strict=True))
                for name, found in self.busy_s.items()
            },
        }
