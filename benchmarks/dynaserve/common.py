"""What the experiments of DynaServe share: the paper's machines, workloads and systems, and what is measured.

The paper serves Qwen-2.5-14B on two A100 and 32B on four, and promises a time between tokens (TBT) of 100 ms. All of it
is simulated here, on modelled profiles of these models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from experiment import capacity, run, workload

from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.types import TraceRequest

TBT_S = 0.1
"""The SLO of every experiment of the paper."""
TTFT_S = 2.0
"""The paper promises no time to first token. Without one, a system may let every prompt wait and look good."""
LATEST_S = TBT_S * 1.001
"""A batch scheduler that fills each step up to the SLO must not miss it by a rounding error."""
IN_TIME = 0.9
"""A rate is sustained while this share of requests has its first token in time, and P99 of TBT is within the SLO."""
DURATION_S = 180.0
"""Of the traffic of one run: long enough for a queue that grows by a tenth of the traffic to be seen."""
SHOWN, TUNED = 0, 1
"""Seeds: what is tuned is tuned on traffic of the second, and every figure is of the first."""
CHUNKS = (2048, 1024, 512, 256)
"""Chunk sizes that co-location is tuned over, as in the paper. vLLM's default is 2048."""
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
HYBRID = "half conversations, half code"
MIXES = {**WORKLOADS, HYBRID: {"pairs": [*PAIRS["azure-conversation"], *PAIRS["azure-code"]]}}
"""Those, and that of Table 2."""
SHAPES = {"P 8192, D 32": (8192, 32), "P 2048, D 512": (2048, 512), "P 219, D 1467": (219, 1467)}
"""Table 1."""

Config = dict[str, Any]


def config(
    profile: str = "a100/qwen2.5-14b", *, tp: int = 1, prefill: int = 1, decode: int = 1, router: Any = None,
    scheduler: Any = None, **simulation: Any,
) -> Config:  # fmt: skip
    """Return a config. Nobody tells a router how long answers will be, unless `predict` says so."""
    pools = {"prefill": {"replicas": prefill, "tp": tp}, "decode": {"replicas": decode, "tp": tp}}
    return {
        "slo": {"ttft_s": TTFT_S, "tpot_s": TBT_S},
        "deployment": {"profile": profile, "gpu_budget": tp * (prefill + decode), "max_batch": 256, **pools},
        "router": router or {"name": "dynaserve"},
        "batch_scheduler": scheduler,
        "simulation": {"overlap": True, **simulation},
    }


OWN_BATCHES = {"name": "dynaserve"}
"""The batch scheduler of Algorithm 2."""


def colocated(step_tokens: int = 2048, *, scheduler: Any = None, **more: Any) -> Config:
    """Return co-location: whole requests on the least loaded worker, prefill in chunks of `step_tokens`."""
    router = {"name": "least-loaded", "colocated": True}
    return config(router=router, scheduler=scheduler, step_tokens=8192 if scheduler else step_tokens, **more)


def slo_aware(**more: Any) -> Config:
    """Return co-location with DynaServe's batch scheduler: what its router has to beat."""
    return colocated(scheduler=OWN_BATCHES, **more)


def disaggregated(**more: Any) -> Config:
    """Return disaggregation: whole prompts on one side, decodes on the other."""
    return config(router={"name": "least-loaded"}, **more)


def dynaserve(told: bool = False, **more: Any) -> Config:
    """Return DynaServe: both of its schedulers.

    :param told: the router is told the true length of every answer.
    :param more: settings of the router, and what `config` takes.
    """
    own = {key: more.pop(key) for key in tuple(more) if key in DynaServeRouterSettings.model_fields}
    oracle = {"predictor": "oracle"} if told else {}
    predict = {"predict": "true_length"} if told else {}
    return config(router={"name": "dynaserve", **own, **oracle}, scheduler=OWN_BATCHES, **more, **predict)


AS_PRINTED = {"split": "balanced", "underused": 0}
"""Settings of Algorithm 1 as the paper prints it: every request is cut where both workers finish together."""


def own(**more: Any) -> dict[str, Config]:
    """Return the variants of DynaServe by name; the first is what ships."""
    return {
        "DynaServe": dynaserve(**more),
        "DynaServe, lengths told": dynaserve(told=True, **more),
        "DynaServe, any pair": dynaserve(pairs="any", **more),
        "Algorithm 1 as printed": dynaserve(**AS_PRINTED, **more),
    }


def traffic(
    lengths: Mapping[str, Any], rate: float, duration_s: float = DURATION_S, seed: int = SHOWN
) -> list[TraceRequest]:
    """Return Poisson arrivals of one workload."""
    return workload(duration_s=duration_s, seed=seed, arrivals={"kind": "poisson", "rate": rate}, **lengths)


def shape(prompt: int, output: int) -> dict[str, Any]:
    """Return a workload of one length."""
    return {"isl_tokens": prompt, "osl_tokens": output}


def sustained_rate(
    settings: Config, lengths: Mapping[str, Any], *, high: float = 4.0, steps: int = 6,
    duration_s: float = DURATION_S, seed: int = SHOWN,
) -> float:  # fmt: skip
    """Return the serving capacity: the highest request rate that is sustained (see `IN_TIME`)."""

    def sustained(rate: float) -> float:
        result, outcome = run(settings, traffic(lengths, rate, duration_s, seed))
        tbt_s = result.metrics.tbt_s.p99
        return float(tbt_s is not None and tbt_s <= LATEST_S and in_time(outcome) >= IN_TIME)

    return capacity(sustained, 0.0, high, target=1.0, steps=steps)


def in_time(outcome: RunOutcome) -> float:
    """Return the share of requests whose first token came in time."""
    good = sum(record.ttft_s is not None and record.ttft_s <= TTFT_S for record in outcome.records)
    return good / len(outcome.records)


Choice = TypeVar("Choice")


def best(choices: Iterable[Choice], score: Callable[[Choice], float]) -> Choice:
    """Return the choice with the highest score; the first of equals."""
    return max(choices, key=score)


@cache
def best_chunk(name: str, steps: int = 4, **more: Any) -> int:
    """Return the chunk size with which co-location serves most of one workload, on the seed for tuning."""
    lengths = MIXES[name]
    return best(CHUNKS, lambda chunk: sustained_rate(colocated(chunk, **more), lengths, steps=steps, seed=TUNED))


def gaps_of(outcome: RunOutcome) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct gaps between tokens in seconds, and how many there are of each."""
    gaps = outcome.gaps
    return np.asarray(gaps.means) / gaps.ticks_per_s, np.asarray(gaps.counts)


def token_goodput(outcome: RunOutcome) -> float:
    """Return output tokens per second of requests whose first token came in time, less the share of late gaps."""
    tokens = sum(r.osl_tokens for r in outcome.records if r.ttft_s is not None and r.ttft_s <= TTFT_S)
    return tokens * kept(outcome) / outcome.duration_s


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
