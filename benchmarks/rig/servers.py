"""Starts and stops real SGLang servers on a CPU, and speaks to them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdplugins.processes.ports import free_ports
from pdplugins.processes.process import python

HERE = Path(__file__).parent
START_S = 300.0
FLAGS = [
    "--device",
    "cpu",
    "--load-format",
    "safetensors",
    "--attention-backend",
    "torch_native",
    "--sampling-backend",
    "pytorch",
    "--reasoning-parser",
    "qwen3",
    "--tool-call-parser",
    "llama3",
    "--dtype",
    "float32",
    "--max-running-requests",
    "32",
    "--chunked-prefill-size",
    "256",
    "--host",
    "127.0.0.1",
    "--skip-server-warmup",
    "--sleep-on-idle",
    "--enable-deterministic-inference",  # else SGLang takes no seeds
]
DUAL = [
    "--disaggregation-mode",
    "decode",
    "--disaggregation-transfer-backend",
    "nixl",
    "--disaggregation-decode-enable-radix-cache",
]
GRAMMAR = {"0.5.16": "none", "0.5.23": "xgrammar"}
"""What runs on a CPU, by version of SGLang: both backends that are here end a server of 0.5.16 at the first regex."""
STOCK = ["--disaggregation-transfer-backend", "nixl", "--disaggregation-mode"]
"""And `prefill` or `decode`."""


def trees() -> list[Path]:
    """Folders that each hold one version of SGLang: `make test-sglang` puts them into the environment."""
    names = os.environ.get("PDPLUGINS_SGLANG_TREES", "")
    return [Path(name) for name in names.split(os.pathsep) if name]


def version_of(tree: Path) -> str:
    return next(tree.glob("sglang-*.dist-info")).name.removeprefix("sglang-").removesuffix(".dist-info")


def on_cpu(tree: Path) -> dict[str, str]:
    """Return the environment in which this version of SGLang runs on a CPU."""
    return {
        "PYTHONPATH": f"{HERE / 'stubs'}{os.pathsep}{tree}",
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_COMPILE_DISABLE": "1",  # it takes longer than all that it would speed up here
        # With overlap scheduling, SGLang's early send makes a CUDA event.
        "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
        # A busy machine is late twice in a row (SGLang's default) when nobody is dead.
        "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "5",
    }


@dataclass
class Server:
    """One SGLang server."""

    tree: Path
    model: Path
    log: Path
    options: Sequence[str] = ()
    config: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 16384
    program: str = sys.executable
    """The Python that has SGLang."""

    def __post_init__(self) -> None:
        self.port, self.bootstrap_port = free_ports(2)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address(self) -> dict[str, Any]:
        """What says that this server prefills a request; both sides get the same."""
        return {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.bootstrap_port, "bootstrap_room": room()}

    def start(self) -> Server:
        """Start it; `wait` tells when it serves."""
        options = [*FLAGS, "--model-path", str(self.model), "--port", str(self.port)]
        options += ["--nccl-port", str(free_ports(1)[0])]  # 0.5.16's choice may be another process's meanwhile
        options += ["--max-total-tokens", str(self.tokens), *self.options]
        options += ["--grammar-backend", GRAMMAR[version_of(self.tree)]]
        if "--disaggregation-mode" in options:
            options += ["--disaggregation-bootstrap-port", str(self.bootstrap_port)]
            if version_of(self.tree) != "0.5.16":  # its default registers host memory with CUDA
                options += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PDPLUGINS", "SGLANG"))}
        env |= on_cpu(self.tree)
        if self.config is not None:
            env["PDPLUGINS_CONFIG"] = str(self.config)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                python("sglang.launch_server", *options, executable=self.program),
                env=env | dict(self.env),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait(self) -> Server:
        """Return once it serves; raise with the end of its log when it does not."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}:\n{self.tail()}")
            with contextlib.suppress(OSError):
                get(self.url + "/v1/models")
                return self
            time.sleep(0.5)
        raise TimeoutError(f"no server after {START_S:.0f} s:\n{self.tail()}")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Signal it and what it started: its own session, which is a process group of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *error: object) -> None:
        stop(self)


def stop(*servers: Server) -> None:
    """Stop all, those that do not go at once by force."""
    for server in servers:
        server.signal(signal.SIGTERM)
    deadline = time.monotonic() + 2
    for server in servers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(max(deadline - time.monotonic(), 0))
        server.signal(signal.SIGKILL)
        server.process.wait(60)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
        body = answer.read()
        return json.loads(body) if body.strip() else None


def room() -> int:
    return random.getrandbits(62)


def corrupt_room() -> int:
    """A room whose KV cache the prefill side corrupts before it sends it: stubs/sglang_on_cpu.py."""
    return 0xBAD << 32 | random.getrandbits(32)
