"""Chaos, and what was counted in it: `tests/chaos` for a while, each part with its result file.

    python benchmarks/chaos.py gateway [--seconds 240] [--seed 1]
    python benchmarks/chaos.py dynamo [--seconds 240] [--seed 1]

The tests bring the faults about, one to three at once in an order that the seed decides, and check after each what must
hold. They write what they counted, and this adds the sums and where it comes from. Nothing is written where a test
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import manifest

from pdplugins.provenance import record

TESTS = {"gateway": "tests/chaos/test_gateway.py", "dynamo": "tests/chaos/test_dynamo_serve.py"}
ENDS = ("requests", "answered", "refused", "closed", "left")
STEADY = ("sent", "right", "refused", "cut", "failed", "odd", "hung")


def counted(test: str, seconds: float, seed: int) -> dict[str, Any]:
    """Run a test, and return what it counted. Exits where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counted.json")
        chosen = {"CHAOS_S": str(seconds), "CHAOS_SEED": str(seed), "CHAOS_OUT": str(out), "CHAOS_ONLY": ""}
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no", test]
        if code := subprocess.run(command, cwd=manifest.ROOT, env={**os.environ, **chosen}, check=False).returncode:
            sys.exit(code)
        return dict(json.loads(out.read_text()))


def summed(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of all parts, each fault once, and their sums."""
    rows: dict[str, dict[str, Any]] = {}
    for part in parts.values():
        for row in part["faults"]:
            known = rows.setdefault(row["fault"], {**row, "times": 0, **dict.fromkeys(ENDS, 0), "longest_s": 0.0})
            for key in ("times", *ENDS):
                known[key] += row[key]
            known["longest_s"] = max(known["longest_s"], row["longest_s"])
    faults = list(rows.values())
    total = {key: sum(row[key] for row in faults) for key in ("times", *ENDS)}
    total |= {"kinds": len(faults), "longest_s": max(row["longest_s"] for row in faults)}
    steady = {key: sum(part["steady"][key] for part in parts.values()) for key in STEADY}
    steady["longest_s"] = max(part["steady"]["longest_s"] for part in parts.values())
    held = {
        name: {"rounds": len(part["held"]), "first": part["held"][0], "last": part["held"][-1]}
        for name, part in parts.items()
    }
    return {"rows": faults, "total": total, "steady": steady, "held": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=TESTS)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    manifest.check_script(sys.argv[0])
    before, began_s = os.getloadavg()[0], time.monotonic()
    result = summed(counted(TESTS[args.part], args.seconds, args.seed))
    command = f"python benchmarks/chaos.py {args.part} --seconds {args.seconds:g} --seed {args.seed}"
    facts = {
        **record("measured", seed=args.seed, command=command, took_part=("aiohttp", "uvloop", "ai-dynamo")),
        "cpus": os.cpu_count(),
        "load_average": [round(load, 1) for load in (before, os.getloadavg()[0])],
        "seconds": round(time.monotonic() - began_s),
    }
    print(json.dumps(facts | result, indent=1))
    manifest.write(f"chaos-{args.part}", facts | result)


if __name__ == "__main__":
    main()
