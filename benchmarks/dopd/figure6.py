"""DOPD Figure 6: throughput against the number of prefill workers for one decode worker; the knee is the P/D ratio."""

from __future__ import annotations

from experiment import Row, draw, publish, run, workload

from pdplugins.config import parse
from pdplugins.policies.dopd.ratio import mean_context_tokens, pd_ratio
from pdplugins.runtime.assembly import build_deployment

PROFILE = "h100/llama-3.1-70b-fp8"
SHAPES = {"1000/150": (1000, 150, 4.58, 235), "3000/300": (3000, 300, 3.18, 78)}
"""Lengths, the paper's optimal number of prefill workers, and its concurrency of the decode worker."""
PREFILL = range(1, 8)


def throughput(prefill: int, isl: int, osl: int, clients: int) -> float:
    """Return output tokens per second of closed-loop clients on one decode worker of two GPUs."""
    closed = {"kind": "closed", "clients": clients, "requests_each": 10}
    trace = workload(arrivals=closed, isl_tokens=isl, osl_tokens=osl)
    config = {
        "deployment": {
            "profile": PROFILE, "gpu_budget": prefill + 2, "max_batch": 256,
            "prefill": {"replicas": prefill, "tp": 1}, "decode": {"replicas": 1, "tp": 2},
        },
        "router": "least-loaded",
    }  # fmt: skip
    _, outcome = run(config, trace)
    return sum(record.osl_tokens for record in outcome.records) / outcome.duration_s


def computed(isl: int, osl: int, concurrency: int) -> float:
    """Return the ratio of Eq. 15 for this profile, at the paper's concurrency."""
    perf = build_deployment(parse({"deployment": {"profile": PROFILE}})).perf
    step_s = perf.decode_step_s(concurrency, mean_context_tokens(isl, osl), 2)
    return pd_ratio(perf.prefill_s(isl, 1), step_s, osl, concurrency)


def main() -> None:
    """Sweep both shapes."""
    lines, rows = {}, []
    for shape, (isl, osl, ratio, clients) in SHAPES.items():
        ours = computed(isl, osl, clients)
        reached = [throughput(prefill, isl, osl, clients) for prefill in PREFILL]
        lines[shape] = list(PREFILL), [value / max(reached) for value in reached]
        for prefill, value in zip(PREFILL, reached, strict=True):
            gain = None if prefill == 1 else value / reached[prefill - 2] - 1
            rows.append(Row(workload=shape, P=prefill, tokens_per_s=value, gain=gain, eq15=ours, paper=ratio))
    draw(
        "dopd", "figure6", lines, x="prefill workers for one decode worker (TP 2)", y="share of the largest throughput",
        marks={f"paper's optimum {shape}": values[2] for shape, values in SHAPES.items()},
    )  # fmt: skip
    publish(
        "dopd", "figure6", rows, title="Figure 6: where the knee falls",
        published="throughput grows nearly linearly up to 4 prefill workers for 1000/150 (computed optimum 4.58) and "
        "up to 3 for 3000/300 (3.18); one more adds little, a second one nothing.",
        notes=[
            "as many closed-loop clients as the paper's concurrency of the decode worker: 235 and 78",
            "`gain` is over one prefill worker less; `eq15` is the ratio that Eq. 15 gives for the profile",
            "the knee lies about one worker above Eq. 15: clients in prefill are missing from the decode batch, whose "
            "steps are then faster than at the full concurrency that Eq. 15 assumes",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
