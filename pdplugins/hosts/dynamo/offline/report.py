"""Dynamo's replay report and its per-request rows, turned into our one result schema (``pdplugins.results``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pdplugins.contracts.deployment import Deployment
from pdplugins.results import Metrics, Requests, Spread


def rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the per-request rows of a run."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def metrics(report: Mapping[str, Any], per_request: Path, deployment: Deployment) -> tuple[Requests, Metrics]:
    """Summarise one run with the definitions of ``pdplugins.results``.

    TTFT, TPOT and SLO attainment come from the requests themselves. Gaps between tokens are not in the rows, so TBT is
    the replay's own summary over all gaps.
    """
    slo = deployment.slo
    answered = [row for row in rows(per_request) if row["terminal_status"] == "completed"]
    ttfts_s = np.array([row["ttft_ms"] for row in answered], dtype=float) / 1e3
    tpots_s = np.array([tpot_s(row) for row in answered], dtype=float)
    osl_tokens = np.array([row["output_length"] for row in answered], dtype=float)
    good = (ttfts_s <= slo.ttft_s) & (tpots_s <= slo.tpot_s)
    total, duration_s = int(report["num_requests"]), report["duration_ms"] / 1e3
    busy = duration_s if duration_s > 0 else float("inf")
    return Requests(total=total, failed=total - len(answered)), Metrics(
        ttft_s=Spread.of(ttfts_s),
        tpot_s=Spread.of(tpots_s),
        tbt_s=_gaps(report),
        slo_attainment=float(good.sum()) / total if total else None,
        goodput_tokens_per_s=float(osl_tokens[good].sum()) / busy,
        goodput_requests_per_s=float(good.sum()) / busy,
        gpu_hours=gpu_hours(report, deployment),
    )


def gpu_hours(report: Mapping[str, Any], deployment: Deployment) -> float:
    """Return the GPU-hours that workers held, from their start (so with start-up) to the end of their draining."""
    prefill_s, decode_s = report["prefill_worker_seconds"], report["decode_worker_seconds"]
    return float(prefill_s * deployment.prefill_tp + decode_s * deployment.decode_tp) / 3600


def tpot_s(row: Mapping[str, Any]) -> float:
    """Return the time per output token of one row."""
    gaps = row["output_length"] - 1
    return 0.0 if gaps < 1 else (row["last_token_ms"] - row["first_token_ms"]) / 1e3 / gaps


def _gaps(report: Mapping[str, Any]) -> Spread:
    names = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    if report.get("mean_itl_ms") is None:
        return Spread()
    return Spread(**{ours: report[f"{theirs}_itl_ms"] / 1e3 for ours, theirs in names.items()})
