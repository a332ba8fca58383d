"""The report of Dynamo's offline replay and its rows for each request, as metrics of `pdplugins.results`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.metrics import tpot_s
from pdplugins.results import Metrics, Requests, Served, Spread, summary


def rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the per-request rows of a run."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def requests(per_request: Path) -> list[tuple[float | None, ...]]:
    """Return (arrival, prompt tokens, output tokens, TTFT, TPOT) of each request of a run; None without an answer."""
    return [
        (
            row["arrival_time_ms"] / 1e3,
            row["input_length"],
            row["output_length"],
            *((row["ttft_ms"] / 1e3, row_tpot_s(row)) if row["terminal_status"] == "completed" else (None, None)),
        )
        for row in rows(per_request)
    ]


def metrics(report: Mapping[str, Any], per_request: Path, deployment: Deployment) -> tuple[Requests, Metrics]:
    """Compute the metrics of one run.

    TTFT, TPOT and SLO attainment come from the requests themselves. Gaps between tokens are not in the rows, so TBT is
    the replay's own summary over all gaps.
    """
    answered = [row for row in rows(per_request) if row["terminal_status"] == "completed"]
    served = Served(
        total=int(report["num_requests"]),
        ttft_s=[row["ttft_ms"] / 1e3 for row in answered],
        tpot_s=[tpot_s((row["last_token_ms"] - row["first_token_ms"]) / 1e3, row["output_length"]) for row in answered],
        osl_tokens=[row["output_length"] for row in answered],
    )
    return summary(
        served,
        deployment.slo,
        duration_s=report["duration_ms"] / 1e3,
        gpu_hours=gpu_hours(report, deployment),
        tbt_s=_gaps(report),
    )


def gpu_hours(report: Mapping[str, Any], deployment: Deployment) -> float:
    """Return the GPU-hours that workers held, from their start (so with start-up) to the end of their draining."""
    prefill_s, decode_s = report["prefill_worker_seconds"], report["decode_worker_seconds"]
    return float(prefill_s * deployment.prefill_tp + decode_s * deployment.decode_tp) / 3600


def row_tpot_s(row: Mapping[str, Any]) -> float:
    """Return the time per output token of one row."""
    return tpot_s((row["last_token_ms"] - row["first_token_ms"]) / 1e3, row["output_length"])


def _gaps(report: Mapping[str, Any]) -> Spread:
    names = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    if report.get("mean_itl_ms") is None:
        return Spread()
    return Spread(**{ours: report[f"{theirs}_itl_ms"] / 1e3 for ours, theirs in names.items()})
