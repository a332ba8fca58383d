"""A real Prometheus with the metrics of a Dynamo frontend that has served a simulated run: blocks made by promtool."""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdplugins.config import Config, parse
from pdplugins.hosts.dynamo.doors.frontend import CACHED, ISL, ITL, OSL, REQUESTS, TTFT
from pdplugins.sim.core.records import Record
from pdplugins.sim.run.simulate import simulate
from pdplugins.workloads import traces
from pdplugins.workloads.trace import TraceRequest
from tests.prometheus import prometheus, tool

MODEL = "llama"
SCRAPE_S = 15.0
BUCKETS = {
    ISL: (50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000),
    OSL: (10, 20, 50, 100, 200, 500, 1000, 2000),
    TTFT: (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50),
    ITL: (0.001, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5),
    CACHED: (50, 500, 5000),
}
PREFILL, DECODE = "dynamo_planner_num_prefill_replicas", "dynamo_planner_num_decode_replicas"


@dataclass(frozen=True)
class Page:
    """What a frontend's page has said from scrape to scrape."""

    start_s: float
    duration_s: float
    lines: tuple[str, ...]


def config(prefill: int = 2, decode: int = 1) -> Config:
    """Fixed pools behind the router that Dynamo has by default."""
    pools = {"prefill": {"replicas": prefill, "tp": 1}, "decode": {"replicas": decode, "tp": 2}}
    return parse({"deployment": {"gpu_budget": 8, **pools}, "router": {"name": "round-robin"}})


def traffic(rate: float, duration_s: float) -> list[TraceRequest]:
    lengths = (
        "isl_tokens={kind: lognormal, median: 900, sigma: 0.6},osl_tokens={kind: lognormal, median: 70, sigma: 0.6}"
    )
    arrivals = f"arrivals={{kind: poisson, rate: {rate}}}"
    return traces.read(f"synthetic:duration_s={duration_s:g},{arrivals},{lengths},seed=3")


def served(requests: Sequence[TraceRequest], config: Config) -> list[Record]:
    return simulate(config, requests, trace_name="test", command="test")[1].records


def page(
    records: Sequence[Record],
    start_s: float,
    duration_s: float,
    pools: Sequence[tuple[float, int, int]],
    model: str = MODEL,
) -> Page:
    """Return the metrics of a run, as they would have been scraped: `pools` are (second, prefill, decode)."""
    times = [start_s + index * SCRAPE_S for index in range(int(duration_s / SCRAPE_S) + 2)]
    lines: list[str] = []

    def counter(name: str, labels: str, events: Sequence[tuple[float, float]]) -> None:
        """`events` are (second, amount)."""
        ordered = sorted(events)
        sums = [0.0]
        for _, amount in ordered:
            sums.append(sums[-1] + amount)
        at = [second for second, _ in ordered]
        for now_s in times:
            lines.append(f"{name}{{{labels}}} {sums[bisect_right(at, now_s - start_s)]} {now_s}")

    label = f'model="{model}"'
    lines.append(f"# TYPE {REQUESTS.removesuffix('_total')} counter")
    counter(REQUESTS, label, [(r.arrival_s, 1.0) for r in records])
    for name, samples in samples_of(records).items():
        lines.append(f"# TYPE {name} histogram")
        for bound in (*BUCKETS[name], float("inf")):
            le = "+Inf" if bound == float("inf") else f"{bound}"
            inside = [(at_s, float(count)) for at_s, value, count in samples if value <= bound]
            counter(f"{name}_bucket", f'{label},le="{le}"', inside)
        counter(f"{name}_sum", label, [(at_s, value * count) for at_s, value, count in samples])
        counter(f"{name}_count", label, [(at_s, float(count)) for at_s, _, count in samples])
    for name, index in ((PREFILL, 1), (DECODE, 2)):
        lines.append(f"# TYPE {name} gauge")
        for now_s in times if pools else ():
            held = [pool for pool in pools if pool[0] <= now_s - start_s][-1]
            lines.append(f"{name} {held[index]} {now_s}")
    return Page(start_s, duration_s, tuple(lines))


def samples_of(records: Sequence[Record]) -> dict[str, list[tuple[float, float, int]]]:
    """Return (second, value, count) of every sample by metric."""
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in BUCKETS}
    for record in records:
        assert record.ttft_s is not None
        assert record.tpot_s is not None
        assert record.finish_s is not None
        found[ISL].append((record.arrival_s, record.isl_tokens, 1))
        found[OSL].append((record.finish_s, record.osl_tokens, 1))
        found[TTFT].append((record.arrival_s + record.ttft_s, record.ttft_s, 1))
        if record.osl_tokens > 1:
            found[ITL].append((record.finish_s, record.tpot_s, record.osl_tokens - 1))
    return found


@contextmanager
def recorded(folder: Path, pages: Sequence[Page] = (), scrapes: Sequence[str] = ()) -> Iterator[str]:
    """Run Prometheus over the history that `pages` are, and scrape these addresses once a second; yield its URL."""
    for number, one in enumerate(pages):
        text = folder / f"{number}.om"
        text.write_text("\n".join([*one.lines, "# EOF", ""]))
        words = ["tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
        subprocess.run([tool("promtool", "prometheus"), *words], check=True, capture_output=True)
    jobs = [{"job_name": "all", "scrape_interval": "1s", "static_configs": [{"targets": list(scrapes)}]}]
    with prometheus(folder, {"scrape_configs": jobs if scrapes else []}) as address:
        yield f"http://{address}"
