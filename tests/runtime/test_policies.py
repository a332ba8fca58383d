"""Policies are built from a config: by name, as parts of a bundle, or as all parts of a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from pdplugins import cli, hookimpl
from pdplugins import config as configs
from pdplugins.config import Config
from pdplugins.errors import ConfigError, PluginError
from pdplugins.policies.stock.flow import FcfsSettings
from pdplugins.registry import Plugin, Registry, default_registry
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.policies import Policies, build_policies
from pdplugins.runtime.replaying import verified
from pdplugins.sim.run.options import scale_pools
from pdplugins.types import Bundle, Deployment, PlannerView, Pool, Register, ScalePlan


class DuoSettings(BaseModel, extra="forbid"):
    """Settings of the bundle ``duo``."""

    workers: int = 2
    seed: int = 0


@dataclass
class Core:
    """What the parts of the bundle share."""

    settings: DuoSettings
    deployment: Deployment
    built: list[str] = field(default_factory=list)


@dataclass
class Part:
    """Any part of the bundle."""

    core: Core
    kind: str
    interval_s: float = 5.0

    def plan(self, view: PlannerView) -> ScalePlan:
        return ScalePlan(self.core.settings.workers, 1, "duo")


def duo(settings: DuoSettings, deployment: Deployment) -> Bundle:
    core = Core(settings, deployment)

    def part(kind: str) -> Callable[[], Any]:
        def build() -> Part:
            core.built.append(kind)
            return Part(core, kind)

        return build

    return Bundle(planner=part("planner"), router=part("router"), batch_scheduler=part("batch_scheduler"))


@hookimpl
def pd_register_bundles(register: Register) -> None:
    register("duo", duo, DuoSettings)
    register("hollow", lambda settings, deployment: Bundle(), DuoSettings)
    register("wrong", lambda settings, deployment: None, DuoSettings)
    register("static", duo, DuoSettings)  # a planner has this name too


@pytest.fixture
def known(scripted: Registry) -> Iterator[Registry]:
    """The process's own registry, with some bundles."""
    module: Any = type("bundles", (), {"pd_register_bundles": staticmethod(pd_register_bundles)})
    scripted.add(Plugin("bundles", "tests", "0"), module)
    return scripted


def parsed(**choices: Any) -> Config:
    return configs.parse({"deployment": {"profile": "flat"}, **choices})


def policies(**choices: Any) -> Policies:
    config = parsed(**choices)
    return build_policies(config, build_deployment(config))


def test_a_config_that_picks_nothing_builds_nothing(known: Registry) -> None:
    built = policies()
    assert (built.planner(), built.router(), built.flow(), built.batch_scheduler(), built.power()) == (None,) * 5


def test_each_policy_is_built_once_by_its_name(known: Registry) -> None:
    built = policies(
        planner={"name": "static", "prefill": 3}, router="round-robin", flow="fcfs", batch_scheduler="dynaserve"
    )
    planner = built.planner()
    assert type(planner).__name__ == "StaticPlanner"
    assert planner is built.planner()
    assert type(built.router()).__name__ == "RoundRobin"
    assert type(built.flow()).__name__ == "FirstComeFirstServed"
    scheduler = built.batch_scheduler()
    assert scheduler is not None
    assert scheduler() is not scheduler(), "one for each engine"


def test_a_bundle_gives_all_its_parts_one_core(known: Registry) -> None:
    built = policies(bundle={"name": "duo", "workers": 3})
    planner: Any = built.planner()
    router: Any = built.router()
    scheduler: Any = built.batch_scheduler()
    parts = [planner, router, scheduler(), scheduler()]
    assert [part.kind for part in parts] == ["planner", "router", "batch_scheduler", "batch_scheduler"]
    assert all(part.core is planner.core for part in parts)
    assert built.planner() is planner
    assert planner.core.built == ["planner", "router", "batch_scheduler", "batch_scheduler"]
    assert planner.core.settings.workers == 3
    assert (built.flow(), built.power()) == (None, None)


def test_what_a_config_picks_by_name_comes_before_the_bundles_part(known: Registry) -> None:
    built = policies(bundle="duo", router="round-robin")
    assert type(built.router()).__name__ == "RoundRobin"
    assert isinstance(built.planner(), Part)


def test_a_part_of_a_bundle_may_be_picked_alone(known: Registry) -> None:
    built = policies(planner={"name": "duo", "workers": 4})
    planner: Any = built.planner()
    assert (planner.kind, planner.core.settings.workers) == ("planner", 4)
    assert built.router() is None


def test_parts_of_one_bundle_that_are_picked_one_by_one_share_its_core(known: Registry) -> None:
    built = policies(planner={"name": "duo", "workers": 4}, router="duo")
    planner: Any = built.planner()
    router: Any = built.router()
    assert router.core is planner.core
    assert router.core.settings.workers == 4


def test_two_processes_have_two_cores(known: Registry) -> None:
    first: Any = policies(bundle="duo").planner()
    second: Any = policies(bundle="duo").planner()
    assert first.core is not second.core


