"""Real SGLang servers on a CPU: whatever two dual-role instances do with a request, its answer is a unified server's.

`make test-sglang` installs SGLang and runs this; without it every test is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.rig import servers
from tests.hosts.sglang import setups
from tests.hosts.sglang.cores import busiest, rests
from tests.hosts.sglang.paths import Client, edges_of, prompt_of, run, seeded
from tests.hosts.sglang.setups import CHUNK, TIMEOUT_S, Bench

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
everywhere = setups.on(*setups.SETUPS)


@everywhere
@pytest.mark.parametrize("seeds", [False, True], ids=["greedy", "seeds"])
@pytest.mark.parametrize("length", [1, 7, CHUNK, CHUNK + 1, 700])
def test_a_split_at_any_boundary_gives_the_answer_of_one_server(bench: Bench, length: int, seeds: bool) -> None:
    """0, 1, chunk edges, the prompt's length, inside decode, the last token; either server first, all at once."""
    output = 9

    async def test(client: Client) -> None:
        rng = random.Random(length)

        async def one(at: int, first: servers.Server, second: servers.Server) -> None:
            prompt, asking = prompt_of(rng, length), replace(client, logprobs=rng.random() < 0.5)
            asking = replace(asking, sampling=seeded(rng)) if seeds else asking
            wanted = await asking.local(bench.unified, prompt, output)
            got = await asking.split(first, second, prompt, output, at)
            assert got.equals(wanted), (at, asking.sampling, got, wanted)

        edges = edges_of(length, output, CHUNK)
        await asyncio.gather(*[one(at, *order) for at in edges for order in (bench.pair, bench.pair[::-1])])

    run(test)


@everywhere
def test_the_rounds_of_a_session_go_on_where_their_cache_is(bench: Bench) -> None:
    """AMPD: a later round prefills on the decode side, or on the prefill side after its history was read back."""

    async def test(client: Client) -> None:
        rng = random.Random(7)
        for remote in (False, True):
            asking = client.drawn(rng)
            first = prompt_of(rng, 260)
            history = first + (await asking.pair(bench.a, bench.b, first, 20)).ids
            prompt = history + prompt_of(rng, 90)
            wanted = await asking.local(bench.unified, prompt, 8)
            if remote:
                await asking.push(bench.b, bench.a, history)
                answer = await asking.pair(bench.a, bench.b, prompt, 8)
            else:
                answer = await asking.local(bench.b, prompt, 8)
            assert answer.equals(wanted), (answer, wanted)
            assert answer.cached >= len(history) - 2

    run(test)


