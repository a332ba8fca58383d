"""Eq. 11-16: the paper's own answers from the paper's own timings, and the choice of tensor-parallel sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.dopd.ratio import (
    choose_tp,
    concurrency_within_tpot,
    decode_concurrency,
    mean_context_tokens,
    pd_ratio,
)
from pdplugins.resources import data_dir
from pdplugins.types import Slo

SLO = Slo(ttft_s=2.0, tpot_s=0.08)


def profile(name: str) -> TableModel:
    return TableModel(read_profile(data_dir("profiles") / "h100" / f"{name}.json"))


@pytest.fixture(scope="module")
def table_1() -> TableModel:
    return profile("llama-70b-fp8-dopd-table-1")


@pytest.fixture(scope="module")
def modelled() -> TableModel:
    return profile("llama-3.1-70b-fp8")


@pytest.mark.parametrize(
    ("isl", "osl", "stated_cc", "stated_ratio"),
    [
        pytest.param(1000, 150, 235, 4.58, id="Fig. 6a: 1000/150"),
        pytest.param(3000, 300, 78, 3.18, id="Fig. 6b: 3000/300, beyond the table"),
    ],
)
def test_table_1_gives_the_ratios_that_the_paper_states(
    table_1: TableModel, isl: int, osl: int, stated_cc: float, stated_ratio: float
) -> None:
    context = mean_context_tokens(isl, osl)
    for cc_d in (stated_cc, decode_concurrency(table_1, SLO, isl, osl, tp=2, max_batch=256)):
        ratio = pd_ratio(table_1.prefill_s(isl, 1), table_1.decode_step_s(cc_d, context, 2), osl, cc_d)
        assert cc_d == pytest.approx(stated_cc, rel=0.10)
        assert ratio == pytest.approx(stated_ratio, rel=0.10)


def test_each_bound_of_the_concurrency_binds_in_turn(modelled: TableModel) -> None:
    long = decode_concurrency(modelled, SLO, 3000, 300, tp=2, max_batch=256)
    assert long == pytest.approx(modelled.kv_capacity_tokens(2) / 3150)  # Eq. 11
    hasty = decode_concurrency(modelled, Slo(2.0, 0.01), 3000, 300, tp=2, max_batch=256)
    assert hasty == pytest.approx(modelled.kv_bandwidth_tokens(0.01, 2) / 3150)  # Eq. 12
    assert decode_concurrency(modelled, SLO, 100, 100, tp=2, max_batch=256) == 256  # Eq. 14


def test_a_request_that_does_not_fit_still_counts_as_one(modelled: TableModel) -> None:
    assert decode_concurrency(modelled, SLO, 1_000_000, 10, tp=1, max_batch=256) == 1


@given(isl=st.floats(1, 30_000), limit=st.floats(1, 512), tpot_s=st.floats(0.005, 0.2))
def test_the_batch_inside_the_tpot_slo_is_the_largest(isl: float, limit: float, tpot_s: float) -> None:
    perf, slo = profile("llama-3.1-70b-fp8"), Slo(2.0, tpot_s)
    batch = concurrency_within_tpot(perf, slo, isl, 2, limit)
    assert 1 <= batch <= max(limit, 1)
    if batch > 1:
        assert perf.decode_step_s(batch, isl, 2) <= tpot_s
    if batch < limit - 1:
        assert perf.decode_step_s(batch + 1, isl, 2) > tpot_s


def test_the_papers_tensor_parallel_sizes_are_chosen_for_its_workload(modelled: TableModel) -> None:
    assert choose_tp(modelled, SLO, 1000, 150, max_batch=256) == (1, 2)


def test_longer_prompts_want_larger_workers(modelled: TableModel) -> None:
    prefill_tp, decode_tp = choose_tp(modelled, SLO, 12_000, 350, max_batch=256)
    assert prefill_tp == 2  # 3 s on one GPU
    assert decode_tp == 4


def test_an_slo_that_no_size_meets_gets_the_fastest(modelled: TableModel) -> None:
    assert choose_tp(modelled, Slo(0.001, 0.001), 1000, 150, max_batch=256) == (4, 4)


def test_prefill_tp_stays_small_where_communication_eats_the_gain(modelled: TableModel) -> None:
    """Eq. 16: twice the GPUs prefill less than twice as fast, so the fleet serves more with TP 1."""
    one, two = modelled.prefill_s(1000, 1), modelled.prefill_s(1000, 2)
    assert two < one < 2 * two
    assert choose_tp(modelled, SLO, 1000, 150, max_batch=256)[0] == 1


def test_the_kv_cache_that_an_engine_states_stands_in_for_eq_11(modelled: TableModel) -> None:
    stated = decode_concurrency(modelled, SLO, 3000, 300, tp=2, max_batch=256, kv_tokens=315_000)
    assert stated == pytest.approx(100)  # 315,000 tokens over 3000 + 300 / 2
    assert decode_concurrency(modelled, SLO, 3000, 300, tp=2, max_batch=64, kv_tokens=315_000) == 64
