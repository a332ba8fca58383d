"""Runs one trace through Dynamo's offline replay with one planner, and returns a `Result`."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdplugins.config import Choice, Config, settings_of
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError, TraceError, meant, shown
from pdplugins.hosts.dynamo.mocker import Engines, bind, quiet
from pdplugins.hosts.dynamo.offline import report as reports
from pdplugins.hosts.dynamo.offline import stock
from pdplugins.hosts.dynamo.offline.scaling import Fixed, OfflineScaling, ScalingPolicy, Watched
from pdplugins.provenance import commit, versions
from pdplugins.registry import default_registry
from pdplugins.results import Result, Speed
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision_log import none_of_refused
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.workloads.jsonl import write_mooncake
from pdplugins.workloads.trace import TraceRequest

MOST_AFTER_S = 7 * 86_400.0
"""Seconds that a replay may go on after the last arrival: behind its KV router Dynamo's has lost a request once."""

_POOLS = re.compile(r"0*([1-9][0-9]{0,8})P0*([1-9][0-9]{0,8})D", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the outcome of one run, but the trace."""

    planner: str
    """As written after ``--planner``."""
    config: Config
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the planner: of ours over those in `config`, of Dynamo's over those of `stock.settings`."""
    engines: Engines = field(default_factory=lambda: Engines(kv_blocks=None))
    decision_log: Path | None = None


def pools(text: str) -> tuple[int, int]:
    """Read ``3P1D``. Raises ConfigError."""
    match = _POOLS.fullmatch(text)
    if not match:
        raise ConfigError(
            f"{shown(text)} is not a pair of pools; write for example 3P1D, at least one worker of each role"
        )
    return int(match[1]), int(match[2])


def resolve(planner: str, config: Config, settings: Mapping[str, Any] | None = None) -> Config:
    """Return `config` with the planner and the pools at start that `planner` asks for. Raises ConfigError.

    A name without variant is one of ours; the settings in the file hold when it is the planner of the file, and
    `settings` go over them.
    """
    name, _, variant = planner.partition(":")
    if name in ("static", *stock.NAMES):
        without = config.model_copy(update={"planner": None})
        if name != "static":
            stock.settings(name, variant, build_deployment(without), settings)
            return without
        if settings:
            raise ConfigError(f"--set {next(iter(settings))}: {planner} has no settings; use it with another planner")
        return with_pools(without, *pools(variant)) if variant else without
    ours = default_registry().names("planner")
    if planner not in ours:
        known = [*ours, "static:3P1D", *stock.NAMES]
        choices, hint = ", ".join(known), meant(name, known)
        raise ConfigError(f"planner: there is no {shown(planner)}; choose from {choices}{hint}")
    kept = config.planner.settings if config.planner and config.planner.name == planner else {}
    choice = Choice(name=planner, **{**kept, **(settings or {})})
    settings_of("planner", choice, "--set" if settings else "config")
    return config.model_copy(update={"planner": choice})


def with_pools(config: Config, prefill: int, decode: int) -> Config:
    """Return `config` with other pools at start."""
    deployment = config.deployment
    sizes = {
        "prefill": deployment.prefill.model_copy(update={"replicas": prefill}),
        "decode": deployment.decode.model_copy(update={"replicas": decode}),
    }
    return config.model_copy(update={"deployment": deployment.model_copy(update=sizes)})


def replay(
    plan: Plan,
    trace: Sequence[TraceRequest],
    *,
    trace_name: str,
    command: str,
    progress: Callable[[float], None] | None = None,
    seen: Callable[[list[tuple[float | None, ...]]], None] | None = None,
) -> Result:
    """Run `trace` and summarise it. Raises ConfigError, TraceError, HostError, KeyboardInterrupt.

    :param trace_name: what the result calls the trace.
    :param command: the command line that does the same.
    :param progress: called with the virtual time in seconds at every tick.
    :param seen: called once with what `report.requests` says of each request.
    """
    if not trace:
        raise TraceError(f"{trace_name}: no request to replay; --skip or --clip-s leaves none")
    quiet()
    config = plan.engines.told(resolve(plan.planner, plan.config, plan.settings))
    deployment = build_deployment(config)
    _check_fit(trace, trace_name, plan.engines, deployment)
    start = config.deployment.prefill.replicas, config.deployment.decode.replicas
    with (
        tempfile.TemporaryDirectory(prefix="pdplugins-") as folder,
        none_of_refused(plan.decision_log),
        _policy(plan, config, deployment) as policy,
    ):
        scratch = Path(folder)
        write_mooncake(trace, scratch / "trace.jsonl")
        run = bind(deployment, plan.engines, scratch)
        watched = Watched(policy, progress, trace[-1].arrival_s + MOST_AFTER_S)
        began = time.perf_counter()
        report = run(scratch / "trace.jsonl", watched, *start, scratch / "requests.jsonl")
        wall_s = time.perf_counter() - began
        requests, metrics = reports.metrics(report, scratch / "requests.jsonl", deployment)
        if seen is not None:
            seen(reports.requests(scratch / "requests.jsonl"))
    return Result(
        kind="simulated",
        requests=requests,
        metrics=metrics,
        speed=Speed(requests_per_s=requests.total / wall_s, wall_s=wall_s, duration_s=report["duration_ms"] / 1e3),
        config=_described(plan, config, trace_name),
        seed=None,
        commit=commit(),
        command=command,
        versions=versions("ai-dynamo"),
        scaling=list(watched.changes),
        counts=policy.counts if isinstance(policy, OfflineScaling) else {},
    )


def _check_fit(trace: Sequence[TraceRequest], name: str, engines: Engines, deployment: Deployment) -> None:
    """Raise ConfigError when a request is too long for a worker: Dynamo's replay would wait for it for ever."""
    for role in Role:
        held = engines.kv_tokens_of(role, deployment)
        longest = max(request.isl_tokens + request.osl_tokens for request in trace)
        if longest > held:
            raise ConfigError(
                f"{name}: a request of {longest:,} tokens does not fit into the {held:,} tokens of KV cache of a "
                f"{role} worker; raise --kv-blocks, or its GPUs (--{role}-gpus)"
            )


@contextmanager
def _policy(plan: Plan, config: Config, deployment: Deployment) -> Iterator[ScalingPolicy]:
    name, _, variant = plan.planner.partition(":")
    if config.planner is None and plan.decision_log is not None:
        raise ConfigError(f"--decision-log: {plan.planner} keeps none; use it with a planner of pdplugins")
    if name == "static":
        yield Fixed()
    elif config.planner is None:
        chosen = stock.settings(name, variant, deployment, plan.settings)
        with stock.stock_planner(chosen, deployment, plan.engines) as planner:
            yield planner
    else:
        safe = build_safe_planner(config, decision_log=plan.decision_log)
        try:
            yield OfflineScaling(safe)
        finally:
            safe.close()


def _described(plan: Plan, config: Config, trace_name: str) -> dict[str, Any]:
    """Return everything that the run was made from."""
    whole = config.model_dump(mode="json")
    if config.planner is not None:
        chosen = settings_of("planner", config.planner).model_dump(mode="json")
        whole["planner"] = {"name": config.planner.name, **chosen}
    name, _, variant = plan.planner.partition(":")
    deployment = build_deployment(config)
    if name in stock.NAMES:
        whole["planner"] = {"name": plan.planner, **stock.settings(name, variant, deployment, plan.settings)}
    kv_tokens = {f"{role}_kv_tokens": plan.engines.kv_tokens_of(role, deployment) for role in Role}
    return {"run": {"planner": plan.planner, "trace": trace_name, "router": plan.engines.router, **kv_tokens}, **whole}