def test_a_policy_of_that_name_comes_before_a_bundle(known: Registry) -> None:
    assert type(policies(planner="static").planner()).__name__ == "StaticPlanner"
    assert isinstance(policies(router="static").router(), Part)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"bundle": "duoo"},
            r"config: bundle: there is no 'duoo'; choose from duo, fusion, hollow, static, wrong; did you mean duo\?$",
        ),
        ({"flow": "duoo"}, r"flow: there is no 'duoo'; choose from fcfs, or a bundle that has one: duo, fusion"),
        ({"bundle": {"name": "duo", "wokers": 1}}, r"bundle duo: unknown key 'wokers'; valid keys here are seed"),
        ({"router": {"name": "duo", "wokers": 1}}, r"router duo: unknown key 'wokers'; valid keys here are seed"),
        (
            {"planner": {"name": "duo", "workers": 1}, "bundle": {"name": "duo", "workers": 2}},
            r"config: planner and bundle give the bundle 'duo' different settings; give them once$",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(known: Registry, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parsed(**choices)
    assert "\n" not in str(caught.value)


def test_a_part_that_a_bundle_does_not_have_is_said_with_those_it_has(known: Registry) -> None:
    with pytest.raises(ConfigError, match=r"^flow: the bundle 'duo' has none; it has planner, router, batch_sched"):
        policies(flow="duo").flow()
    with pytest.raises(ConfigError, match=r"^flow: the bundle 'hollow' has none; it has no part at all$"):
        policies(flow="hollow").flow()


def test_a_factory_that_makes_no_bundle_is_named(known: Registry) -> None:
    with pytest.raises(PluginError, match=r"plugin 'bundles' of tests 0: the factory of bundle 'wrong' made a None"):
        policies(bundle="wrong").planner()


def test_the_same_settings_in_two_places_are_no_conflict(known: Registry) -> None:
    twice = {"name": "duo", "workers": 2}
    assert parsed(planner=twice, router=twice, bundle="duo").bundle is not None


def test_pdplugins_config_prints_every_default(known: Registry, tmp_path: Any) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("{bundle: {name: duo, workers: 5}, router: duo, flow: fcfs}")
    printed = yaml.safe_load(CliRunner().invoke(cli.app, ["config", str(path)]).stdout)
    assert printed["bundle"] == printed["router"] == {"name": "duo", "workers": 5, "seed": 0}
    assert printed["flow"] == {"name": "fcfs", **FcfsSettings().model_dump()}
    assert configs.resolved(configs.parse(printed)) == printed


def test_pdplugins_plugins_lists_flows_and_bundles(known: Registry) -> None:
    listed = CliRunner().invoke(cli.app, ["plugins", "--json"]).stdout
    rows = {(row["kind"], row["name"]) for row in yaml.safe_load(listed)}
    assert {("flow", "fcfs"), ("bundle", "duo")} <= rows


def test_a_safe_planner_may_be_a_part_of_the_bundle_of_its_process(known: Registry) -> None:
    config = parsed(bundle="duo")
    built = build_policies(config, build_deployment(config))
    router: Any = built.router()
    planner: Any = build_safe_planner(config, policies=built).policy
    assert planner.core is router.core
    other: Any = build_safe_planner(config).policy
    assert other.core is not router.core


def test_a_decision_log_of_a_bundles_planner_replays(known: Registry, tmp_path: Any) -> None:
    config = parsed(bundle={"name": "duo", "workers": 3})
    planner = build_safe_planner(config, decision_log=tmp_path / "d.jsonl")
    assert planner.plan(PlannerView(0.0, None, Pool(1), Pool(1))).prefill == 3
    planner.close()
    assert verified(tmp_path / "d.jsonl") == (True, ["run 1: 1 decisions, the same again"])


def test_without_a_planner_there_is_none_to_make_safe(known: Registry) -> None:
    with pytest.raises(ConfigError, match="planner: none chosen; add for example 'planner: dopd'"):
        build_safe_planner(parsed(bundle="hollow"))


@pytest.mark.parametrize(("pools", "scaled"), [((0, 2), (0, 4)), ((3, 0), (6, 0))])
def test_a_single_pool_grows_with_the_gpus(scripted: Registry, pools: tuple[int, int], scaled: tuple[int, int]) -> None:
    sizes = {"prefill": {"replicas": pools[0], "tp": 1}, "decode": {"replicas": pools[1], "tp": 2}}
    config = parsed(simulation={"flip": "label"}, deployment={"profile": "flat", "gpu_budget": 8, **sizes})
    section = scale_pools(config, 16)["deployment"]
    assert (section["prefill"]["replicas"], section["decode"]["replicas"]) == scaled


@pytest.mark.parametrize(
    ("section", "any_role"),
    [
        ({}, False),
        ({"simulation": {"flip": "label"}}, True),
        ({"simulation": {"flip": "drain"}}, False),
        ({"sglang": {"dual_role": True}}, True),
    ],
)
def test_a_deployment_says_whether_any_worker_does_both_phases(
    scripted: Registry, section: dict[str, Any], any_role: bool
) -> None:
    assert build_deployment(parsed(**section)).any_role is any_role


def test_a_role_may_start_without_a_worker_there(scripted: Registry) -> None:
    config = parsed(simulation={"flip": "label"}, deployment={"profile": "flat", "prefill": {"replicas": 0}})
    assert build_deployment(config).any_role
    assert default_registry() is scripted


@pytest.mark.parametrize(("before", "after"), [(11, 15), (7, 61), (8, 16)])
def test_pools_that_fill_their_gpus_fill_any_other_number(scripted: Registry, before: int, after: int) -> None:
    sizes = {"prefill": {"replicas": before - 3, "tp": 1}, "decode": {"replicas": 3, "tp": 1}}
    config = parsed(deployment={"profile": "flat", "gpu_budget": before, **sizes})
    section = scale_pools(config, after)["deployment"]
    assert section["prefill"]["replicas"] + section["decode"]["replicas"] == after
