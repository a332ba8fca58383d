"""Derives the settings of a simulation from a config."""

from __future__ import annotations

from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.runtime.assembly import load_profile
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.worker import Hardware


def sim_settings(config: Config, deployment: Deployment, *, planned: bool = False) -> SimSettings:
    """Return the simulation settings of `config`.

    :param planned: whether a planner starts workers. Then a worker may die that is not there yet.

    Raises ConfigError if a profile lacks a tensor-parallel size in either phase, if the workers at start exceed the GPU
    budget, or if a worker is to die that can never exist.
    """
    pools, wanted = config.deployment, config.simulation
    for role, own, tp in (
        (Role.PREFILL, wanted.prefill_profile, deployment.prefill_tp),
        (Role.DECODE, wanted.decode_profile, deployment.decode_tp),
    ):
        if own is None:
            _check_phases(f"deployment.{role}.tp", pools.profile, deployment.perf, tp)
    extra = _extra(config, deployment)
    used = deployment.gpus(pools.prefill.replicas, pools.decode.replicas) + sum(gpus.tp for _, gpus in extra)
    if used > deployment.gpu_budget:
        raise ConfigError(
            f"simulation.extra: all workers at start need {used} GPUs, gpu_budget is {deployment.gpu_budget}; "
            "raise the budget or take fewer workers"
        )
    return SimSettings(
        prefill=pools.prefill.replicas,
        decode=pools.decode.replicas,
        engine=engine_settings(config),
        kv_tokens=wanted.kv_tokens,
        hardware=_hardware(config, deployment),
        extra=extra,
        frontend_s=wanted.frontend_s,
        first_token=wanted.first_token,
        overlap=wanted.overlap,
        history=wanted.history,
        flip=wanted.flip,
        flip_s=wanted.flip_s,
        drain_deadline_s=wanted.drain_deadline_s,
        when_full=wanted.when_full,
        late_handoff_s=wanted.late_handoff_s,
        late_step_s=wanted.late_step_s,
        late_step_token_s=wanted.late_step_token_s,
        polled_handoff=wanted.polled_handoff,
        handoff_timeout_s=wanted.handoff_timeout_s,
        retries=wanted.retries,
        deaths=_deaths(config, extra, planned=planned),
        predict=wanted.predict,
    )


def engine_settings(config: Config) -> EngineSettings:
    """Return the engine settings of all simulated workers. All commands that simulate a config use them."""
    wanted = config.simulation
    return EngineSettings(
        order=wanted.order,
        step_tokens=wanted.step_tokens,
        max_batch=config.deployment.max_batch,
        whole_prompts=wanted.whole_prompts,
        watermark=wanted.watermark,
        block_tokens=wanted.block_tokens,
        mixed_steps=config.deployment.mixed_steps,
        mixed_step_scale=wanted.mixed_step_scale,
        begin_s=wanted.begin_s,
    )


def _deaths(
    config: Config, extra: tuple[tuple[Role, Hardware], ...], *, planned: bool
) -> tuple[tuple[float, str], ...]:
    """Return which worker dies when. Only with a planner may a name be unknown yet, because it starts workers."""
    pools, deaths = config.deployment, config.simulation.deaths
    counts = {Role.PREFILL: pools.prefill.replicas, Role.DECODE: pools.decode.replicas}
    for role, _ in extra:
        counts[role] += 1
    known = [f"{role[0]}{number}" for role, count in counts.items() for number in range(count)]
    for death in deaths:
        if not planned and death.worker not in known:
            there = ", ".join(f"{role[0]}0..{role[0]}{count - 1}" for role, count in counts.items())
            raise ConfigError(f"simulation.deaths: there is no worker {death.worker!r}; the workers are {there}")
    return tuple((death.at_s, death.worker) for death in deaths)


def hardware_of(config: Config, deployment: Deployment) -> list[Hardware]:
    """Return the hardware of each kind of worker that a simulation of `config` may have, at least one."""
    own = {
        Role.PREFILL: Hardware(deployment.perf, deployment.prefill_tp),
        Role.DECODE: Hardware(deployment.perf, deployment.decode_tp),
    }
    kinds = [*(own | _hardware(config, deployment)).values(), *(hardware for _, hardware in _extra(config, deployment))]
    return [*{(id(kind.perf), kind.tp): kind for kind in kinds}.values()]


def _hardware(config: Config, deployment: Deployment) -> dict[Role, Hardware]:
    """Return the hardware of the roles that have their own profile."""
    wanted, kv_tokens = config.simulation, config.simulation.kv_tokens
    roles = (
        (Role.PREFILL, wanted.prefill_profile, deployment.prefill_tp),
        (Role.DECODE, wanted.decode_profile, deployment.decode_tp),
    )
    return {
        role: Hardware(_profile(f"{role}_profile", name, role, tp), tp, kv_tokens)
        for role, name, tp in roles
        if name is not None
    }


def _extra(config: Config, deployment: Deployment) -> tuple[tuple[Role, Hardware], ...]:
    workers: list[tuple[Role, Hardware]] = []
    for more in config.simulation.extra:
        perf = _profile("extra", more.profile or config.deployment.profile, more.role, more.tp)
        workers += [(more.role, Hardware(perf, more.tp, config.simulation.kv_tokens))] * more.count
    return tuple(workers)


def _profile(key: str, name: str, role: Role, tp: int) -> PerfModel:
    perf = load_profile(name)
    if tp not in perf.tp_sizes(role):
        sizes = ", ".join(map(str, perf.tp_sizes(role)))
        raise ConfigError(f"simulation.{key}: profile {name} has no TP {tp} for {role}; it has {sizes}")
    _check_phases(f"simulation.{key}", name, perf, tp)
    return perf


def sizes_of_both(perf: PerfModel) -> list[int]:
    """Return the tensor-parallel sizes that a model knows in both phases: a simulated worker may do either."""
    return sorted(set(perf.tp_sizes(Role.PREFILL)) & set(perf.tp_sizes(Role.DECODE)))


def _check_phases(key: str, name: str, perf: PerfModel, tp: int) -> None:
    if tp not in (sizes := sizes_of_both(perf)):
        known = f"take one of TP {', '.join(map(str, sizes))}" if sizes else "it has no size with both: take another"
        raise ConfigError(
            f"{key}: profile {name} has TP {tp} in one phase only, and a simulated worker may do both; {known}"
        )
