"""What a step without decodes prefills, and which lengths the programme is solved for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.config import Config, parse
from pdplugins.policies._common import tightest_tpot_s
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs
from pdplugins.policies.fusion.plugin import build
from pdplugins.profiling.decisions import DECISIONS
from pdplugins.runtime.assembly import build_deployment, load_profile
from pdplugins.testing import deployment

DECODING = deployment(load_profile("a100/qwen2.5-14b"), any_role=True)
POOLS = {role: {"replicas": 1, "tp": 8} for role in ("prefill", "decode")}


@pytest.mark.parametrize(
    ("profile", "tp", "tokens"),
    [("h100/llama-3.1-70b-fp8", 2, 2048), ("h800/llama-3.1-8b", 1, 2048), ("h200/deepseek-r1", 8, 8192)],
)
def test_chunks_are_what_the_profile_prefills_fastest(profile: str, tp: int, tokens: int) -> None:
    """Experts are read in each step, however few tokens there are: large chunks pay."""
    pools = {role: {"replicas": 1, "tp": tp} for role in ("prefill", "decode")}
    slo = {"ttft_s": 1.0, "tpot_s": 0.05}
    built = build_deployment(parse({"slo": slo, "deployment": {"profile": profile, "gpu_budget": 16, **pools}}))
    assert Costs(FusionSettings(), built).chunk == tokens
    assert Costs(FusionSettings(step_tokens=1000), built).chunk == 1000
    assert Costs(FusionSettings(prefill_only_tokens=512), built).chunk == 512


@pytest.mark.parametrize(("ttft_s", "tokens"), [(1.0, 8192), (0.24, 2048), (0.1, 1024), (0.01, 256)])
def test_steps_are_short_where_the_ttft_is(ttft_s: float, tokens: int) -> None:
    """Prompts wait behind one step, and take one: with steps as long as the TTFT no prompt is ever in time."""
    on = {"profile": "h200/qwen3-235b-a22b-fp8", "gpu_budget": 16, **POOLS}
    built = build_deployment(parse({"slo": {"ttft_s": ttft_s}, "deployment": on}))
    assert Costs(FusionSettings(), built).chunk == tokens


def test_a_long_prompt_is_not_cut_for_a_short_ttft() -> None:
    """Its steps would take it longer: prompts that a step has in time were late on idle workers."""
    on = {"profile": "h200/deepseek-r1", "gpu_budget": 16, **POOLS}
    built = build_deployment(parse({"slo": {"ttft_s": 0.6, "tpot_s": 0.1}, "deployment": on}))
    costs = Costs(FusionSettings(), built)
    assert costs.chunk < 4500 <= costs.longest
    assert costs.prefill_s(4500) == pytest.approx(built.perf.prefill_s(4500, 8), rel=0.01)


def test_prompts_that_share_a_step_cost_less_than_alone() -> None:
    """What the programme counts on: under load a step without decodes is full."""
    built = build_deployment(parse({"deployment": {"profile": "h200/deepseek-r1", "gpu_budget": 16, **POOLS}}))
    costs = Costs(FusionSettings(), built)
    assert costs.share_s(1024) < 0.8 * costs.prefill_s(1024)
    assert costs.share_s(16_384) == costs.prefill_s(16_384)


def test_a_history_is_fetched_and_attended_over() -> None:
    built = build_deployment(parse({"deployment": {"profile": "h200/deepseek-r1", "gpu_budget": 16, **POOLS}}))
    costs = Costs(FusionSettings(), built)
    for tokens in (100, 16_384):
        fetched = costs.share_s(tokens) + built.perf.transfer_s(20_000)
        assert fetched < costs.share_s(tokens, 20_000) < fetched + costs.prefill_s(20_000)


def test_a_router_knows_most_speeds_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each speed that must be computed takes 20 us, a fifth of what a whole decision may. Lengths of answers vary."""
    computed, compute = [0], Costs._beside

    def counted(costs: Costs, *of: Any) -> tuple[float, int, float, bool]:
        computed[0] += 1
        return compute(costs, *of)

    monkeypatch.setattr(Costs, "_beside", counted)
    make = build(FusionSettings(), build_deployment(Config())).router
    assert make is not None
    decisions = DECISIONS["router"](make(), 64, random.Random(0))
    for _ in range(50):
        next(decisions)()
    first, computed[0] = computed[0], 0
    for _ in range(1000):
        next(decisions)()
    assert first > 0
    assert computed[0] < 10


@given(st.lists(st.floats(1e-3, 1.0), max_size=9), st.integers(0, 12))
def test_the_tightest_tpot_that_can_be_kept_stands_for_all(own: list[float], decodes: int) -> None:
    costs = Costs(FusionSettings(), DECODING)
    alone_s = costs.decode_s(decodes, 1000.0) if decodes else 0.0
    wanted = tightest_tpot_s(own, decodes, DECODING.slo.tpot_s, alone_s / costs.limit_s(1.0))
    assert costs.tightest_s(sorted(own), decodes, 1000 * decodes) == wanted
