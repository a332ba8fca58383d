"""How much published figures depend on the one term that no profile has measured: prefill and decodes in one step.

    python benchmarks/mixed_steps.py

``simulation.mixed_step_scale`` multiplies what prefill adds to a step with decodes. The systems of README's table run
as shipped on the seed that the table shows, and those of DynaServe's Table 2 search their capacity, at 0.8, 1 and 1.2.
"""

from __future__ import annotations

import compare
from dynaserve.common import PAIRS, sustained_rate, systems
from experiment import Row, command, save

from pdplugins.provenance import record

SCALES = (0.8, 1.0, 1.2)
KEY = "simulation.mixed_step_scale"
MIX = {"pairs": [*PAIRS["azure-conversation"], *PAIRS["azure-code"]]}
"""The workload of DynaServe's Table 2."""


def beside(found: dict[float, Row]) -> Row:
    """Return the figures of all scales in one row, each under its name and the scale in percent."""
    return {f"{name}_{scale:.0%}".rstrip("%"): value for scale, row in found.items() for name, value in row.items()}


def main() -> None:
    """Run every system at every scale."""
    requests = compare.traffic(compare.SHOWN_ON)
    rows = [
        {"system": name, **beside({scale: compare.measured(name, {KEY: scale}, requests) for scale in SCALES})}
        for name in compare.GRIDS
    ]
    capacities: list[Row] = [
        {
            "system": name,
            **beside({s: {"rps": sustained_rate(systems(mixed_step_scale=s)[name], MIX)} for s in SCALES}),
        }
        for name in systems()
    ]
    made = record("simulated", seed=0, command=command())
    save("mixed-steps", {**made, "scales": SCALES, "shown_on": compare.SHOWN_ON, "rows": rows, "table2": capacities})


if __name__ == "__main__":
    main()
