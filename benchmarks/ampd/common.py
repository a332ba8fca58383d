"""The set-up that AMPD's experiments share: traces by Table 1, H20 servers, SLOs, systems and deployments."""

from __future__ import annotations

from functools import cache
from typing import Any

from measure import run, workload

from pdplugins.runtime.assembly import load_profile
from pdplugins.types import TraceRequest

PAPER = "ampd"
TABLE_1 = {
    "ToolBench": (3.96, 703.79, 50.39),
    "GAIA": (11.32, 6161.02, 528.76),
    "HotpotQA": (3.0, 1569.8, 80.03),
    "DuReader": (3.0, 3081.23, 150.10),
}
"""Mean rounds, prefill tokens and decode tokens of a session. The paper does not say whether its lengths are of a
session or of a round: of a round, 2 sessions/s of GAIA would need seven times what 32 H20 can compute."""
TOOL_S = {"ToolBench": 1.5, "GAIA": 3.0, "HotpotQA": 0.3, "DuReader": 0.3}
"""Mean seconds between two rounds: an API call, a step of an agent, a retrieval. Assumed; the paper does not say."""
GPUS = {"ToolBench": 8, "HotpotQA": 8, "DuReader": 16, "GAIA": 32}
MODELS = {"Llama-3.1-70B": "h20/llama-3.1-70b", "Qwen3-32B": "h20/qwen3-32b", "Mixtral-8x7B": "h20/mixtral-8x7b"}
CASES = [
    ("Llama-3.1-70B", "HotpotQA"), ("Llama-3.1-70B", "DuReader"), ("Llama-3.1-70B", "GAIA"),
    ("Qwen3-32B", "ToolBench"), ("Qwen3-32B", "HotpotQA"), ("Qwen3-32B", "DuReader"),
    ("Mixtral-8x7B", "ToolBench"), ("Mixtral-8x7B", "HotpotQA"), ("Mixtral-8x7B", "DuReader"), ("Mixtral-8x7B", "GAIA"),
]  # fmt: skip
"""Models and traces of Table 2."""
SLO_FACTOR = 10.0
"""SLOs over what a mean round takes on an idle worker of TP 4. The paper does not state its SLOs."""
LIMITS = "SLOs, gaps between rounds and the spread of lengths are not in the paper and are assumed here (`common.py`)"

Pools = tuple[tuple[int, int], tuple[int, int]]
"""(TP, replicas) of prefill, and of decode."""
TABLE_2: dict[tuple[str, str], tuple[Pools, Pools, Pools]] = {
    ("Llama-3.1-70B", "DuReader"): (((4, 2), (8, 1)), ((2, 4), (8, 1)), ((8, 1), (8, 1))),
    ("Llama-3.1-70B", "HotpotQA"): (((4, 1), (4, 1)), ((2, 2), (4, 1)), ((2, 1), (2, 3))),
    ("Llama-3.1-70B", "GAIA"): (((8, 2), (8, 2)), ((8, 3), (8, 1)), ((4, 4), (8, 2))),
    ("Qwen3-32B", "ToolBench"): (((4, 1), (4, 1)), ((2, 2), (4, 1)), ((2, 1), (2, 3))),
    ("Qwen3-32B", "HotpotQA"): (((4, 1), (4, 1)), ((2, 2), (4, 1)), ((2, 1), (2, 3))),
    ("Qwen3-32B", "DuReader"): (((4, 2), (4, 2)), ((4, 2), (2, 4)), ((2, 4), (4, 2))),
    ("Mixtral-8x7B", "ToolBench"): (((4, 1), (4, 1)), ((2, 1), (2, 3)), ((4, 1), (2, 2))),
    ("Mixtral-8x7B", "DuReader"): (((8, 1), (8, 1)), ((8, 1), (4, 2)), ((4, 2), (8, 1))),
    ("Mixtral-8x7B", "HotpotQA"): (((4, 1), (4, 1)), ((2, 1), (2, 3)), ((4, 1), (2, 2))),
    ("Mixtral-8x7B", "GAIA"): (((8, 2), (8, 2)), ((8, 3), (8, 1)), ((4, 4), (8, 2))),
}
"""The paper's three best deployments."""

AMPD = {"router": {"name": "ampd"}, "batch_scheduler": {"name": "ampd"}}
AS_PRINTED = {"router": {"name": "ampd", "slack": "windowed"}, "batch_scheduler": {"name": "ampd"}}
DYNAMO = {"router": {"name": "least-loaded", "sticky": True}}
"""Prefill always remote, on the shortest queue; rounds of a session decode on one worker."""
COLOCATED = {"router": {"name": "least-loaded", "sticky": True, "colocated": True}}
"""Prompts first, as vLLM does without chunked prefill; the paper's baseline."""
CHUNKS = (256, 512, 1024, 2048, 4096, 8192)
SHOWN, TUNED = 0, 1
"""Seeds: what is chosen is chosen on one, and shown on the other."""


def chunked(tokens: int) -> dict[str, Any]:
    """Return co-location with chunked prefill, steps of up to so many tokens."""
    return {**COLOCATED, "simulation": {"order": "decode_first", "step_tokens": tokens}}


