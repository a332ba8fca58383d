"""Interpolation: exact at the points, linear between and beyond, and more work never takes less time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import Curve, Surface, TableModel
from pdplugins.resources import data_dir
from pdplugins.types import Role

times = st.floats(0.1, 1e4)
axis = (
    st.lists(st.floats(1, 1e5), min_size=2, max_size=6, unique=True)
    .map(sorted)
    .filter(lambda xs: all(b - a > 1e-3 * b for a, b in pairwise(xs)))
)
work = st.floats(0, 1e6)


@pytest.fixture(scope="module")
def modelled() -> TableModel:
    return TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))


@pytest.fixture(scope="module")
def table_1() -> TableModel:
    return TableModel(read_profile(data_dir("profiles") / "h100" / "llama-70b-fp8-dopd-table-1.json"))


def test_a_curve_is_linear_between_and_beyond_its_points() -> None:
    curve = Curve([100, 200, 400], [10, 20, 60])
    assert [curve(x) for x in (100, 150, 200, 300, 400, 600)] == pytest.approx([10, 15, 20, 40, 60, 100])


def test_below_a_curve_half_of_its_first_time_is_left() -> None:
    assert Curve([100, 200], [10, 12])(0) == pytest.approx(8)
    assert Curve([100, 200], [10, 90])(0) == pytest.approx(5)
    assert Curve([100, 200], [10, 90])(-7) == pytest.approx(5)


def test_an_uneven_table_becomes_its_upper_envelope() -> None:
    curve = Curve([1, 2, 3, 4], [10, 30, 20, 40])
    assert [curve(x) for x in (1, 2, 3, 4)] == pytest.approx([10, 30, 30, 40])


def test_a_surface_is_bilinear() -> None:
    surface = Surface([1, 3], [10, 30], [[1, 2], [3, 6]])
    assert surface(1, 10) == pytest.approx(1)
    assert surface(3, 30) == pytest.approx(6)
    assert surface(2, 20) == pytest.approx(3)


@given(axis, st.data())
def test_a_curve_never_falls(xs: list[float], data: st.DataObject) -> None:
    curve = Curve(xs, data.draw(st.lists(times, min_size=len(xs), max_size=len(xs))))
    a, b = sorted(data.draw(st.tuples(work, work)))
    assert 0 < curve(a) <= curve(b) * (1 + 1e-9)


@given(axis, axis, st.data())
def test_a_surface_never_falls_in_either_direction(xs: list[float], ys: list[float], data: st.DataObject) -> None:
    row = st.lists(times, min_size=len(ys), max_size=len(ys))
    surface = Surface(xs, ys, data.draw(st.lists(row, min_size=len(xs), max_size=len(xs))))
    a, b = sorted(data.draw(st.tuples(work, work)))
    c, d = sorted(data.draw(st.tuples(work, work)))
    assert 0 < surface(a, c) <= surface(b, d) * (1 + 1e-9)


def test_table_1_of_the_paper_comes_back_as_printed(table_1: TableModel) -> None:
    printed_ms = {100: (36, 28, 45, 47), 200: (46, 31, 46, 49), 1200: (193, 35, 50, 57), 1700: (269, 37, 53, 61)}
    for tokens, (prefill, *decode) in printed_ms.items():
        assert table_1.prefill_s(tokens, 1) == pytest.approx(prefill / 1e3)
        for batch, step in zip((104, 200, 248), decode, strict=True):
            assert table_1.decode_step_s(batch, tokens, 2) == pytest.approx(step / 1e3)


def test_the_modelled_profile_is_near_table_1(modelled: TableModel, table_1: TableModel) -> None:
    for tokens in (700, 1200, 1700):
        assert modelled.prefill_s(tokens, 1) == pytest.approx(table_1.prefill_s(tokens, 1), rel=0.10)
    for batch, tokens in ((104, 700), (248, 700), (248, 1700)):
        assert modelled.decode_step_s(batch, tokens, 2) == pytest.approx(
            table_1.decode_step_s(batch, tokens, 2), rel=0.15
        )


def test_the_modelled_profile_covers_tp_1_2_and_4_for_both_roles(modelled: TableModel) -> None:
    for role in Role:
        assert modelled.tp_sizes(role) == (1, 2, 4)
    assert modelled.prefill_s(4000, 1) > modelled.prefill_s(4000, 2) > modelled.prefill_s(4000, 4)
    assert (
        modelled.decode_step_s(64, 1000, 1) > modelled.decode_step_s(64, 1000, 2) > modelled.decode_step_s(64, 1000, 4)
    )


def test_eq_11_leaves_no_negative_memory(modelled: TableModel) -> None:
    assert modelled.kv_capacity_tokens(2) == pytest.approx(250_000, rel=0.01)
    assert 0 <= modelled.kv_capacity_tokens(1) < modelled.kv_capacity_tokens(2) < modelled.kv_capacity_tokens(4)


def test_eq_12_grows_with_the_step_and_the_gpus(modelled: TableModel) -> None:
    assert modelled.kv_bandwidth_tokens(0.08, 2) == pytest.approx(0.08 * 0.6 * 2 * 3.35e12 / 327_680)
    assert modelled.kv_bandwidth_tokens(0.04, 4) == pytest.approx(modelled.kv_bandwidth_tokens(0.08, 2))


def test_a_transfer_costs_its_latency_and_its_bytes(modelled: TableModel) -> None:
    assert modelled.transfer_s(0) == pytest.approx(0.015)
    assert modelled.transfer_s(1000) == pytest.approx(0.015 + 1000 * 327_680 / 64e9)
