"""The load client of the live comparison counts what was in time, and nothing else; its profile is one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import fusion_live
import pytest

from benchmarks.rig import load
from benchmarks.rig.load import Ask, Heard, Slo
from pdplugins.config import load as load_config
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies
from tests.gateway.fake import FakeWorker
from tests.gateway.rig import stand

SLO = Slo(ttft_s=5.0, tpot_s=2.0)
IDLE = {
    "prefill": [5.0, 20.0, 40.0, 80.0, 160.0, 240.0],
    "decode": [[10.0, 11.0], [15.0, 17.0], [25.0, 28.0]],
    "mean_ttft_s": 0.06,
    "tpot_s": 0.011,
}


def offered(asks: list[Ask], slo: Slo, fault: str | None = None) -> list[Heard]:
    async def run() -> list[Heard]:
        async with stand("unified", "unified") as it:
            for worker in it.workers:
                assert isinstance(worker, FakeWorker)
                worker.faults.error_event = fault == "error"
                worker.faults.hang = fault == "hang"
            return await load.offer(it.gateway.url, asks, slo, seed=1)

    return asyncio.run(run())


@pytest.mark.moderate
def test_answers_that_come_whole_are_in_time() -> None:
    heard = offered(load.poisson(100, 0.2, seed=3), SLO)
    assert len(heard) > 5
    assert all(one.ttft_s is not None and one.tpot_s is not None for one in heard)
    found = load.scores(heard, SLO)
    assert found["attainment"] == found["ttft_attainment"] == found["tpot_attainment"] == 1
    assert found["whole"] == found["requests"] == len(heard)


@pytest.mark.parametrize("fault", ["error", "hang"])
def test_what_fails_or_never_comes_was_not_in_time(fault: str) -> None:
    heard = offered([Ask(0.0, 20, 4), Ask(0.01, 30, 4)], Slo(0.05, 0.01), fault)
    assert load.scores(heard, SLO)["whole"] == 0
    assert load.scores(heard, SLO)["attainment"] == 0


def test_both_objectives_must_hold() -> None:
    ask = Ask(0.0, 10, 10)
    heard = [Heard(ask, 1.0, 1.0), Heard(ask, 9.0, 1.0), Heard(ask, 1.0, 9.0), Heard(ask)]
    found = load.scores(heard, SLO)
    assert (found["attainment"], found["ttft_attainment"], found["tpot_attainment"]) == (0.25, 0.5, 0.5)


def test_traffic_is_what_its_rate_and_its_mean_request_say() -> None:
    asks = load.poisson(20, 100, seed=5)
    assert len(asks) / 100 == pytest.approx(20, rel=0.1)
    mean = fusion_live.MEAN
    assert sum(ask.prompt_tokens for ask in asks) / len(asks) == pytest.approx(mean.prompt_tokens, rel=0.1)
    assert sum(ask.output_tokens for ask in asks) / len(asks) == pytest.approx(mean.output_tokens, rel=0.1)
    assert asks == load.poisson(20, 100, seed=5)


def test_what_was_measured_is_a_config_whose_parts_all_build(tmp_path: Path) -> None:
    config = load_config(fusion_live.config(tmp_path, IDLE, Slo(0.3, 0.055)))
    deployment = build_deployment(config)
    policies = build_policies(config, deployment)
    assert None not in (policies.router(), policies.flow(), policies.batch_scheduler())
    assert (config.sglang.dual_role, deployment.slo.ttft_s) == (True, 0.3)
    assert deployment.perf.prefill_s(512, 1) == pytest.approx(0.08)


def test_fusion_is_compared_with_the_better_of_the_others_round_by_round() -> None:
    rows = [
        {"round": number, "system": name, "attainment": share}
        for number, shares in enumerate([(0.2, 0.1, 0.6), (0.3, 0.4, 0.4)])
        for name, share in zip(("co-located", "PD", "fusion"), shares, strict=True)
    ]
    found = json.loads(json.dumps(fusion_live.summary(rows)))
    assert found["over_best"] == {"mean": 2.0, "least": pytest.approx(1.0), "most": pytest.approx(3.0)}
    assert found["attainment"]["PD"] == {"mean": 0.25, "least": 0.1, "most": 0.4}
