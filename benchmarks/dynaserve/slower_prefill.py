"""DynaServe Figure 9 again, on a machine whose prefill is as slow as the paper's: what that does to the ratios."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from common import WORKLOADS, sustained_rate, systems
from experiment import Row, publish

from pdplugins.resources import data_dir

SLOWER = 1.02 / 0.83
"""Table 1: requests/s of 8192 tokens that one A100 prefills, modelled and measured."""
SYSTEMS = (
    "co-located, chunk 512", "co-located, chunk 256", "co-located, SLO-aware", "disaggregated", "DynaServe, any pair",
)  # fmt: skip


def main() -> None:
    """Scale the profile and search the capacities."""
    profile = json.loads((data_dir("profiles") / "a100" / "qwen2.5-14b.json").read_text(encoding="utf-8"))
    profile["scale"] |= {"prefill": SLOWER, "source": "DynaServe, Table 1, P-8192 D-32, disaggregated: 0.83 requests/s"}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slower.json"
        path.write_text(json.dumps(profile), encoding="utf-8")
        for name in ("BurstGPT (Azure conversation)", "Azure code"):
            ready = systems(profile=str(path))
            found = {system: sustained_rate(ready[system], WORKLOADS[name]) for system in SYSTEMS}
            own = found["DynaServe, any pair"]
            best = max(found["co-located, chunk 512"], found["co-located, chunk 256"])
            over = {"over the best chunk": own / best, "over disaggregated": own / found["disaggregated"]}
            rows.append(Row(workload=name, **found, **over))
    publish(
        "dynaserve",
        "slower-prefill",
        rows,
        title="Figure 9 with prefill as slow as in the paper's Table 1",
        published="as for Figure 9.",
        notes=("prefill and dense times of the profile times 1.23; all else as in Figure 9",),
    )


if __name__ == "__main__":
    main()
