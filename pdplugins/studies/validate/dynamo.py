"""Runs the same requests, step times and disaggregated pools in Dynamo's replay and in the simulator.

Dynamo 1.4.2's replay differs from the simulator in three ways:

* A chunk of a long prompt costs what its new tokens cost alone. Attention to earlier chunks is not counted.
* A running decode worker reserves KV capacity at the end of a step. The request joins at the end of the next step that
  begins after that. So a KV transfer takes one step more, or its own time if that is longer.
* A prefill worker keeps a request until it has made one step for each output token, if more prompts wait.

`ReplayTimes` reproduces the first two by its step times, so the simulator runs unchanged. The third one has no
counterpart in any engine. It does not matter where prompts hardly wait, or where every answer has one token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import isotonic_regression

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.hosts.dynamo.mocker import KV_BYTES_PER_TOKEN, KV_GB_PER_S, Engines, engine_args, quiet
from pdplugins.hosts.dynamo.offline.report import rows
from pdplugins.perf.npz import export_npz
from pdplugins.perf.table import TableModel
from pdplugins.policies.stock.routers import RoundRobin, RouterSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.simulate import gap_spread
from pdplugins.workloads.jsonl import write_mooncake
from pdplugins.workloads.trace import TraceRequest

Floats = NDArray[np.float64]
CONTEXTS: Floats = np.geomspace(64.0, 65_536.0, 160)
"""Densely spaced contexts, because for one batch size the replay's table is not linear in context."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Workers of both roles."""

    prefill: int
    decode: int


