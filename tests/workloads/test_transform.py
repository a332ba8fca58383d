"""What a run does to a trace: rate, clip, limit, merge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError, TraceError
from pdplugins.types import Round, TraceRequest
from pdplugins.workloads import transform
from pdplugins.workloads.transform import Transform

ROUND = st.builds(Round, st.floats(0, 9), st.integers(1, 300), st.integers(1, 99), st.none() | st.integers(0, 900))
REQUEST = st.builds(
    TraceRequest,
    st.floats(0, 99),
    st.integers(1, 900),
    st.integers(1, 900),
    rounds=st.lists(ROUND, max_size=4).map(tuple),
)


def test_a_trace_can_be_clipped_and_sped_up() -> None:
    requests = [TraceRequest(float(t), 1, 1) for t in range(4)]
    assert [r.arrival_s for r in transform.clip(requests, 2.0)] == [0.0, 1.0]
    assert [r.arrival_s for r in transform.scale(requests, 4.0)] == [0.0, 0.25, 0.5, 0.75]
    with pytest.raises(TraceError, match="must be above 0"):
        transform.scale(requests, 0.0)


def test_what_comes_later_begins_anew() -> None:
    trace = [TraceRequest(at_s, 10, 1) for at_s in (0.0, 4.0, 5.0, 9.0)]
    assert [request.arrival_s for request in transform.since(trace, 4.5)] == [0.5, 4.5]
    assert transform.since(trace, 0.0) == trace


def test_the_rate_is_that_of_the_whole_trace_and_the_clip_counts_at_that_rate() -> None:
    requests = [TraceRequest(float(t), 1, 1) for t in range(101)]
    assert [r.arrival_s for r in Transform(rate=10.1, clip_s=0.25).apply(requests)] == pytest.approx([0, 0.1, 0.2])
    assert len(Transform(max_requests=7).apply(requests)) == 7
    assert Transform().apply(requests) == requests


def test_a_rate_that_no_factor_gives_is_refused() -> None:
    """One request has no rate, and is left as it is."""
    with pytest.raises(TraceError, match="rate 10: all 3 requests of the trace arrive at one time"):
        Transform(rate=10).apply([TraceRequest(0.0, 1, 1)] * 3)
    assert Transform(rate=10).apply([TraceRequest(0.0, 1, 1)]) == [TraceRequest(0.0, 1, 1)]
    assert Transform(rate=10).apply([]) == []


@pytest.mark.moderate
@given(st.lists(REQUEST, max_size=5), st.integers(2, 1200))
def test_no_prompt_plus_output_is_longer_than_the_context(requests: list[TraceRequest], context: int) -> None:
    kept = Transform(max_context_tokens=context).apply(requests)
    assert len(kept) == len(requests)
    for before, after in zip(requests, kept, strict=True):
        assert all(isl >= 1 and osl >= 1 and isl + osl <= context for _, isl, osl in after.turns())
        assert after.rounds == before.rounds[: len(after.rounds)]
        if all(isl + osl <= context for _, isl, osl in before.turns()):
            assert after == before


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"clip_s": -1.0}, {"max_requests": 0}, {"rate": float("nan")}])
def test_an_option_that_cannot_be_is_one_line(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"trace options: {next(iter(options))}: must be"):
        Transform.of(**options)


def test_merged_traces_share_neither_blocks_nor_sessions() -> None:
    one = [TraceRequest(0.0, 9, 1, (0, 5)), TraceRequest(3.0, 9, 1, session="s0", rounds=(Round(1, 1, 1),))]
    other = [TraceRequest(1.0, 9, 1, (0,)), TraceRequest(2.0, 9, 1, session="s0", rounds=(Round(1, 1, 1),))]
    merged = transform.merge([one, other])
    assert [request.arrival_s for request in merged] == [0.0, 1.0, 2.0, 3.0]
    assert [request.blocks for request in merged[:2]] == [(0, 5), (6,)]
    assert [request.session for request in merged[2:]] == ["1.s0", "0.s0"]


def test_a_session_counts_as_all_its_rounds() -> None:
    assert transform.total([TraceRequest(0, 1, 1, rounds=(Round(1, 1, 1),) * 2), TraceRequest(0, 1, 1)]) == 4
