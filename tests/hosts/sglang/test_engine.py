"""Real SGLang servers on a CPU: whatever two dual-role instances do with a request, its tokens are a unified server's.

`make test-sglang` installs SGLang and runs this; without it every test is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from . import servers, tiny_model
from .paths import Client, Instance, prompt_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

DUAL = {"sglang": {"dual_role": True}}
CHUNK = 256
"""Tokens of one prefill step of the servers."""


@dataclass(frozen=True)
class Setup:
    """Two dual-role instances and how they run. Between them the setups cover what may interact."""

    version: str
    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 16384


NO_OVERLAP = ("--disable-overlap-schedule",)
RETRACT = {"SGLANG_TEST_RETRACT": "true"}
"""SGLang then retracts running requests every few steps, as it does when the KV cache is full."""
TIMEOUT_S = 20
TIMEOUTS = {
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(TIMEOUT_S),
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(TIMEOUT_S),
}
SLO_SIZED = {"slo": {"tpot_s": 0.02}, "batch_scheduler": {"name": "dynaserve"}}
SETUPS = [
    Setup("0.5.16", "slo-sized-mixed-steps-little-cache", SLO_SIZED, ("--enable-mixed-chunk",), tokens=3000),
    Setup("0.5.16", "no-overlap-reordered", {"batch_scheduler": "ampd"}, NO_OVERLAP),
    Setup("0.5.23", "overlap", env=TIMEOUTS),
    Setup("0.5.23", "no-overlap-gathered-retracting", {"batch_scheduler": "dopd"}, NO_OVERLAP, RETRACT),
]


@dataclass(frozen=True)
class Bench:
    """Servers that run."""

    a: Instance
    b: Instance
    unified: Instance
    started: tuple[servers.Server, servers.Server]
    setup: Setup


def trees() -> dict[str, Path]:
    found = {servers.version_of(tree): tree for tree in servers.trees()}
    return found or pytest.skip("PDPLUGINS_SGLANG_TREES names no SGLang; run make test-sglang")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trees()
    return tiny_model.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module", params=SETUPS, ids=lambda setup: f"{setup.version}-{setup.name}")
def bench(request: pytest.FixtureRequest, model: Path, scratch: Path) -> Iterator[Bench]:
    setup: Setup = request.param
    tree = trees().get(setup.version) or pytest.skip(f"no SGLang {setup.version} here")
    config = scratch / f"{setup.version}-{setup.name}.yaml"
    config.write_text(yaml.safe_dump({**DUAL, **setup.config}))
    options = [*servers.DUAL, *setup.options]
    logs = [scratch / f"{config.stem}-{name}.log" for name in "abu"]
    a, b = (servers.Server(tree, model, log, options, config, setup.env, setup.tokens) for log in logs[:2])
    unified = servers.Server(tree, model, logs[2])
    with servers.running(a, b, unified):
        addresses = [Instance(server.url, server.bootstrap_port) for server in (a, b, unified)]
        yield Bench(*addresses, (a, b), setup)
    for log in logs[:2]:
        assert "Scheduler hit an exception" not in log.read_text(errors="replace"), log


@asynccontextmanager
async def client(**settings: Any) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        yield Client(session, **settings)


def run(test: Callable[[Client], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with client(**settings) as one:
            await test(one)

    asyncio.run(main())


@pytest.mark.parametrize("length", [1, 7, CHUNK, CHUNK + 1, 700])
def test_a_split_at_any_boundary_gives_the_tokens_of_one_server(bench: Bench, length: int) -> None:
    """0, 1, chunk edges, the prompt's length, inside decode, the last token; either server first."""
    output = 9
    edges = {0, 1, length // 2, length - 1, length, length + 1, length + output // 2, length + output - 1}
    edges |= {at for at in (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK) if at < length}

    async def test(client: Client) -> None:
        rng = random.Random(length)
        for at in sorted(edges):
            for first, second in ((bench.a, bench.b), (bench.b, bench.a)):
                prompt = prompt_of(rng, length)
                wanted = await client.tokens(bench.unified, prompt, output)
                assert await client.split(first, second, prompt, output, at) == wanted, (at, first.url)

    run(test)


def test_logprobs_are_those_of_one_server(bench: Bench) -> None:
    def logprobs(answer: dict[str, Any]) -> list[float]:
        return [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]

    async def test(client: Client) -> None:
        rng = random.Random(5)
        for length in (5, CHUNK, 600):
            prompt = prompt_of(rng, length)
            wanted = logprobs(await client.generate(bench.unified, prompt, 12))
            assert logprobs(await client.generate(bench.a, prompt, 12)) == pytest.approx(wanted, abs=1e-3)
            assert logprobs(await client.pair(bench.a, bench.b, prompt, 12)) == pytest.approx(wanted, abs=1e-3)

    run(test, logprobs=True)


def test_the_rounds_of_a_session_go_on_where_their_cache_is(bench: Bench) -> None:
    """AMPD: a later round prefills on the decode side, or on the prefill side after its history was read back."""

    async def test(client: Client) -> None:
        rng = random.Random(7)
        for remote in (False, True):
            first = prompt_of(rng, 260)
            history = first + (await client.pair(bench.a, bench.b, first, 20))["output_ids"]
            prompt = history + prompt_of(rng, 90)
            wanted = await client.tokens(bench.unified, prompt, 8)
            if remote:
                await client.push(bench.b, bench.a, history)
                answer = await client.pair(bench.a, bench.b, prompt, 8)
            else:
                answer = await client.generate(bench.b, prompt, 8)
            assert answer["output_ids"] == wanted
            assert answer["meta_info"]["cached_tokens"] >= len(history) - 2

    run(test)


def test_two_hundred_mixed_requests_32_in_flight(bench: Bench) -> None:
    async def test(client: Client) -> None:
        rng = random.Random(8)
        gate = asyncio.Semaphore(32)

        async def one(index: int) -> tuple[int, bool]:
            prompt = prompt_of(rng, rng.choice([2, 10, 40, 200, 256, 257, 600, 900]))
            output = rng.choice([1, 3, 8, 20])
            at = rng.randrange(len(prompt) + output)
            first, second = rng.sample([bench.a, bench.b], 2)
            async with gate:
                wanted = await client.tokens(bench.unified, prompt, output)
                if index % 3 == 0:
                    got = await client.tokens(first, prompt, output)
                else:
                    got = await client.split(first, second, prompt, output, len(prompt) if index % 3 == 1 else at)
            return index, got == wanted

        results = await asyncio.gather(*[one(index) for index in range(200)])
        assert [index for index, equal in results if not equal] == []

    run(test)


def test_corrupt_kv_cache_gives_other_tokens(bench: Bench) -> None:
    """The negative control: equality does depend on the KV cache that was sent. Here none is."""

    async def test(client: Client) -> None:
        rng = random.Random(9)
        for length in (20, 100):
            prompt = prompt_of(rng, length)
            wanted = await client.tokens(bench.unified, prompt, 10)
            nothing = {"bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": servers.room()}
            assert (await client.generate(bench.b, prompt, 10, **nothing))["output_ids"] != wanted

    run(test)


def test_clients_that_leave_leave_nothing_behind(bench: Bench) -> None:
    """Disconnects in every phase, and transfers whose other side never comes: all queues empty, all KV cache free."""

    async def test(client: Client) -> None:
        rng = random.Random(10)

        async def leaves() -> None:
            prompt = prompt_of(rng, rng.choice([10, 300, 900, 2000]))
            first, second = rng.sample([bench.a, bench.b], 2)
            asked: Awaitable[Any] = rng.choice(
                [
                    lambda: client.tokens(first, prompt, 300),
                    lambda: client.pair(first, second, prompt, 300),
                    lambda: client.generate(first, prompt, 5, **first.address()),
                    lambda: client.generate(second, prompt, 5, **first.address()),
                ]
            )()
            with contextlib.suppress(TimeoutError, RuntimeError):
                await asyncio.wait_for(asked, rng.random() * 0.5)

        for _ in range(6):
            await asyncio.gather(*[leaves() for _ in range(16)])
        for instance in (bench.a, bench.b):
            await becomes_idle(client, instance)
            async with client.session.post(instance.url + "/flush_cache") as answer:
                assert answer.status == 200, await answer.text()

    run(test)


def test_a_peer_that_never_comes_ends_a_request_in_time(bench: Bench) -> None:
    if bench.setup.env != TIMEOUTS:
        pytest.skip("one setup has short time-outs")

    async def test(client: Client) -> None:
        began = time.monotonic()
        prompt = prompt_of(random.Random(12), 300)
        alone = [
            client.generate(bench.a, prompt, 5, **bench.a.address()),
            client.generate(bench.b, prompt, 5, **bench.a.address()),
        ]
        assert [type(answer) for answer in await asyncio.gather(*alone, return_exceptions=True)] == [RuntimeError] * 2
        assert TIMEOUT_S - 1 < time.monotonic() - began < 3 * TIMEOUT_S
        for instance in (bench.a, bench.b):
            await becomes_idle(client, instance)

    run(test)


async def load_of(client: Client, instance: Instance) -> dict[str, Any]:
    async with client.session.get(instance.url + "/v1/loads") as answer:
        return dict((await answer.json())["loads"][0])


async def becomes_idle(client: Client, instance: Instance, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while True:
        load = await load_of(client, instance)
        counts = {name: count for name, count in load["disaggregation"].items() if name.endswith("_reqs")}
        counts |= {name: load[name] for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}
        if not any(counts.values()):
            return
        assert time.monotonic() < deadline, counts
        await asyncio.sleep(0.5)


def test_the_load_report_sees_what_waits_for_prefill(bench: Bench) -> None:
    """Prompts whose decode side never comes wait for it; when their clients leave, nothing waits."""
    waiting, length = 3, 300

    async def test(client: Client) -> None:
        rng = random.Random(11)
        asked = [
            asyncio.create_task(client.generate(bench.a, prompt_of(rng, length), 4, **bench.a.address()))
            for _ in range(waiting)
        ]
        deadline = time.monotonic() + TIMEOUT_S - 5
        while (load := await load_of(client, bench.a))["disaggregation"]["prefill_bootstrap_queue_reqs"] < waiting:
            assert time.monotonic() < deadline, load
            await asyncio.sleep(0.1)
        assert load["num_waiting_reqs"] == waiting
        assert load["num_waiting_uncached_tokens"] == waiting * length
        for task in asked:
            task.cancel()
        await becomes_idle(client, bench.a)

    run(test)


def test_a_flood_of_prompts_does_not_stop_what_decodes(bench: Bench) -> None:
    """Stock SGLang would prefill all of them first."""
    flood = 40

    async def test(client: Client) -> None:
        rng = random.Random(13)
        decoding = asyncio.create_task(client.pair(bench.b, bench.a, prompt_of(rng, 20), 40))
        prompts = [asyncio.create_task(client.tokens(bench.a, prompt_of(rng, 900), 1)) for _ in range(flood)]
        await decoding
        assert sum(task.done() for task in prompts) < flood * 3 / 4
        await asyncio.gather(*prompts)

    run(test)


def test_an_idle_server_is_idle(bench: Bench) -> None:
    """Also NIXL's progress threads, which poll without pause by default, each at a whole core."""

    async def test(client: Client) -> None:
        await client.pair(bench.a, bench.b, [5] * 40, 4)
        await client.pair(bench.b, bench.a, [6] * 40, 4)
        for instance in (bench.a, bench.b):
            await becomes_idle(client, instance)

    run(test)
    time.sleep(2)
    before = [cpu_s(server.process.pid) for server in bench.started]
    time.sleep(4)
    used_s = [cpu_s(server.process.pid) - start for server, start in zip(bench.started, before, strict=True)]
    assert max(used_s) < 0.3 * 4, used_s


def cpu_s(session: int) -> float:
    """CPU seconds of all processes of a session."""
    done = subprocess.run(["pgrep", "-s", str(session)], check=True, capture_output=True, text=True)
    ticks = 0
    for pid in done.stdout.split():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_an_option_that_does_not_work_is_refused_at_start(version: str, model: Path, scratch: Path) -> None:
    tree = trees().get(version) or pytest.skip(f"no SGLang {version} here")
    config = scratch / "dual.yaml"
    config.write_text(yaml.safe_dump(DUAL))
    log = scratch / f"refused-{version}.log"
    with servers.Server(tree, model, log, [*servers.DUAL, "--enable-priority-scheduling"], config) as server:
        assert server.process.wait(servers.START_S) != 0
    assert "--enable-priority-scheduling is True, must be None: a preempted request would lose" in log.read_text()
