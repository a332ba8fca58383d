"""How much README's table depends on the one term that no profile has a table of: prefill and decodes in one step.

    python benchmarks/mixed_steps.py

``simulation.mixed_step_scale`` multiplies what prefill adds to a step with decodes. The systems of the table run as
shipped, on the seed that the table shows, at 0.8, 1 and 1.2. `dynaserve/sensitivity.py` does the same with capacities.
"""

from __future__ import annotations

import compare
from experiment import Row, command, save

from pdplugins.provenance import record

SCALES = (0.8, 1.0, 1.2)
KEY = "simulation.mixed_step_scale"


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
    made = record("simulated", seed=0, command=command())
    save("mixed-steps", {**made, "scales": SCALES, "shown_on": compare.SHOWN_ON, "rows": rows})


def cell() -> dict[str, list[Row]]:
    """Return a part of the table, computed again: benchmarks/equality.py."""
    scale, requests = SCALES[-1], compare.traffic(compare.SHOWN_ON)
    found = [{"system": name, **beside({scale: compare.measured(name, {KEY: scale}, requests)})} for name in ("ampd",)]
    return {"mixed-steps": found}


if __name__ == "__main__":
    main()
