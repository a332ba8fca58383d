"""What the experiments of DynaServe share: the paper's machines, workloads and systems, and what is measured.

The paper serves Qwen-2.5-14B on two A100 and 32B on four, and promises a time between tokens (TBT) of 100 ms. All of it
is simulated here, on modelled profiles of these models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from experiment import capacity, run, workload

from pdplugins.config import parse
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.types import TraceRequest

TBT_S = 0.1
"""The SLO of every experiment of the paper."""
LATEST_S = TBT_S * 1.001
"""A batch scheduler that fills each step up to the SLO must not miss it by a rounding error."""
DELAY_S = 2.0
"""A rate is sustained while the median request waits less than this for its prefill (Sarathi-Serve's capacity)."""
DURATION_S = 240.0
"""Of the traffic of one run: long enough for a queue that grows by a tenth of the traffic to be seen."""
PAIRS = {
    name: [tuple(pair) for pair in pairs]
    for name, pairs in json.loads((Path(__file__).parent / "lengths.json").read_text()).items()
}
WORKLOADS: Mapping[str, dict[str, Any]] = {
    "BurstGPT (Azure conversation)": {"pairs": PAIRS["azure-conversation"]},
    "Azure code": {"pairs": PAIRS["azure-code"]},
    "arXiv summarization": {"pairs": PAIRS["arxiv-summarization"]},
    "Mini Reasoning (log-normal)": {
        "isl_tokens": {"kind": "lognormal", "median": 202, "sigma": 0.4, "high": 2048},
        "osl_tokens": {"kind": "lognormal", "median": 1354, "sigma": 0.4, "high": 8192},
    },
}
"""400 lengths of each published trace (lengths.json). BurstGPT is not at hand: Azure's conversations stand for it. Of
Mini Reasoning the paper tells the shape, 219/1467, which are the means here."""
SHAPES = {"P 8192, D 32": (8192, 32), "P 2048, D 512": (2048, 512), "P 219, D 1467": (219, 1467)}
"""Table 1."""

Config = dict[str, Any]


def config(
    profile: str = "a100/qwen2.5-14b", *, tp: int = 1, prefill: int = 1, decode: int = 1, router: Any = None,
    scheduler: Any = None, **simulation: Any,
) -> Config:  # fmt: skip
    """Return a config."""
    pools = {"prefill": {"replicas": prefill, "tp": tp}, "decode": {"replicas": decode, "tp": tp}}
    return {
        "slo": {"ttft_s": 1e6, "tpot_s": TBT_S},
        "deployment": {"profile": profile, "gpu_budget": tp * (prefill + decode), "max_batch": 256, **pools},
        "router": router or {"name": "dynaserve"},
        "batch_scheduler": scheduler,
        "simulation": {"overlap": True, "predict": "true_length", **simulation},
    }


def colocated(step_tokens: int = 2048, **more: Any) -> Config:
    """Return co-location: requests in turn, chunked prefill of `step_tokens` (vLLM's default)."""
    return config(router={"name": "round-robin", "colocated": True}, step_tokens=step_tokens, **more)


def disaggregated(**more: Any) -> Config:
    """Return disaggregation: whole prompts on one side, decodes on the other."""
    return config(router={"name": "least-loaded"}, **more)


def dynaserve(pairs: str = "any", **more: Any) -> Config:
    """Return DynaServe: both of its schedulers."""
    return config(router={"name": "dynaserve", "pairs": pairs}, scheduler={"name": "dynaserve"}, **more)


def systems(**more: Any) -> dict[str, Config]:
    """Return the paper's three systems, and what else could be chosen."""
    return {
        "co-located, chunk 2048": colocated(**more),
        "co-located, chunk 1024": colocated(1024, **more),
        "co-located, chunk 512": colocated(512, **more),
        "co-located, chunk 256": colocated(256, **more),
        "co-located, SLO-aware": colocated(scheduler={"name": "dynaserve"}, **more),
        "disaggregated": disaggregated(**more),
        "DynaServe, any pair": dynaserve(**more),
        "DynaServe, roles": dynaserve("roles", **more),
    }


def traffic(
    lengths: Mapping[str, Any], rate: float, duration_s: float = DURATION_S, seed: int = 0
) -> list[TraceRequest]:
    """Return Poisson arrivals of one workload."""
    return workload(duration_s=duration_s, seed=seed, arrivals={"kind": "poisson", "rate": rate}, **lengths)


def shape(prompt: int, output: int) -> dict[str, Any]:
    """Return a workload of one length."""
    return {"isl_tokens": prompt, "osl_tokens": output}


def sustained_rate(
    settings: Config, lengths: Mapping[str, Any], *, high: float = 4.0, steps: int = 6, duration_s: float = DURATION_S
) -> float:
    """Return the serving capacity: the highest request rate that is sustained.

    That is: P99 of TBT within the SLO, and the median wait for prefill within DELAY_S, over `duration_s` of traffic.
    """
    deployment = build_deployment(parse(settings))

    def sustained(rate: float) -> float:
        result, outcome = run(settings, traffic(lengths, rate, duration_s))
        tbt_s = result.metrics.tbt_s.p99
        waits = [
            record.ttft_s - deployment.perf.prefill_s(record.isl_tokens, deployment.prefill_tp)
            for record in outcome.records
            if record.ttft_s is not None
        ]
        kept_pace = bool(waits) and median(waits) <= DELAY_S and not result.requests.failed
        return float(kept_pace and tbt_s is not None and tbt_s <= LATEST_S)

    return capacity(sustained, 0.0, high, target=1.0, steps=steps)


def gaps_of(outcome: RunOutcome) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct gaps between tokens in seconds, and how many there are of each."""
    gaps = outcome.gaps
    return np.asarray(gaps.means) / gaps.ticks_per_s, np.asarray(gaps.counts)


def token_goodput(outcome: RunOutcome) -> float:
    """Return tokens per second whose gap was within the SLO; each first token counts."""
    gaps_s, counts = gaps_of(outcome)
    good = int(counts[gaps_s <= LATEST_S].sum()) + sum(record.error is None for record in outcome.records)
    return good / outcome.duration_s


def kept(outcome: RunOutcome) -> float:
    """Return the share of gaps between tokens within the SLO."""
    gaps_s, counts = gaps_of(outcome)
    return float(counts[gaps_s <= LATEST_S].sum() / counts.sum())


def gap_shares(outcome: RunOutcome) -> tuple[list[float], list[float]]:
    """Return the distribution of gaps between tokens: milliseconds, and the share of gaps up to that."""
    gaps_s, counts = gaps_of(outcome)
    means = gaps_s * 1e3
    at_ms = np.linspace(0, 300, 121)
    return at_ms.tolist(), [float(counts[means <= ms].sum() / counts.sum()) for ms in at_ms]


def requests_kept(outcome: RunOutcome) -> float:
    """Return the share of requests without a single gap beyond the SLO."""
    good = sum(record.largest_tbt_s is None or record.largest_tbt_s <= LATEST_S for record in outcome.records)
    return good / len(outcome.records)


def throughput(outcome: RunOutcome, skip: float = 0.2) -> float:
    """Return finished requests per second, without the first and the last `skip` of them."""
    ends: Sequence[float] = sorted(record.finish_s for record in outcome.records if record.finish_s is not None)
    first, last = int(len(ends) * skip), int(len(ends) * (1 - skip))
    return (last - first) / (ends[last - 1] - ends[first])
