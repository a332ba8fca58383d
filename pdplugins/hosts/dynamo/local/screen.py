"""What ``dynamo serve`` says at its start and at its end."""

from __future__ import annotations

from pathlib import Path

from pdplugins.contracts.deployment import Deployment
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.results import Result


def starting(options: Options) -> str:
    """Say what is about to run."""
    return f"Starting Dynamo with {options.engine} engines for {options.config.deployment.profile} …"


def ready(options: Options, deployment: Deployment, interval_s: float, logs: Path) -> str:
    """Say what runs, how to talk to it, and where to look."""
    pools, slo = options.config.deployment, options.config.slo
    planner = options.config.planner.name if options.config.planner else "-"
    body = f'{{"model": "{options.model}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 16}}'
    rows = {
        "endpoint": f"{options.url}/v1",
        "model": f"{options.model} ({_engines(options)})",
        "workers": f"{pools.prefill.replicas} prefill (TP {deployment.prefill_tp}) and {pools.decode.replicas} decode "
        f"(TP {deployment.decode_tp}) at start; at most {deployment.gpu_budget} GPUs",
        "planner": f"{planner}, every {interval_s:g} s, for TTFT {slo.ttft_s:g} s and TPOT {slo.tpot_s:g} s",
        "start-up": f"{deployment.startup_s:g} s until a worker that it adds serves; --startup says otherwise",
        "logs": str(logs),
    }
    if options.decision_log is not None:
        rows["decisions"] = f"{options.decision_log} (read it with: pdplugins explain {options.decision_log})"
    if options.metrics_port is not None:
        rows["metrics"] = f"http://127.0.0.1:{options.metrics_port}/metrics"
    if options.replay is not None:
        rows["replay"] = f"{options.replay.trace}: {options.replay.total} requests, {options.replay.speed:g}x speed"
    lines = [f"  {name:<10} {text}" for name, text in rows.items()]
    load = () if options.replay is not None else ("Give it load that drifts: dynamo serve --planner dopd --trace demo",)
    curl = (
        "Try it:",
        f"  curl {options.url}/v1/chat/completions -H 'Content-Type: application/json' \\",
        f"    -d '{body}'",
        *load,
        "Ctrl-C stops everything.",
    )
    return "\n".join(("Serving.", *lines, *curl))


def _engines(options: Options) -> str:
    """Say what computes."""
    profile = options.config.deployment.profile
    if options.sglang is not None:
        return f"SGLang engines of {options.sglang.model}; policies plan with the profile {profile}"
    return f"{options.engine} engines timed by the profile {profile}; no GPU is used"


def finished(result: Result, report: Path | None) -> str:
    """Say how the replay went."""
    metrics = result.metrics
    attainment = "-" if metrics.slo_attainment is None else f"{metrics.slo_attainment:.1%}"
    ttft, tpot = metrics.ttft_s, metrics.tpot_s
    spreads = "; ".join(
        f"{name} p50 {spread.p50 * 1e3:.0f} ms, p99 {spread.p99 * 1e3:.0f} ms"
        for name, spread in (("TTFT", ttft), ("TPOT", tpot))
        if spread.p50 is not None and spread.p99 is not None
    )
    where = f"\nReport: {report}" if report is not None else ""
    return (
        f"Replayed {result.requests.total} requests in {result.speed.duration_s:.0f} s, "
        f"{result.requests.failed} failed; SLO attainment {attainment}; {spreads}; {metrics.gpu_hours:.3f} GPU-hours; "
        f"{len(result.scaling) - 1} changes of the workers.{where}"
    )
