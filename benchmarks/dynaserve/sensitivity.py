"""DynaServe Figure 9 again where an assumed number is another one: mixed steps, KV transfer, the speed of prefill."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import (
    CHUNKS,
    SHOWN,
    TUNED,
    WORKLOADS,
    best,
    colocated,
    disaggregated,
    dynaserve,
    slo_aware,
    sustained_rate,
)  # fmt: skip
from experiment import Row, publish

from pdplugins.resources import data_dir

SLOWER = 1.02 / 0.83
"""Table 1: requests/s of 8192 tokens that one A100 prefills, modelled and measured."""
NAMES = ("BurstGPT (Azure conversation)", "arXiv summarization")
Profile = dict[str, Any]


def prefill(profile: Profile) -> None:
    """Make prefill as slow as the paper's."""
    profile["scale"] |= {"prefill": SLOWER, "source": "DynaServe, Table 1, P-8192 D-32, disaggregated: 0.83 requests/s"}


def transfer(times: float) -> Callable[[Profile], None]:
    """Return what makes a transfer of KV cache take `times` times as long."""

    def change(profile: Profile) -> None:
        known = profile["transfer"]
        known |= {"latency_s": times * known["latency_s"], "bytes_per_s": known["bytes_per_s"] / times}

    return change


def machines(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is assumed otherwise, and the keys of a config that say so."""
    source = data_dir("profiles") / "a100" / "qwen2.5-14b.json"
    yield "as published", {}
    yield "mixed steps 20 % cheaper", {"mixed_step_scale": 0.8}
    yield "mixed steps 20 % dearer", {"mixed_step_scale": 1.2}
    changes = {
        "KV transfer 4 times as fast": transfer(0.25), "KV transfer 10 times as slow": transfer(10.0),
        "prefill as slow as in Table 1": prefill,
    }  # fmt: skip
    for number, (title, change) in enumerate(changes.items()):
        profile = json.loads(source.read_text(encoding="utf-8"))
        change(profile)
        path = folder / f"{number}.json"
        path.write_text(json.dumps(profile), encoding="utf-8")
        yield title, {"profile": str(path)}


def rates(name: str, machine: dict[str, Any]) -> Row:
    """Return the capacity of every system on one machine; the chunk size is tuned for it."""

    def rate(settings: dict[str, Any], seed: int = SHOWN, steps: int = 5) -> float:
        return sustained_rate(settings, WORKLOADS[name], steps=steps, duration_s=120.0, seed=seed)

    chunk = best(CHUNKS[1:], lambda chunk: rate(colocated(chunk, **machine), TUNED, 3))
    found = {
        "co-located, best chunk": rate(colocated(chunk, **machine)),
        "co-located, SLO-aware": rate(slo_aware(**machine)),
        "disaggregated": rate(disaggregated(**machine)),
        "DynaServe": rate(dynaserve(**machine)),
    }
    over = {f"over {system}": found["DynaServe"] / value for system, value in found.items() if system != "DynaServe"}
    return Row(chunk=chunk, **found, **over)


def main() -> None:
    """Search the capacities on every machine."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for title, machine in machines(Path(folder)):
            rows += [Row(assumed=title, workload=name, **rates(name, machine)) for name in NAMES]
    publish(
        "dynaserve", "sensitivity", rows, seed=SHOWN, title="Figure 9 where an assumed number is another one",
        published="as for Figure 9.",
        notes=(
            "capacity as in Figure 9, over 120 s of traffic, exact to about 4 %; the chunk size is tuned again in each "
            f"line, on traffic of seed {TUNED}",
            "mixed steps: the time that prefill adds to a step with decodes, which no profile has measured; the router "
            "and the batch scheduler are told nothing of it",
            f"prefill as slow as in the paper's Table 1: prefill and dense times of the profile times {SLOWER:.2f}",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
