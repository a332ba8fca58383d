"""What a step without decodes prefills, and which lengths the programme is solved for."""

from __future__ import annotations

import random

import pytest

from pdplugins.config import Config, parse
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs
from pdplugins.policies.fusion.plugin import build
from pdplugins.profiling.decisions import DECISIONS
from pdplugins.runtime.assembly import build_deployment

POOLS = {role: {"replicas": 1, "tp": 8} for role in ("prefill", "decode")}


@pytest.mark.parametrize(
    ("profile", "tp", "tokens"),
    [("h100/llama-3.1-70b-fp8", 2, 2048), ("h800/llama-3.1-8b", 1, 2048), ("h200/deepseek-r1", 8, 8192)],
)
def test_chunks_are_what_the_profile_prefills_fastest(profile: str, tp: int, tokens: int) -> None:
    """Experts are read in each step, however few tokens there are: large chunks pay."""
    pools = {role: {"replicas": 1, "tp": tp} for role in ("prefill", "decode")}
    slo = {"ttft_s": 1.0, "tpot_s": 0.05}
    deployment = build_deployment(parse({"slo": slo, "deployment": {"profile": profile, "gpu_budget": 16, **pools}}))
    assert Costs(FusionSettings(), deployment).chunk == tokens
    assert Costs(FusionSettings(step_tokens=1000), deployment).chunk == 1000
    assert Costs(FusionSettings(prefill_only_tokens=512), deployment).chunk == 512


def test_prompts_that_share_a_step_cost_less_than_alone() -> None:
    """What the programme counts on: under load a step without decodes is full."""
    deployment = build_deployment(parse({"deployment": {"profile": "h200/deepseek-r1", "gpu_budget": 16, **POOLS}}))
    costs = Costs(FusionSettings(), deployment)
    assert costs.share_s(1024) < 0.8 * costs.prefill_s(1024)
    assert costs.share_s(16_384) == costs.prefill_s(16_384)


def test_a_history_is_fetched_and_attended_over() -> None:
    deployment = build_deployment(parse({"deployment": {"profile": "h200/deepseek-r1", "gpu_budget": 16, **POOLS}}))
    costs = Costs(FusionSettings(), deployment)
    for tokens in (100, 16_384):
        fetched = costs.share_s(tokens) + deployment.perf.transfer_s(20_000)
        assert fetched < costs.share_s(tokens, 20_000) < fetched + costs.prefill_s(20_000)


def test_a_router_knows_most_speeds_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each speed that must be computed takes 20 us, a fifth of what a whole decision may. Lengths of answers vary."""
    computed, compute = [0], Costs._beside

    def counted(costs: Costs, decodes: int, mean_context: int, step_s: float) -> tuple[float, int, float, bool]:
        computed[0] += 1
        return compute(costs, decodes, mean_context, step_s)

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