@everywhere
def test_two_hundred_mixed_requests_32_in_flight(bench: Bench) -> None:
    """Every path and every kind of boundary; greedy and with seeds, with logprobs and without."""

    async def test(client: Client) -> None:
        rng = random.Random(8)
        gate = asyncio.Semaphore(32)

        async def one(index: int) -> str | None:
            prompt, asking = prompt_of(rng, rng.choice([2, 10, 40, 200, 256, 257, 600, 900])), client.drawn(rng)
            output = rng.choice([1, 3, 8, 20])
            anywhere = rng.randrange(len(prompt) + output)
            at = [len(prompt), anywhere, rng.choice(edges_of(len(prompt), output, CHUNK))][index // 4 % 3]
            first, second = rng.sample(bench.pair, 2)
            async with gate:
                wanted = await asking.local(bench.unified, prompt, output)
                if index % 4 == 0:
                    got = await asking.local(first, prompt, output)
                elif index % 4 == 1:  # who decodes is known late: the hand-over may go between chunks of others
                    await asking.local(first, prompt, 1)
                    got = await asking.pair(first, second, prompt, output)
                else:
                    got = await asking.split(first, second, prompt, output, at)
            return None if got.equals(wanted) else f"{index}: {len(prompt)}+{output} at {at}: {got} is not {wanted}"

        results = await asyncio.gather(*[one(index) for index in range(200)])
        assert [line for line in results if line] == []

    run(test)


@everywhere
@pytest.mark.parametrize("logprobs", [False, True])
def test_corrupt_kv_cache_gives_another_answer(bench: Bench, logprobs: bool) -> None:
    """The negative control: one number of the KV cache of one token has the other sign, or no KV cache comes at all."""

    async def test(client: Client) -> None:
        rng = random.Random(9)
        for length in (20, 100, 300):
            prompt = prompt_of(rng, length)
            wanted = await client.local(bench.unified, prompt, 16)
            corrupt = {"bootstrap_room": servers.corrupt_room()}
            assert not (await client.pair(bench.a, bench.b, prompt, 16, **corrupt)).equals(wanted)
            nothing = {"bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": servers.room()}
            assert not (await client.local(bench.b, prompt, 16, **nothing)).equals(wanted)

    run(test, logprobs=logprobs)


@everywhere
def test_clients_that_leave_leave_nothing_behind(bench: Bench) -> None:
    """Disconnects in every phase, and transfers whose other side never comes: all queues empty, all KV cache free."""

    async def test(client: Client) -> None:
        rng = random.Random(10)

        async def leaves() -> None:
            prompt = prompt_of(rng, rng.choice([10, 300, 900, 2000]))
            first, second = rng.sample(bench.pair, 2)
            asked: Awaitable[Any] = rng.choice(
                [
                    lambda: client.local(first, prompt, 300),
                    lambda: client.pair(first, second, prompt, 300),
                    lambda: client.local(first, prompt, 5, **first.address()),
                    lambda: client.local(second, prompt, 5, **first.address()),
                ]
            )()
            with contextlib.suppress(TimeoutError, RuntimeError):
                await asyncio.wait_for(asked, rng.random() * 0.5)

        for _ in range(6):
            await asyncio.gather(*[leaves() for _ in range(16)])
        for server in bench.pair:
            await client.becomes_idle(server)
            async with client.session.post(server.url + "/flush_cache") as answer:
                assert answer.status == 200, await answer.text()

    run(test)


@setups.on(setups.ROOMY[1])
def test_a_peer_that_never_comes_ends_a_request_in_time(bench: Bench) -> None:
    async def test(client: Client) -> None:
        began = time.monotonic()
        prompt = prompt_of(random.Random(12), 300)
        alone = [
            client.local(bench.a, prompt, 5, **bench.a.address()),
            client.local(bench.b, prompt, 5, **bench.a.address()),
        ]
        assert [type(answer) for answer in await asyncio.gather(*alone, return_exceptions=True)] == [RuntimeError] * 2
        assert time.monotonic() - began > TIMEOUT_S - 1
        for server in bench.pair:
            await client.becomes_idle(server)

    run(test)


@everywhere
def test_the_load_report_sees_what_waits_for_prefill(bench: Bench) -> None:
    """Prompts whose decode side never comes wait for it; when their clients leave, nothing waits."""
    waiting, length = 3, 300

    async def test(client: Client) -> None:
        rng = random.Random(11)
        asked = [
            asyncio.create_task(client.local(bench.a, prompt_of(rng, length), 4, **bench.a.address()))
            for _ in range(waiting)
        ]
        deadline = time.monotonic() + TIMEOUT_S
        while (load := await client.load(bench.a))["disaggregation"]["prefill_bootstrap_queue_reqs"] < waiting:
            assert time.monotonic() < deadline, load
            await asyncio.sleep(0.1)
        assert load["num_waiting_reqs"] == waiting
        assert load["num_waiting_uncached_tokens"] == waiting * length
        for task in asked:
            task.cancel()
        await client.becomes_idle(bench.a)

    run(test)


@everywhere
def test_a_flood_of_prompts_does_not_stop_what_decodes(bench: Bench) -> None:
    """Stock SGLang would prefill all of them first."""
    flood = 40

    async def test(client: Client) -> None:
        rng = random.Random(13)
        decoding = asyncio.create_task(client.pair(bench.b, bench.a, prompt_of(rng, 20), 40))
        prompts = [asyncio.create_task(client.local(bench.a, prompt_of(rng, 900), 1)) for _ in range(flood)]
        await decoding
        assert sum(task.done() for task in prompts) < flood * 3 / 4
        await asyncio.gather(*prompts)

    run(test)


@everywhere
@pytest.mark.usefixtures("fresh")
def test_an_idle_server_is_idle(bench: Bench) -> None:
    """Also NIXL's progress threads, which poll without pause by default, each at a whole core."""

    async def test(client: Client) -> None:
        await client.pair(bench.a, bench.b, [5] * 40, 4)
        await client.pair(bench.b, bench.a, [6] * 40, 4)
        for server in bench.pair:
            await client.becomes_idle(server)

    run(test)
    for server in bench.pair:
        assert rests(server.process.pid), busiest(server.process.pid)


@everywhere
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_server_that_only_waits_for_the_other_one_leaves_its_core_to_others(bench: Bench, role: str) -> None:
    """On fresh servers: after many requests that end in mid-transfer, UCX may spin in a progress thread of NIXL."""
    server, queue = {
        "prefill": (bench.a, "prefill_bootstrap_queue_reqs"),
        "decode": (bench.b, "decode_transfer_queue_reqs"),
    }[role]

    async def test(client: Client) -> None:
        asked = asyncio.create_task(client.local(server, [7] * 40, 4, **bench.a.address()))  # the other half is not
        while not (await client.load(server))["disaggregation"][queue]:
            assert not asked.done()
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(rests, server.process.pid), busiest(server.process.pid)
        assert not asked.done()
        asked.cancel()
        await client.becomes_idle(server)

    run(test)


@pytest.mark.parametrize("version", setups.VERSIONS)
def test_an_option_that_does_not_work_is_refused_at_start(version: str, model: Path, tmp_path: Path) -> None:
    config = tmp_path / "dual.yaml"
    config.write_text(yaml.safe_dump(setups.DUAL))
    log = tmp_path / "refused.log"
    options = [*servers.DUAL, "--enable-priority-scheduling"]
    with servers.Server(setups.tree_of(version), model, log, options, config) as server:
        assert server.process.wait(servers.START_S) != 0
    assert "--enable-priority-scheduling is True, must be None: a preempted request would lose" in log.read_text()


@pytest.mark.parametrize("version", setups.VERSIONS)
def test_every_seam_is_as_recorded_in_both_versions(version: str) -> None:
    """SGLang is in no process of the tests themselves, so this is the only place where both versions are looked at."""
    program = [sys.executable, "-m", "pytest", "-q", "-m", "sglang", str(Path(__file__).with_name("test_seams.py"))]
    paths = [servers.HERE / "stubs", setups.tree_of(version)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, done.stdout
