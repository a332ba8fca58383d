"""Tunes every system of README's table on one seed of its traffic, and runs the best of each on another.

    python benchmarks/compare.py

Each system tries every cell of its grid on eight GPUs: splits and tensor-parallel sizes, chunk sizes, and the settings
that its page calls the knob. The best serves most requests inside both SLOs on the seed for tuning; where two serve
equally many, the one with the lower P99 of TTFT. Ours are shown as shipped too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from experiment import Row, command, run, save

from pdplugins.config import find, load
from pdplugins.provenance import record
from pdplugins.settings import Setting, put
from pdplugins.types import TraceRequest
from pdplugins.workloads import traces
from pdplugins.workloads.transform import Transform

GPUS, RATE = 8, 10.0
TUNED_ON, SHOWN_ON = "azure-like:seed=1", "azure-like:seed=2"
TUNING_S = 900.0
"""Seconds of the traffic that are tuned on. All of the other seed is shown."""
CHUNKS = (256, 512, 1024, 2048, 4096, 8192)
SIZES = (1, 2, 4)
DECODING = (2, 4)
"""GPUs of a worker that decodes: next to the weights, one GPU has KV cache for ten requests of this traffic."""
Changes = Mapping[str, Any]
"""Dotted keys of a config, and their values."""


def pools(prefill: int, prefill_tp: int, decode: int, decode_tp: int) -> Changes:
    """Return the keys of pools at start."""
    return {
        "deployment.prefill.replicas": prefill, "deployment.prefill.tp": prefill_tp,
        "deployment.decode.replicas": decode, "deployment.decode.tp": decode_tp,
    }  # fmt: skip


def splits() -> Iterator[Changes]:
    """Yield the ways to give all GPUs to prefill workers of one size and decode workers of one size.

    Those with less than four GPUs for prefill are left out: they cannot compute the prompts that come.
    """
    for prefill_tp, decode_tp in product(SIZES, DECODING):
        for decode in range(1, GPUS // 2 // decode_tp + 1):
            prefill, rest = divmod(GPUS - decode * decode_tp, prefill_tp)
            if not rest:
                yield pools(prefill, prefill_tp, decode, decode_tp)


def alike() -> Iterator[Changes]:
    """Yield workers that are all alike, half of them with each label."""
    for tp in DECODING:
        yield pools(GPUS // tp // 2, tp, GPUS // tp // 2, tp)


def with_each(grid: Iterator[Changes], key: str, values: Sequence[Any]) -> Iterator[Changes]:
    """Yield each cell of a grid with each value of one more key."""
    for cell, value in product(list(grid), values):
        yield {**cell, key: value}


def scaled(**knobs: Sequence[Any]) -> Iterator[Changes]:
    """Yield the settings of a planner that starts with 1P1D, with prefill workers of one GPU or two."""
    for tp, *values in product((1, 2), *knobs.values()):
        yield {"deployment.prefill.tp": tp} | {
            f"planner.{key}": value for key, value in zip(knobs, values, strict=True)
        }


GRIDS: dict[str, list[Changes]] = {
    "dopd": list(scaled(wait_share=(0.12, 0.25, 0.5, 1.0))),
    "arrow": list(with_each(alike(), "simulation.step_tokens", CHUNKS)),
    "ampd": list(splits()),
    "dynaserve": list(alike()),
    "stock-least-loaded": list(splits()),
    "stock-threshold": list(scaled(down=(0.2, 0.4), target=(0.5,), up=(0.65, 0.8))),
    "stock-colocated": list(with_each(alike(), "simulation.step_tokens", CHUNKS)),
}
BESIDE: dict[str, dict[str, Changes]] = {
    "dopd": {"from 6P1D": pools(6, 1, 1, 2), "from 3P1D (TP 2)": pools(3, 2, 1, 2)},
    "stock-threshold": {"from 6P1D": pools(6, 1, 1, 2), "from 3P1D (TP 2)": pools(3, 2, 1, 2)},
    "stock-least-loaded": {
        "5P1D, 7 GPUs": pools(5, 1, 1, 2), "4P1D, 6 GPUs": pools(4, 1, 1, 2), "2P1D (TP 2), 6 GPUs": pools(2, 2, 1, 2),
    },
}  # fmt: skip
"""Other cells that are shown: scalers that start warm, and fixed pools that cost as little as a scaler."""


def config(name: str, changes: Changes) -> dict[str, Any]:
    """Return a shipped config with some keys changed."""
    data = load(find(name)).model_dump(mode="json")
    for key, value in changes.items():
        put(data, Setting(tuple(key.split(".")), value))
    return data


def traffic(name: str, clip_s: float | None = None) -> list[TraceRequest]:
    """Return the requests of one seed."""
    return Transform.of(rate=RATE, clip_s=clip_s, max_requests=None, max_context_tokens=None).apply(traces.read(name))


def measured(name: str, changes: Changes, requests: Sequence[TraceRequest]) -> Row:
    """Run one cell."""
    metrics = run(config(name, changes), requests, name=name)[0].metrics
    return {
        "attainment": metrics.slo_attainment, "gpu_hours": metrics.gpu_hours, "ttft_mean_s": metrics.ttft_s.mean,
        "ttft_p99_s": metrics.ttft_s.p99, "tpot_mean_ms": 1e3 * (metrics.tpot_s.mean or 0.0),
        "tbt_p99_ms": 1e3 * (metrics.tbt_s.p99 or 0.0),
    }  # fmt: skip


def shown(changes: Changes) -> str:
    """Return a cell in words: 6P1D (TP 1, 2), step_tokens 512."""
    words = [f"{key.rpartition('.')[2]} {value}" for key, value in changes.items() if not key.startswith("deployment.")]
    start = [value for key, value in changes.items() if key.startswith("deployment.")]
    if len(start) == 4:
        words.insert(0, "{0}P{2}D (TP {1}, {3})".format(*start))
    elif start:
        words.insert(0, f"prefill TP {start[0]}")
    return ", ".join(words)


def main() -> None:
    """Tune, and run the best."""
    tuning, other = traffic(TUNED_ON, TUNING_S), traffic(SHOWN_ON)
    rows, grid = list[Row](), list[Row]()
    for name, cells in GRIDS.items():
        tried = [(measured(name, cell, tuning), cell) for cell in cells]
        grid += [{"system": name, "settings": shown(cell), **found} for found, cell in tried]
        _, best = max(tried, key=lambda one: (round(one[0]["attainment"], 4), -one[0]["ttft_p99_s"]))
        chosen: dict[str, Changes] = {"as shipped": {}, f"tuned: {shown(best)}": best, **BESIDE.get(name, {})}
        for label, cell in chosen.items():
            rows.append({"system": name, "settings": label, **measured(name, cell, other)})
            print(rows[-1], flush=True)
    made = record("simulated", seed=0, command=command())
    save(
        "compare",
        {
            **made,
            "tuned_on": TUNED_ON,
            "tuned_s": TUNING_S,
            "shown_on": SHOWN_ON,
            "rate": RATE,
            "rows": rows,
            "grid": grid,
        },
    )


def cell() -> dict[str, list[Row]]:
    """Return two rows, computed again: benchmarks/equality.py."""
    requests = traffic(SHOWN_ON)
    found = [{"system": name, "settings": "as shipped", **measured(name, {}, requests)} for name in ("dopd", "arrow")]
    return {"compare": found}


if __name__ == "__main__":
    main()
