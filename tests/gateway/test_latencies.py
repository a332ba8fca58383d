"""What the gateway exports of latencies and tokens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pdplugins.contracts.request import Slo
from pdplugins.gateway.histogram import Histogram
from pdplugins.gateway.metrics import GatewayMetrics
from tests.gateway.fake import settled
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, config, stand

NAMES = ("ttft_seconds_count", "itl_seconds_count", "tpot_seconds_count", "e2e_seconds_count")


def told(it: Stand) -> dict[str, float]:
    """Counts of the histograms, and the tokens."""
    names = (*NAMES, "prompt_tokens_total", "output_tokens_total")
    return {name: value(it.gateway.metrics, name) for name in names}


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(f"pdplugins_gateway_{name}", labels)
    assert found is not None, name
    return found


def expected(*counts: float, output: float, prompt: float = len(PROMPT)) -> dict[str, float]:
    return dict(zip(NAMES, counts, strict=True)) | {"prompt_tokens_total": prompt, "output_tokens_total": output}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", ask(count=9)),
        ("/v1/completions", {"model": "fake", "prompt": PROMPT, "max_tokens": 9}),
    ],
)
def test_a_stream_tells_ttft_itl_tpot_the_whole_and_tokens(path: str, body: dict[str, Any]) -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.001) as it:
            it.route(Fixed())
            await it.stream(path, body)
            assert told(it) == expected(1, 8, 1, 1, output=9)
            ttft_s, whole_s = (value(it.gateway.metrics, f"{name}_seconds_sum") for name in ("ttft", "e2e"))
            gaps_s = value(it.gateway.metrics, "itl_seconds_sum")
            assert 0 < ttft_s < ttft_s + gaps_s <= whole_s
            assert value(it.gateway.metrics, "tpot_seconds_sum") >= gaps_s / 8

    asyncio.run(run())


def test_the_tokens_of_several_answers_come_mixed_and_tell_no_time_between_two() -> None:
    async def run() -> None:
        async with stand("unified", token_s=0.01) as it:
            it.route(Fixed())
            body = {"model": "fake", "prompt": PROMPT, "max_tokens": 9, "n": 2}
            await it.stream("/v1/completions", body)
            found = told(it)
            assert [found[name] for name in NAMES] == [1, 0, 0, 1]

    asyncio.run(run())


def test_a_whole_answer_has_no_first_token() -> None:
    """Its only time is that of all of it: as a time to first token it would raise an alarm for nothing."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            await it.post("/generate", ask(count=9))
            assert told(it) == expected(0, 0, 0, 1, output=9)

    asyncio.run(run())


def test_an_answer_that_goes_on_elsewhere_is_one_stream() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            router.second = 0
            it.workers[0].faults.die_after_tokens = 4
            await it.stream("/generate", ask(count=9))
            assert it.faults["resumed"] == 1
            assert told(it) == expected(1, 8, 1, 1, output=9)

    asyncio.run(run())


def test_of_a_client_that_left_only_the_tokens_count() -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.02) as it:
            with contextlib.suppress(TimeoutError):
                async with (
                    asyncio.timeout(60),
                    it.client.post(it.gateway.url + "/generate", json=ask(count=5000, stream=True)) as answer,
                ):
                    await answer.content.readany()
                    answer.close()
            assert await settled(it.idle)
            seen = told(it)
            assert seen["output_tokens_total"] >= 1
            assert seen["ttft_seconds_count"] == 1
            assert (seen["e2e_seconds_count"], seen["tpot_seconds_count"], seen["prompt_tokens_total"]) == (0, 0, 0)

    asyncio.run(run())


def test_the_objectives_are_bounds_of_buckets() -> None:
    """So the share of the requests that keep them needs no interpolation."""

    async def run() -> None:
        async with stand("dual", "dual", cfg=config(slo={"ttft_s": 1.7, "tpot_s": 0.033})) as it:
            await it.stream("/generate", ask())
            for name, objective in (("ttft", "1.7"), ("itl", "0.033"), ("tpot", "0.033")):
                assert value(it.gateway.metrics, f"{name}_seconds_bucket", le=objective) >= 1

    asyncio.run(run())
    bounds = GatewayMetrics(slo=Slo(2.5, 0.1)).ttft.collect()
    assert sum(sample.labels.get("le") == "2.5" for family in bounds for sample in family.samples) == 1


def test_a_histogram_counts_each_value_in_its_bucket() -> None:
    registry = CollectorRegistry()
    seen = Histogram("seen", "Numbers", (1.0, 2.0), registry)
    seen.observe(1.0)
    seen.observe(1.5, 3)
    seen.observe(9.0)
    counts = {le: registry.get_sample_value("seen_bucket", {"le": le}) for le in ("1.0", "2.0", "+Inf")}
    assert counts == {"1.0": 1, "2.0": 4, "+Inf": 5}
    assert registry.get_sample_value("seen_sum") == 14.5
    assert registry.get_sample_value("seen_count") == 5
