"""What a worker says of itself may be anything: it is a missed poll, and the next one may be good."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.gateway.engines.sglang.reports import facts_of, report_of
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.watchers import keep
from tests.gateway.fake import FakeWorker, Rooms, answer_of, settled
from tests.gateway.rig import PROMPT, ask, fast, over, stand

ODD = {
    "not JSON": b"<html>",
    "nothing": b"",
    "list": b"[]",
    "text": b'"x"',
    "number": b"5",
    "null": b"null",
    "deep": b"[" * 5_000 + b"]" * 5_000,
    "not UTF-8": b'{"a": "\xff"}',
}
ODD_INFO = ODD | {
    "infinite": b'{"max_total_num_tokens": 1e999}',
    "negative": b'{"max_total_num_tokens": -1}',
    "huge": b'{"max_total_num_tokens": 1' + b"0" * 40 + b"}",
    "no size": b'{"tp_size": {"a": 1}}',
    "no port": b'{"disaggregation_bootstrap_port": "a"}',
}
ODD_LOADS = ODD | {
    "no loads": b'{"a": 1}',
    "null loads": b'{"loads": null}',
    "a number in loads": b'{"loads": [1]}',
    "null in loads": b'{"loads": [null]}',
    "infinite": b'{"loads": [{"num_running_reqs": 1e999}]}',
    "not a number": b'{"loads": [{"num_used_tokens": NaN}]}',
    "a list": b'{"loads": [{"num_waiting_reqs": [1]}]}',
    "too long": b'{"loads": [' + b" " * 5 * 2**20 + b"]}",
}
SOON = fast(poll_s=0.02, poll_misses=2)


async def serves(it: Any) -> bool:
    status, answer = await it.post("/generate", ask())
    return status == 200 and answer["output_ids"] == answer_of(PROMPT, 9)


@pytest.mark.moderate
def test_workers_with_odd_answers_at_the_start_are_asked_again() -> None:
    async def run() -> None:
        odd = [("/server_info", said) for said in ODD_INFO.values()] + [
            ("/v1/loads", said) for said in ODD_LOADS.values()
        ]
        rooms = Rooms()
        workers = [await FakeWorker("dual", rooms, 9000 + number).start() for number in range(len(odd))]
        for worker, (path, said) in zip(workers, odd, strict=True):
            worker.says[path] = said
        async with over(workers, settings=SOON) as it:
            assert not it.gateway.backends.ready
            assert it.faults["poll_missed"] >= len(odd)
            for worker in workers:
                worker.says.clear()
            assert await settled(lambda: len(it.gateway.backends.ready) == len(odd))
            assert await serves(it)

    asyncio.run(run())


@pytest.mark.moderate
def test_odd_loads_of_a_worker_that_serves_are_missed_polls() -> None:
    """Several in a row take the worker away until it says its load again."""

    async def run() -> None:
        async with stand("dual", settings=SOON) as it:
            (worker,) = it.workers
            for odd in ODD_LOADS.values():
                missed = it.faults["poll_missed"]
                worker.says["/v1/loads"] = odd
                assert await settled(lambda: not it.gateway.backends.ready), odd
                assert it.faults["poll_missed"] >= missed + 2
                worker.says.clear()
                assert await settled(lambda: bool(it.gateway.backends.ready)), odd
            assert await serves(it)

    asyncio.run(run())


def test_one_odd_load_takes_no_worker_away() -> None:
    async def run() -> None:
        async with stand("dual", settings=fast(poll_s=0.02, poll_misses=1_000)) as it:
            it.workers[0].says["/v1/loads"] = b"[]"
            assert await settled(lambda: it.faults["poll_missed"] >= 3)
            assert it.gateway.backends.ready
            assert await serves(it)

    asyncio.run(run())


def test_a_watcher_that_fails_is_counted_and_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.gateway.watchers.AGAIN_S", 0.0)
    metrics = GatewayMetrics()
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun % 2:
            raise RuntimeError("asked for")

    async def run() -> None:
        watcher = asyncio.create_task(keep(work, metrics))
        assert await settled(lambda: begun >= 4)
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)

    asyncio.run(run())
    assert metrics.faults["gateway_error"] >= 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["max_total_num_tokens", "tp_size", "disaggregation_mode", "disaggregation_bootstrap_port"])
LOAD_NAMES = st.sampled_from(["num_running_reqs", "num_used_tokens", "timestamp", "num_waiting_uncached_tokens"])


@given(JSON | st.dictionaries(NAMES, JSON))
def test_any_json_as_a_description_is_read_or_refused(data: Any) -> None:
    with contextlib.suppress(ValueError):
        facts = facts_of(json.dumps(data).encode(), dual=True)
        assert facts.kv_capacity_tokens >= 0


@pytest.mark.moderate
@given(JSON | st.fixed_dictionaries({"loads": JSON | st.lists(st.dictionaries(LOAD_NAMES, JSON), max_size=3)}))
def test_any_json_as_a_load_is_read_or_refused(data: Any) -> None:
    with contextlib.suppress(ValueError):
        report = report_of(json.dumps(data).encode())
        assert min(report.running_requests, report.waiting_requests, report.waiting_tokens) >= 0


@given(st.binary(max_size=30))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (report_of, lambda body: facts_of(body, dual=False)):
        with contextlib.suppress(ValueError):
            read(data)
