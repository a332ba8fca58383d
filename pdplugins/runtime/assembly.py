"""Turns a checked config into the objects that a host drives."""

from __future__ import annotations

from pathlib import Path

from pdplugins.config import Choice, Config, settings_of
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.perf.plain import wide
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.dopd.ratio import choose_tp
from pdplugins.registry import Registry, default_registry
from pdplugins.runtime.policies import Policies, build_policies


def build_deployment(config: Config, registry: Registry | None = None) -> Deployment:
    """Load the profile and fix the tensor-parallel sizes. Raises ConfigError when the pools at start do not fit."""
    wanted = config.deployment
    perf = load_profile(wanted.profile, registry)
    slo = Slo(config.slo.ttft_s, config.slo.tpot_s)
    chosen = choose_tp(perf, slo, wanted.isl_tokens, wanted.osl_tokens, wanted.max_batch)
    deployment = Deployment(
        slo=slo,
        perf=perf,
        gpu_budget=wanted.gpu_budget,
        prefill_tp=chosen[0] if wanted.prefill.tp == "auto" else wanted.prefill.tp,
        decode_tp=chosen[1] if wanted.decode.tp == "auto" else wanted.decode.tp,
        startup_s=wanted.startup_s,
        max_batch=wanted.max_batch,
        kv_tokens=wanted.kv_tokens,
        any_role=config.any_role,
        mixed_steps=wanted.mixed_steps,
    )
    for role, tp in ((Role.PREFILL, deployment.prefill_tp), (Role.DECODE, deployment.decode_tp)):
        if tp not in perf.tp_sizes(role):
            sizes = ", ".join(map(str, perf.tp_sizes(role)))
            raise ConfigError(f"deployment.{role}.tp: profile {wanted.profile} has no TP {tp}; it has {sizes}")
    used = deployment.gpus(wanted.prefill.replicas, wanted.decode.replicas)
    if used > wanted.gpu_budget:
        raise ConfigError(
            f"deployment: {wanted.prefill.replicas} prefill and {wanted.decode.replicas} decode workers need {used} "
            f"GPUs, gpu_budget is {wanted.gpu_budget}; raise the budget or lower replicas or tp"
        )
    return deployment


def build_planner(
    config: Config, deployment: Deployment, registry: Registry | None = None, policies: Policies | None = None
) -> Planner:
    """Build the planner that the config picks, or take it from `policies`. Raises ConfigError when there is none."""
    if (planner := (policies or build_policies(config, deployment, registry)).planner()) is None:
        raise ConfigError("planner: none chosen; add for example 'planner: dopd'")
    return planner


def load_profile(name: str, registry: Registry | None = None) -> PerfModel:
    """Load a registered profile, or the file that `name` is the path of."""
    if name.endswith(".json"):
        return TableModel(read_profile(Path(name)))
    registration = (registry or default_registry()).get("profile", name)
    return wide(registration.factory(settings_of("profile", Choice(name=name), registry=registry)))
