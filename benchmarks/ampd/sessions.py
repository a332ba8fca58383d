"""Beyond the paper: AMPD on recorded agents (WEKA, tau-bench), or on the shipped `sessions` workload without them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import AMPD, AS_PRINTED, COLOCATED, DYNAMO, PAPER, score
from experiment import Row, publish

from pdplugins.types import TraceRequest
from pdplugins.workloads import traces
from pdplugins.workloads.transform import Transform

PROFILE, GPUS, CONTEXT = "h100/llama-3.1-70b-fp8", 16, 131_072
ROUNDS = 1500
SYSTEMS: dict[str, dict[str, Any]] = {
    "ampd": AMPD,
    "as printed": AS_PRINTED,
    "Dynamo-like": DYNAMO,
    "co-located": {**COLOCATED, "simulation": {"order": "decode_first"}},
}
POOLS = (((2, 1), (2, 7)), ((4, 1), (4, 3)), ((4, 2), (4, 2)), ((4, 3), (4, 1)))
RATES = {"WEKA": (0.1, 0.2, 0.3), "tau-bench": (10.0, 20.0, 40.0), "sessions (generated)": (1.0, 2.0, 4.0)}


def read(path: str, rate: float) -> list[TraceRequest]:
    """Return the first sessions of a trace, at so many a second, within the model's context."""
    changed = Transform(rate=rate, max_context_tokens=CONTEXT).apply(traces.read(path))
    kept, rounds = [], 0
    for session in changed:
        rounds += 1 + len(session.rounds)
        if rounds > ROUNDS and kept:
            break
        kept.append(session)
    return kept


def data(pools: Any, system: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a system on pools."""
    (prefill_tp, prefill), (decode_tp, decode) = pools
    deployment = {
        "profile": PROFILE,
        "gpu_budget": GPUS,
        "prefill": {"replicas": prefill, "tp": prefill_tp},
        "decode": {"replicas": decode, "tp": decode_tp},
    }
    return {"deployment": deployment, "simulation": {"order": "prefill_first"}, **system}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weka", help="rounds_dedup.csv of callanjfox/kv-cache-tester's sessions")
    parser.add_argument("--taubench", help="rounds of sierra-research/tau-bench's trajectories")
    given = parser.parse_args()
    files = {"WEKA": given.weka, "tau-bench": given.taubench}
    sources = {name: str(Path(file)) for name, file in files.items() if file} or {"sessions (generated)": "sessions"}
    rows: list[Row] = []
    for name, path in sources.items():
        middle = read(path, RATES[name][1])
        best = {
            system: max(POOLS, key=lambda pools, parts=parts: score(data(pools, parts), middle)["attainment"])
            for system, parts in SYSTEMS.items()
        }
        for rate in RATES[name]:
            requests = read(path, rate)
            row: Row = {"trace": name, "sessions/s": rate, "rounds": sum(1 + len(one.rounds) for one in requests)}
            for system, parts in SYSTEMS.items():
                row[system] = round(score(data(best[system], parts), requests)["attainment"], 3)
            rows.append(row)
    publish(
        PAPER, "sessions", rows,
        title="Beyond the paper: recorded agents, Llama-3.1-70B FP8 on 16 H100, TTFT 2 s, TPOT 80 ms",
        published="(not in the paper)",
        notes=(
            "Each system on the best of four deployments at the middle rate. Prompts are cut to the model's "
            "context of "
            "131,072 tokens; arrivals of sessions are drawn, the recordings have none.",
            "WEKA's rounds repeat 100,000 tokens and add 700: what counts there is how many histories stay in "
            "the KV cache. "
            "Co-location keeps them on all GPUs, a disaggregated deployment on its decode workers only.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
