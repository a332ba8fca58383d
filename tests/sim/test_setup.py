"""The `simulation:` section reaches the simulator."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pdplugins.config import SimulationConfig, parse
from pdplugins.errors import ConfigError
from pdplugins.policies.stock.routers import RoundRobin, RouterSettings
from pdplugins.results import Scaling
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.records import Record
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.report.misses import missed_of
from pdplugins.sim.run.setup import sim_settings
from pdplugins.types import Placement, Request, Role, TraceRequest, WorkerView
from pdplugins.verdict import Cause

OTHER = "h100/llama-3.1-70b-fp8"


def settings_for(**section: object) -> SimSettings:
    config = parse({"deployment": {"gpu_budget": 8}, "simulation": section})
    return sim_settings(config, build_deployment(config))


def test_every_key_is_optional_and_the_defaults_are_those_of_the_settings() -> None:
    assert settings_for() == SimSettings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("overlap", True), ("history", "recompute"), ("flip", "label"), ("flip_s", 2.5), ("when_full", "wait"),
        ("late_handoff_s", 0.5), ("handoff_timeout_s", 9.0), ("polled_handoff", True),
        ("late_step_s", 0.1), ("late_step_token_s", 1e-5),
        ("retries", 0), ("predict", "true_length"), ("kv_tokens", 5000),
    ],
)  # fmt: skip
def test_a_key_reaches_the_setting_of_its_name(key: str, value: object) -> None:
    assert getattr(settings_for(**{key: value}), key) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("order", "prefill_first"),
        ("step_tokens", 100),
        ("watermark", 0.2),
        ("whole_prompts", True),
        ("block_tokens", 16),
        ("mixed_step_scale", 1.2),
        ("begin_s", 0.01),
    ],
)
def test_a_key_reaches_the_engines(key: str, value: object) -> None:
    assert getattr(settings_for(**{key: value}).engine, key) == value


def test_no_setting_is_out_of_reach() -> None:
    """`prefill`, `decode`, `max_batch`, `mixed_steps` and `power` come from the deployment and the profile."""
    keys = {"hardware": "prefill_profile"}
    settable = {*SimulationConfig.model_fields, "prefill", "decode", "max_batch", "mixed_steps", "power", "engine"}
    for field in (*fields(SimSettings), *fields(EngineSettings)):
        assert keys.get(field.name, field.name) in settable


def test_workers_on_other_gpus_at_start() -> None:
    settings = settings_for(extra=[{"role": "decode", "tp": 1, "count": 2}], decode_profile=OTHER)
    assert [(role, hardware.tp) for role, hardware in settings.extra] == [(Role.DECODE, 1)] * 2
    assert set(settings.hardware) == {Role.DECODE}


def test_all_workers_at_start_are_there_at_the_start_of_the_verdict() -> None:
    """A planner that takes one of three away starts none, though it leaves more than the pools have."""
    extra = [{"role": "prefill", "tp": 1, "count": 2}]
    config = parse({"planner": "threshold", "simulation": {"extra": extra}})
    fewer = [Scaling(at_s=300.0, prefill=2, decode=1, reason="two are enough")]
    late = [Record("0", 301.0, 100, 10, 9.0, 0.01, 0.01, 311.0, "p0", "d0")]
    outcome = cast("Any", SimpleNamespace(scaling=fewer, records=late))
    assert missed_of(outcome, config).causes == {Cause.WAITED: 1}


def test_a_round_whose_history_is_cached_is_not_called_too_long() -> None:
    """Most of its prompt need not be computed, so it was late because it waited."""
    late = Record("0", 301.0, 100_000, 10, 9.0, 0.01, 0.01, 311.0, "p0", "d0", cached_tokens=99_000)
    for record, cause in ((late, Cause.WAITED), (late._replace(cached_tokens=0), Cause.HOPELESS)):
        outcome = cast("Any", SimpleNamespace(scaling=[], records=[record]))
        assert missed_of(outcome, parse({})).causes == {cause: 1}


def test_a_prompt_that_other_gpus_prefill_in_time_is_not_called_too_long() -> None:
    late = Record("0", 301.0, 40_000, 10, 9.0, 0.01, 0.01, 311.0, "p0", "d0")
    outcome = cast("Any", SimpleNamespace(scaling=[], records=[late]))
    slow = {"deployment": {"profile": "a100/llama-3.1-8b", "prefill": {"tp": 1}, "decode": {"tp": 1}}}
    fast = {"extra": [{"role": "prefill", "tp": 1, "profile": "h100/llama-3.1-8b"}]}
    causes = [[*missed_of(outcome, parse(slow | more)).causes] for more in ({}, {"simulation": fast})]
    assert causes == [[Cause.HOPELESS], [Cause.WAITED]]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"extra": [{"role": "decode", "tp": 3}]},
            r"simulation\.extra: profile .* has no TP 3 for decode; it has 1, 2",
        ),
        ({"extra": [{"role": "prefill", "count": 9}]}, r"simulation\.extra: .* need 12 GPUs, gpu_budget is 8"),
        (
            {"deaths": [{"at_s": 1, "worker": "d5"}]},
            r"simulation\.deaths: there is no worker 'd5'; .* p0\.\.p0, d0\.\.d0$",
        ),
        ({"handoff_timeout_s": 1e-15}, r"simulation\.handoff_timeout_s: .* 0\.01"),  # an event for each look
        ({"late_handoff_s": 1e9}, r"simulation\.late_handoff_s: .* 60"),
        ({"order": "any"}, r"simulation\.order: .*'decode_first' or 'prefill_first'"),
        ({"flips": 1}, r"unknown key 'simulation\.flips'; valid keys here are begin_s, block_tokens, deaths"),
    ],
)
def test_what_cannot_be_is_one_line(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_for(**section)


def test_only_the_death_of_the_worker_that_decodes_it_fails_a_request() -> None:
    from pdplugins.sim.run.simulate import simulate  # noqa: PLC0415 - the command's own way

    def run(*deaths: str) -> RunOutcome:
        simulation = {"deaths": [{"at_s": 0.5, "worker": worker} for worker in deaths], "retries": 0}
        pools = {"gpu_budget": 8, "prefill": {"replicas": 1}, "decode": {"replicas": 2}}
        config = parse({"deployment": pools, "router": "least-loaded", "simulation": simulation})
        return simulate(config, [TraceRequest(0.0, 1000, 400)], trace_name="one", command="none")[1]

    decodes = run().records[0].decode_worker
    (other,) = {"d0", "d1"} - {decodes}
    assert run(other).records[0].error is None
    assert run(str(decodes)).records[0].error is not None


@pytest.mark.parametrize(("predict", "told"), [("true_length", [400, 7]), ("nothing", [None, None])])
def test_routers_are_told_the_length_of_the_answer_only_where_predict_says_so(
    predict: str, told: list[int | None]
) -> None:
    heard = []

    class Asked(RoundRobin):
        def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
            heard.append(request.predicted_output_tokens)
            return super().on_arrival(request, workers, now_s)

    config = parse({"deployment": {"gpu_budget": 8}, "simulation": {"predict": predict}})
    deployment = build_deployment(config)
    router = Asked(RouterSettings(), deployment)
    Simulation(deployment, sim_settings(config, deployment), router).run([Arrival(0.0, 1000, 400), Arrival(1.0, 50, 7)])
    assert heard == told


def test_a_request_that_starts_again_is_told_to_have_the_rest_of_its_answer_left() -> None:
    """What it has is part of its prompt by then."""
    heard: list[tuple[int, int | None]] = []

    class Asked(RoundRobin):
        def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
            heard.append((request.prompt_tokens, request.predicted_output_tokens))
            return super().on_arrival(request, workers, now_s)

    simulation = {"predict": "true_length", "deaths": [{"at_s": 3.0, "worker": "d0"}, {"at_s": 3.0, "worker": "d1"}]}
    config = parse({"deployment": {"gpu_budget": 16, "decode": {"replicas": 3}}, "simulation": simulation})
    deployment = build_deployment(config)
    router = Asked(RouterSettings(), deployment)
    Simulation(deployment, sim_settings(config, deployment), router).run([Arrival(0.0, 1000, 300)])
    first, *again = heard
    assert first == (1000, 300)
    assert again
    assert all(prompt > 1000 and prompt + (left or 0) == 1300 for prompt, left in again)


def test_a_worker_that_is_not_there_to_die_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Planners start workers, so a name may be of one that comes later, or never."""
    from pdplugins.sim.run.simulate import simulate  # noqa: PLC0415 - the command's own way

    deaths = [{"at_s": 0.5, "worker": "d9"}]
    config = parse({"planner": "threshold", "simulation": {"deaths": deaths}})
    result, _ = simulate(config, [TraceRequest(0.0, 1000, 400)], trace_name="one", command="none")
    assert result.requests.failed == 0
    assert result.counts["deaths_missed"] == 1
    assert "there is no worker d9 at 0.5 s" in caplog.text


def test_every_key_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs/simulator.md").read_text()
    assert [key for key in SimulationConfig.model_fields if f"`{key}`" not in page] == []
    assert all(field.description for field in SimulationConfig.model_fields.values())


@pytest.mark.parametrize(
    "own", [{}, {"extra": [{"role": "prefill", "tp": 1, "profile": "h100/llama-70b-fp8-dopd-table-1"}]}]
)
def test_a_profile_without_times_of_both_phases_of_a_worker_is_refused(own: dict[str, object]) -> None:
    """A shipped one has the paper's table and nothing else: prefill of one GPU, decode of two."""
    measured = {} if own else {"profile": "h100/llama-70b-fp8-dopd-table-1"}
    config = parse({"deployment": measured, "simulation": own})
    with pytest.raises(
        ConfigError, match=r"has TP 1 in one phase only, and a simulated worker may do both; it has no size"
    ):
        sim_settings(config, build_deployment(config))
