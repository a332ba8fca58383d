"""Beyond the paper: AMPD on recorded agents (WEKA, tau-bench), or on the shipped `sessions` workload without them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import AMPD, AS_PRINTED, CHUNKS, DYNAMO, PAPER, chunked, label, score
from experiment import Row, publish

from pdplugins.types import TraceRequest
from pdplugins.workloads import traces
from pdplugins.workloads.transform import Transform

PROFILE, GPUS, CONTEXT = "h100/llama-3.1-70b-fp8", 16, 131_072
ROUNDS = 1500
SYSTEMS: dict[str, list[dict[str, Any]]] = {
    "ampd": [AMPD],
    "as printed": [AS_PRINTED],
    "Dynamo-like": [DYNAMO],
    "co-located": [chunked(tokens) for tokens in CHUNKS],
}
"""Each with the variants that are tried."""
POOLS = (
    ((2, 1), (2, 7)), ((2, 2), (2, 6)), ((2, 3), (2, 5)), ((4, 1), (4, 3)), ((4, 2), (4, 2)), ((4, 3), (4, 1)),
)  # fmt: skip
"""(TP, replicas) of prefill and of decode; of co-located workers, the sum counts."""
RATES = {"WEKA": (0.1, 0.2, 0.3), "tau-bench": (10.0, 20.0, 40.0), "sessions (generated)": (1.0, 2.0, 4.0)}


def read(path: str, rate: float, *, tuning: bool = False) -> list[TraceRequest]:
    """Return sessions of one half of a trace, at so many a second, within the model's context."""
    half = traces.read(path)[tuning::2]
    kept, rounds = [], 0
    for session in Transform(rate=rate, max_context_tokens=CONTEXT).apply(half):
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
        middle = read(path, RATES[name][1], tuning=True)
        best = {
            system: max(
                ((pools, parts) for pools in POOLS for parts in variants),
                key=lambda candidate: score(data(*candidate), middle)["attainment"],
            )
            for system, variants in SYSTEMS.items()
        }
        for rate in RATES[name]:
            requests = read(path, rate)
            row: Row = {"trace": name, "sessions/s": f"{rate:g}", "rounds": sum(1 + len(r.rounds) for r in requests)}
            for system, candidate in best.items():
                row[system] = round(score(data(*candidate), requests)["attainment"], 3)
            row["deployment of ampd"] = label(best["ampd"][0])
            (((tp, more), (_, others)), parts) = best["co-located"]
            row["of co-located"] = f"<TP={tp}, DP={more + others}>, {parts['simulation']['step_tokens']} tokens"
            rows.append(row)
    publish(
        PAPER, "sessions", rows,
        title="Beyond the paper: recorded agents, Llama-3.1-70B FP8 on 16 H100, TTFT 2 s, TPOT 80 ms",
        published="(not in the paper)",
        notes=(
            f"Every second session is used to choose each system's deployment (of {len(POOLS)}) and the chunk size of "
            f"co-location (of {len(CHUNKS)}) at the middle rate; the others are shown. Prompts are cut to the model's "
            "context of 131,072 tokens; arrivals of sessions are drawn, the recordings have none.",
            "WEKA's rounds repeat 100,000 tokens and add 700: what counts there is how many histories stay in "
            "the KV cache. Co-location keeps them on all GPUs, a disaggregated deployment on its decode workers only.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
