"""`pdplugins power` as a process over a node of stand-in GPUs."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from benchmarks.rig.gpus.nodes import Node, Standin
from tests.programs import PDPLUGINS
from tests.waiting import until

CONFIG: dict[str, Any] = {
    "slo": {"ttft_s": 1.0, "tpot_s": 0.04},
    "deployment": {
        "profile": "mi300x/llama-3.1-8b", "gpu_budget": 8,
        "prefill": {"replicas": 4, "tp": 1}, "decode": {"replicas": 4, "tp": 1},
    },
    "power": {"name": "rapid", "budget_w": 4800, "max_w": 700},
}  # fmt: skip


class Power:
    """The command line over one node."""

    def __init__(self, made: Standin, folder: Path) -> None:
        self.node: Node = made.node
        self.config = folder / "node.yaml"
        self.state = folder / "state"
        self._environment = made.environment
        self.running: list[subprocess.Popen[str]] = []
        self.write()

    def write(self, **changes: Any) -> None:
        """Write the config."""
        node = {"state": str(self.state), "call_s": 5.0, **changes.pop("node", {})}
        self.config.write_text(yaml.safe_dump({**CONFIG, **changes, "node": node}))

    def _command(self, *words: str) -> list[str]:
        return [*PDPLUGINS, "power", *words]

    def do(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self._command(*words), env=self._environment, capture_output=True, text=True, check=False, timeout=120
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the daemon."""
        process = subprocess.Popen(
            self._command("run", "--config", str(self.config), *words), env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def end(self, process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
        """End the daemon, and return what it said."""
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        return said

    def settled_at(self, *caps_w: float) -> bool:
        """Wait until the GPUs have these caps."""
        return until(lambda: self.node.limits_w() == list(caps_w))

    def keeps(self, port: int) -> bool:
        """Wait until every GPU is known, and all are seen to keep the budget."""

        def certain() -> bool:
            page = self.metrics(port)
            return page.count("\npdplugins_power_target_watts{") == 8 and "over_budget_watts 0.0" in page

        return until(certain)

    @staticmethod
    def metrics(port: int) -> str:
        """Read the page of metrics; empty while nobody serves it."""
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""