class ReplayTimes(TableModel):
    """The step times of the replay's own table: linear in prompt tokens, bilinear in KV tokens and mean context.

    For one batch size such a table goes up and down with context. The simulator needs times that never fall, so it gets
    the closest non-decreasing ones (isotonic regression).
    """

    def __init__(self, perf: TableModel, npz: Path) -> None:
        super().__init__(perf.profile)
        with np.load(npz) as table:
            self._tokens, self._prefill_ms = table["prefill_isl"], table["prefill_ttft_ms"]
            axes = table["decode_active_kv_tokens"], table["decode_context_length"]
            self._decode_ms = RegularGridInterpolator(axes, table["decode_itl"], bounds_error=False, fill_value=None)
        self.hand_over_s = 0.0
        """Duration of one decode step, where decode workers are never idle; it delays each hand-over."""
        self._rows: dict[float, Floats] = {}

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Seconds of a step over `tokens` tokens of prompts."""
        return float(np.interp(tokens, self._tokens, self._prefill_ms)) / 1e3

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        """Seconds of one decode step."""
        if (row := self._rows.get(batch)) is None:
            row = isotonic_regression(self._decode_ms((batch * CONTEXTS, CONTEXTS))).x
            self._rows[batch] = row
        return float(np.interp(context_tokens, CONTEXTS, row)) / 1e3

    def decode_contexts(self, tp: int) -> tuple[float, ...]:
        """Mean contexts between which decode steps are linear."""
        return tuple(CONTEXTS.tolist())

    def decode_row_s(self, batch: float, tp: int) -> tuple[float, ...]:
        """Seconds of one decode step at those contexts, with zero before them and one beyond."""
        beyond = 2 * CONTEXTS[-1] - CONTEXTS[-2]
        return tuple(self.decode_step_s(batch, context, tp) for context in (0.0, *CONTEXTS, beyond))

    def dense_s(self, tokens: float, tp: int) -> float:
        """Return the prefill time. The whole step counts as dense, so that a chunk costs what its new tokens cost."""
        return self.prefill_s(tokens, tp)

    def transfer_s(self, tokens: float) -> float:
        """Seconds from the end of prefill until a request may join a decode batch."""
        return max(tokens * KV_BYTES_PER_TOKEN / (KV_GB_PER_S * 1e9), self.hand_over_s)


def compare(
    deployment: Deployment, perf: TableModel, requests: Sequence[TraceRequest], pools: Pools, scratch: Path
) -> dict[str, Any]:
    """Run `requests` in both simulators, and return the figures of each and their relative differences.

    :param deployment: a deployment of the profile `perf`.
    :param scratch: an empty folder for temporary files.
    """
    one_token = all(request.osl_tokens == 1 for request in requests)
    npz = scratch / "timing.npz"
    export_npz(perf, npz, deployment.prefill_tp, deployment.decode_tp)
    times = ReplayTimes(perf, npz)
    ours = _ours(replace(deployment, perf=times), requests, pools)
    if not one_token:  # a hand-over takes a step, whose duration the first run shows
        times.hand_over_s = gap_spread(ours.gaps).mean or 0.0
        ours = _ours(replace(deployment, perf=times), requests, pools)
    answered = [record for record in ours.records if record.error is None]
    gaps = gap_spread(ours.gaps)
    theirs, their_ttfts_s = _theirs(deployment, npz, requests, pools, scratch)
    our_ttfts_s = [record.ttft_s or 0.0 for record in answered]
    found: dict[str, Any] = {
        "rows": len(requests),
        "answered": {"dynamo": theirs["completed_requests"], "pdplugins": len(answered)},
        "rate_per_s": round(len(requests) / max(requests[-1].arrival_s, 1e-9), 3),
        "prefill_utilisation": round(_utilisation(deployment, requests, pools), 3),
        "ttft_s": {
            "mean": _pair(float(np.mean(their_ttfts_s)), float(np.mean(our_ttfts_s))),
            "p90": _pair(float(np.quantile(their_ttfts_s, 0.9)), float(np.quantile(our_ttfts_s, 0.9))),
        },
    }
    if not one_token:
        found["itl_s"] = {
            "mean": _pair(theirs["mean_itl_ms"] / 1e3, gaps.mean or 0.0),
            "p90": _pair(theirs["p90_itl_ms"] / 1e3, gaps.p90 or 0.0),
        }
    pairs = [pair for metric in ("ttft_s", "itl_s") for pair in found.get(metric, {}).values()]
    found["largest_abs_error"] = max(abs(pair["error"]) for pair in pairs)
    return found


def _pair(theirs: float, ours: float) -> dict[str, float]:
    return {"dynamo": round(theirs, 6), "pdplugins": round(ours, 6), "error": round(ours / theirs - 1.0, 5)}


def _utilisation(deployment: Deployment, requests: Sequence[TraceRequest], pools: Pools) -> float:
    busy_s = sum(deployment.perf.prefill_s(request.isl_tokens, deployment.prefill_tp) for request in requests)
    return busy_s / pools.prefill / max(requests[-1].arrival_s, 1e-9)


def _ours(deployment: Deployment, requests: Sequence[TraceRequest], pools: Pools) -> RunOutcome:
    settings = SimSettings(prefill=pools.prefill, decode=pools.decode, kv_tokens=Engines().kv_tokens)
    simulation = Simulation(deployment, settings, RoundRobin(RouterSettings(), deployment))
    return simulation.run(Arrival(r.arrival_s, r.isl_tokens, r.osl_tokens) for r in requests)


def _theirs(
    deployment: Deployment, npz: Path, requests: Sequence[TraceRequest], pools: Pools, scratch: Path
) -> tuple[dict[str, Any], list[float]]:
    """Run Dynamo's replay; return its report, and the TTFT of every request in seconds."""
    quiet()
    from dynamo._core import run_mocker_trace_replay  # noqa: PLC0415
    from dynamo.mocker import MockEngineArgs  # noqa: PLC0415

    trace, per_request = scratch / "trace.jsonl", scratch / "requests.jsonl"
    write_mooncake(requests, trace)

    def mocker(role: Role) -> Any:
        arguments = engine_args(role, Engines(), deployment, npz)
        arguments.pop("startup_time")  # all workers serve from the start
        return MockEngineArgs.from_json(json.dumps(arguments))

    report: dict[str, Any] = run_mocker_trace_replay(
        [str(trace)],
        prefill_engine_args=mocker(Role.PREFILL),
        decode_engine_args=mocker(Role.DECODE),
        num_prefill_workers=pools.prefill,
        num_decode_workers=pools.decode,
        router_mode="round_robin",
        report_jsonl_path=str(per_request),
    )
    ttft_ms = [row["ttft_ms"] for row in rows(per_request)]
    if lost := ttft_ms.count(None):
        raise ConfigError(
            f"validate dynamo: Dynamo's replay answers {len(ttft_ms) - lost} of {len(ttft_ms)} requests; "
            "leave out those that fit no worker, or take --requests from before them"
        )
    return report, [one / 1e3 for one in ttft_ms]


def shaped(
    trace: Sequence[TraceRequest], requests: int | None, rate: float | None, one_token: bool
) -> list[TraceRequest]:
    """Return the first requests of a trace at another rate, without prefix blocks, at whole milliseconds."""
    kept = list(trace[:requests])
    span_s = kept[-1].arrival_s - kept[0].arrival_s
    factor = 1.0 if rate is None or span_s <= 0 else len(kept) / rate / span_s
    start_s = kept[0].arrival_s
    return [
        TraceRequest(round((r.arrival_s - start_s) * factor, 3), r.isl_tokens, 1 if one_token else r.osl_tokens)
        for r in kept
    ]
