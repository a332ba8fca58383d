"""Steps of several chunks, with history and with decodes, as profiles/README.md writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.perf.profile import Profile
from pdplugins.perf.table import TableModel

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


@given(both, new)
def test_one_prompt_alone_takes_its_prefill_time(perf: TableModel, prompt: int) -> None:
    assert perf.prefill_step_s([(prompt, 0)], 1) == pytest.approx(perf.prefill_s(prompt, 1))


@given(new, tokens)
def test_a_prompt_in_two_chunks_pays_for_the_second_step_only(first: int, rest: int) -> None:
    perf = model()
    apart = perf.prefill_step_s([(first, 0)], 1) + perf.prefill_step_s([(rest, first)], 1)
    extra = perf.dense_s(first, 1) + perf.dense_s(rest, 1) - perf.dense_s(first + rest, 1)
    extra += perf.prefill_s(0, 1) - perf.dense_s(0, 1)
    assert apart == pytest.approx(perf.prefill_s(first + rest, 1) + extra)


def test_attention_of_prompts_adds_up_and_the_dense_part_is_shared() -> None:
    perf = model()
    assert perf.prefill_step_s([(1000, 0), (1000, 0)], 1) == pytest.approx(0.1 + 2 * 1.5e-3 - 0.5e-3, abs=2e-5)
    assert perf.prefill_step_s([(1000, 9000)], 1) - perf.dense_s(1000, 1) > perf.prefill_s(1000, 1) - perf.dense_s(
        1000, 1
    )


@given(both, chunks, st.integers(0, 300), st.integers(1, 20_000))
def test_a_mixed_step_is_no_faster_than_either_half_and_no_slower_than_both(
    perf: TableModel, parts: list[tuple[int, int]], batch: int, context: int
) -> None:
    mixed = perf.mixed_step_s(parts, batch, context, 1)
    prefill, decode = perf.prefill_step_s(parts, 1), perf.decode_step_s(batch, context, 1) if batch else 0.0
    assert max(prefill, decode if perf.has_dense(1) else 0.0) <= mixed * (1 + 1e-9)
    assert mixed <= (prefill + decode) * (1 + 1e-9)


@given(both, chunks, st.tuples(new, tokens), st.integers(0, 300))
def test_more_to_prefill_never_takes_less(
    perf: TableModel, parts: list[tuple[int, int]], more: tuple[int, int], batch: int
) -> None:
    less = perf.mixed_step_s(parts, batch, 500, 1)
    assert less <= perf.mixed_step_s([*parts, more], batch, 500, 1) * (1 + 1e-9)
    longer = [(parts[0][0] + more[0], parts[0][1]), *parts[1:]]
    assert less <= perf.mixed_step_s(longer, batch, 500, 1) * (1 + 1e-9)


def test_nothing_to_prefill_leaves_the_decode_step() -> None:
    assert model().mixed_step_s([], 7, 500, 1) == model().decode_step_s(7, 500, 1)


def test_what_every_step_costs_is_added_once() -> None:
    plain, slower = model(), model(step_ms=2.0)
    assert slower.prefill_s(1000, 1) == pytest.approx(plain.prefill_s(1000, 1) + 2e-3)
    assert slower.decode_step_s(9, 500, 1) == pytest.approx(plain.decode_step_s(9, 500, 1) + 2e-3)
    step = [(800, 300), (200, 0)]
    assert slower.prefill_step_s(step, 1) == pytest.approx(plain.prefill_step_s(step, 1) + 2e-3)
    assert slower.mixed_step_s(step, 50, 500, 1) == pytest.approx(plain.mixed_step_s(step, 50, 500, 1) + 2e-3)


def test_a_factor_on_prefill_scales_its_dense_part_too() -> None:
    assert model(prefill=2.0).dense_s(1000, 1) == pytest.approx(0.1)


def test_power_is_what_the_file_says() -> None:
    power = model().power
    assert power is not None
    assert power.model_dump(mode="json") == POWER