def trace(name: str, rate: float, sessions: int, seed: int = 0) -> list[TraceRequest]:
    """Return sessions with the means of Table 1: lengths log-normal, rounds geometric where their mean is not whole."""
    rounds, prefill, decode = TABLE_1[name]
    lengths = {"kind": "lognormal", "sigma": 0.4}
    prompt = {**lengths, "median": prefill / rounds / 1.083, "low": 1}  # the mean is exp(sigma^2 / 2) = 1.083 medians
    answer = {**lengths, "median": decode / rounds / 1.083, "low": 1}
    count: Any = int(rounds) if rounds == int(rounds) else {"kind": "exponential", "mean": rounds, "low": 1, "high": 40}
    return workload(
        seed=seed,
        requests=sessions,
        arrivals={"kind": "poisson", "rate": rate},
        isl_tokens=prompt,
        osl_tokens=answer,
        sessions={
            "rounds": count,
            "gap_s": {"kind": "exponential", "mean": TOOL_S[name]},
            "new_tokens": prompt,
            "osl_tokens": answer,
        },
    )


@cache
def slo(model: str, name: str) -> dict[str, float]:
    """Return the SLOs of one model on one trace."""
    perf = load_profile(MODELS[model])
    rounds, prefill, _ = TABLE_1[name]
    return {
        "ttft_s": round(SLO_FACTOR * perf.prefill_s(prefill / rounds, 4), 3),
        "tpot_s": round(SLO_FACTOR * perf.decode_step_s(1, prefill, 4), 4),
    }


def most_sessions_per_s(model: str, name: str) -> float:
    """Return the sessions/s at which the prefills alone fill all GPUs of the case, in workers of TP 4."""
    perf = load_profile(MODELS[model])
    rounds, prefill, _ = TABLE_1[name]
    return GPUS[name] / 4 / (rounds * perf.prefill_s(prefill / rounds, 4))


def config(model: str, name: str, pools: Pools, system: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the config of a system on pools."""
    (prefill_tp, prefill), (decode_tp, decode) = pools
    return {
        "slo": slo(model, name),
        "deployment": {
            "profile": MODELS[model],
            "gpu_budget": GPUS[name],
            "prefill": {"replicas": prefill, "tp": prefill_tp},
            "decode": {"replicas": decode, "tp": decode_tp},
        },
        "simulation": {"order": "prefill_first"},
        **system,
        **more,
    }


def deployments(model: str, name: str) -> list[Pools]:
    """Return the paper's three, and every split of all GPUs into two pools of one degree each that the model fits."""
    gpus, degrees = GPUS[name], load_profile(MODELS[model]).tp_sizes("decode")  # type: ignore[arg-type]
    degrees = tuple(tp for tp in degrees if tp > 1)
    splits = {
        ((prefill_tp, share // prefill_tp), (decode_tp, (gpus - share) // decode_tp))
        for prefill_tp in degrees
        for decode_tp in degrees
        for share in range(max(gpus // 8, 2), gpus, max(gpus // 8, 2))
        if not share % prefill_tp and not (gpus - share) % decode_tp
    }
    return list(dict.fromkeys([*TABLE_2[model, name], *sorted(splits)]))


def colocated(model: str, name: str) -> list[Pools]:
    """Return every degree for co-located workers, in two halves, as the roles do not matter there."""
    gpus = GPUS[name]
    counts = [(tp, gpus // tp) for tp in load_profile(MODELS[model]).tp_sizes("decode")]  # type: ignore[arg-type]
    return [((tp, count // 2), (tp, count - count // 2)) for tp, count in counts if count > 1]


def score(data: dict[str, Any], requests: list[TraceRequest]) -> dict[str, float]:
    """Run a config; return its SLO attainment, the share of local prefills, and what clients felt."""
    result, outcome = run(data, requests)
    metrics = result.metrics
    local = [record.prefill_worker == record.decode_worker for record in outcome.records]
    return {
        "attainment": metrics.slo_attainment or 0.0,
        "local": sum(local) / len(local),
        "ttft_s": metrics.ttft_s.mean or 0.0,
        "tpot_ms": 1e3 * (metrics.tpot_s.mean or 0.0),
    }


Candidate = tuple[Pools, dict[str, Any]]
"""A deployment, and a system on it."""


def candidates(model: str, name: str, system: dict[str, Any] | None) -> list[Candidate]:
    """Return `system` on every deployment, or, where it is None, co-location on every degree with every chunk size."""
    if system is None:
        return [(pools, chunked(tokens)) for pools in colocated(model, name) for tokens in CHUNKS]
    where = colocated(model, name) if system is COLOCATED else deployments(model, name)
    return [(pools, system) for pools in where]


def best(model: str, name: str, among: list[Candidate], requests: list[TraceRequest]) -> Candidate:
    """Return what keeps most SLOs on `requests`; of equals, the one with the least mean TTFT."""

    def worth(candidate: Candidate) -> tuple[float, float]:
        got = score(config(model, name, *candidate), requests)
        return got["attainment"], -got["ttft_s"]

    return max(among, key=worth)


def label(pools: Pools) -> str:
    """Return pools as the paper writes them."""
    return "P <TP={}, DP={}>, D <TP={}, DP={}>".format(*pools[0], *pools[1])
