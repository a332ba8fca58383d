"""Steps of several chunks, with history and with decodes, as profiles/README.md writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pdplugins.perf.profile import Profile
from pdplugins.perf.steps import step_model
from pdplugins.perf.table import TableModel
from pdplugins.sim.core.clock import TICKS_PER_S
from pdplugins.sim.core.steps import StepTimes

DENSE_MS = {"tokens": [1, 100, 1000, 10_000], "raw_ms": [10, 10, 50, 500]}
ATTENTION_MS = (0.5, 0.6, 1.5, 80.5)
POWER = {
    "cap_w": [400, 600, 750],
    "prefill_slow": [1.8, 1.2, 1],
    "decode_slow": [1.4, 1, 1],
    "settle_s": 0.3,
    "idle_w": 100,
    "prefill_w": 700,
    "decode_w": 500,
    "source": "test",
}


def model(dense: bool = True, **scale: float) -> TableModel:
    whole = [d + a for d, a in zip(DENSE_MS["raw_ms"], ATTENTION_MS, strict=True)]
    said: dict[str, Any] = {
        "schema": 1,
        "gpu": "toy",
        "model": "toy",
        "kind": "modelled",
        "provenance": {"source": "test", "command": "test"},
        "memory": {
            "gpu_bytes": 80,
            "reserved_bytes": 8,
            "model_bytes": 16,
            "kv_bytes_per_token": 1,
            "source": "test",
        },
        "bandwidth": {"bytes_per_s": 1, "utilisation": 1, "source": "test"},
        "transfer": {"latency_s": 0, "bytes_per_s": 1, "source": "test"},
        "scale": {"prefill": 1, "decode": 1, "source": "test"} | scale,
        "prefill": {"1": {"tokens": DENSE_MS["tokens"], "raw_ms": whole}},
        "decode": {"1": {"batch": [1, 100], "context_tokens": [100, 10_000], "raw_ms": [[11, 12], [20, 120]]}},
        "power": POWER,
    }
    return TableModel(Profile.model_validate_json(json.dumps(said | ({"dense": {"1": DENSE_MS}} if dense else {}))))


tokens = st.integers(0, 20_000)
new = st.integers(1, 20_000)
chunks = st.lists(st.tuples(new, tokens), min_size=1, max_size=4)
both = st.sampled_from([model(), model(dense=False)])


def mixed_s(perf: TableModel, parts: list[tuple[int, int]], batch: int, context: int) -> float:
    return step_model(perf, 1).mixed(parts, batch, perf.decode_step_s(batch, context, 1))


@given(both, new)
def test_one_prompt_alone_takes_its_prefill_time(perf: TableModel, prompt: int) -> None:
    steps = step_model(perf, 1)
    assert steps.prefill([(prompt, 0)]) == perf.prefill_s(prompt, 1)
    shared = steps.alone(prompt) if steps.dense is None else steps.dense(prompt) + steps.attention(0)
    assert shared + steps.attending(prompt, 0) == pytest.approx(perf.prefill_s(prompt, 1))


@given(new, tokens)
def test_a_prompt_in_two_chunks_pays_for_the_second_step_only(first: int, rest: int) -> None:
    steps = step_model(model(), 1)
    assert steps.dense is not None
    apart = steps.prefill([(first, 0)]) + steps.prefill([(rest, first)])
    extra = steps.dense(first) + steps.dense(rest) - steps.dense(first + rest) + steps.attention(0)
    assert apart == pytest.approx(steps.alone(first + rest) + extra)


def test_attention_of_prompts_adds_up_and_the_dense_part_is_shared() -> None:
    steps = step_model(model(), 1)
    assert steps.prefill([(1000, 0), (1000, 0)]) == pytest.approx(0.1 + 2 * 1.5e-3 - 0.5e-3, abs=2e-5)
    assert steps.prefill([(1000, 9000)]) > steps.prefill([(1000, 0)])


def test_without_a_dense_part_history_costs_what_the_whole_prompt_has_left() -> None:
    perf = model(dense=False)
    whole_s, left_s = perf.prefill_s(10_000, 1), perf.prefill_s(9000, 1) - perf.prefill_s(0, 1)
    assert step_model(perf, 1).prefill([(1000, 9000)]) == pytest.approx(whole_s - left_s)
    assert step_model(perf, 1).prefill([(500, 0), (500, 0)]) == pytest.approx(perf.prefill_s(1000, 1))


@given(both, chunks, st.integers(0, 300), st.integers(1, 20_000))
def test_a_mixed_step_is_no_faster_than_either_half_and_no_slower_than_both(
    perf: TableModel, parts: list[tuple[int, int]], batch: int, context: int
) -> None:
    steps, mixed = step_model(perf, 1), mixed_s(perf, parts, batch, context)
    prefill, decode = steps.prefill(parts), perf.decode_step_s(batch, context, 1) if batch else 0.0
    assert max(prefill, decode if steps.dense is not None else 0.0) <= mixed * (1 + 1e-9)
    assert mixed <= (prefill + decode) * (1 + 1e-9)


@given(both, chunks, st.tuples(new, tokens), st.integers(0, 300))
def test_more_to_prefill_never_takes_less(
    perf: TableModel, parts: list[tuple[int, int]], more: tuple[int, int], batch: int
) -> None:
    less = mixed_s(perf, parts, batch, 500)
    assert less <= mixed_s(perf, [*parts, more], batch, 500) * (1 + 1e-9)
    longer = [(parts[0][0] + more[0], parts[0][1]), *parts[1:]]
    assert less <= mixed_s(perf, longer, batch, 500) * (1 + 1e-9)


@given(both, chunks, st.integers(0, 300), st.integers(1, 20_000))
def test_an_engine_that_never_mixes_takes_the_time_of_two_steps(
    perf: TableModel, parts: list[tuple[int, int]], batch: int, context: int
) -> None:
    steps, decode_s = step_model(perf, 1, mixes=False), perf.decode_step_s(batch, context, 1) if batch else 0.0
    assert steps.mixed(parts, batch, decode_s) == pytest.approx(step_model(perf, 1).prefill(parts) + decode_s)


@given(both, chunks, st.integers(0, 300), st.integers(1, 20_000), st.booleans())
def test_chunks_added_one_by_one_make_the_mixed_step(
    perf: TableModel, parts: list[tuple[int, int]], batch: int, context: int, mixes: bool
) -> None:
    steps = step_model(perf, 1, mixes=mixes)
    decode_s = perf.decode_step_s(batch, context, 1) if batch else 0.0
    assume(not batch or decode_s >= steps.saved(sum(n for n, _ in parts), batch))
    total_s, before = decode_s, 0
    for n, earlier in parts:
        total_s += steps.added(n, earlier, before, batch)
        before += n
    assert total_s == pytest.approx(steps.mixed(parts, batch, decode_s))


@given(both, chunks, st.integers(0, 300), st.integers(1, 20_000))
def test_the_simulators_ticks_are_these_seconds(
    perf: TableModel, parts: list[tuple[int, int]], batch: int, context: int
) -> None:
    """But for rounding: each term is rounded by itself, and so is the slope of a decode step over its context."""
    took = StepTimes(perf, 1).mixed(parts, batch, batch * context)
    assert took / TICKS_PER_S == pytest.approx(mixed_s(perf, parts, batch, context), rel=1e-7)


def test_nothing_to_prefill_leaves_the_decode_step() -> None:
    assert mixed_s(model(), [], 7, 500) == model().decode_step_s(7, 500, 1)


def test_what_every_step_costs_is_added_once() -> None:
    plain, slower = model(), model(step_ms=2.0)
    assert slower.prefill_s(1000, 1) == pytest.approx(plain.prefill_s(1000, 1) + 2e-3)
    assert slower.decode_step_s(9, 500, 1) == pytest.approx(plain.decode_step_s(9, 500, 1) + 2e-3)
    step = [(800, 300), (200, 0)]
    assert step_model(slower, 1).prefill(step) == pytest.approx(step_model(plain, 1).prefill(step) + 2e-3)
    assert mixed_s(slower, step, 50, 500) == pytest.approx(mixed_s(plain, step, 50, 500) + 2e-3)


def test_a_factor_on_prefill_scales_its_dense_part_too() -> None:
    assert model(prefill=2.0).dense_s(1000, 1) == pytest.approx(0.1)


def test_power_is_what_the_file_says() -> None:
    power = model().power()
    assert power is not None
    assert power.model_dump(mode="json") == POWER
