"""The servers that a config asks for, and the commands that start them on SGLang and on Dynamo."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pdplugins import extras
from pdplugins.config import Config
from pdplugins.contracts.workers import Role
from pdplugins.gateway.engines.sglang.launch import DUAL

PORT, BOOTSTRAP_PORT = 30000, 9000
"""Ports of the first server; the next ones have the next ports."""
MODEL = '"$MODEL"'
CONFIG = "config.yaml"
DYNAMO = {
    "DYN_DISCOVERY_BACKEND": "file",
    "DYN_FILE_KV": "$PWD/discovery",
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_EVENT_PLANE": "zmq",
}
"""What lets Dynamo run on one machine without etcd and NATS."""


class Way(StrEnum):
    """How requests are served."""

    UNIFIED = "unified"
    """Each worker serves whole requests."""
    DUAL = "dual"
    """Each worker does both phases, as the router says for each request."""
    SPLIT = "split"
    """A worker prefills or decodes."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server that is to be started."""

    name: str
    role: Role
    number: int
    """Its place among all servers."""
    tp: int
    first_gpu: int

    @property
    def gpus(self) -> str:
        """Say which GPUs it has, for ``CUDA_VISIBLE_DEVICES``."""
        return ",".join(str(self.first_gpu + index) for index in range(self.tp))


def way_of(config: Config) -> Way:
    """Tell how a config serves requests."""
    if config.router is not None and config.router.settings.get("colocated"):
        return Way.UNIFIED
    return Way.DUAL if config.sglang.dual_role else Way.SPLIT


def servers(config: Config) -> list[Server]:
    """Return the servers of the pools at start."""
    found: list[Server] = []
    gpu = 0
    for role, pool in ((Role.PREFILL, config.deployment.prefill), (Role.DECODE, config.deployment.decode)):
        for index in range(pool.replicas):
            tp = pool.tp if isinstance(pool.tp, int) else 1
            found.append(Server(f"{role}-{index}", role, len(found), tp, gpu))
            gpu += tp
    return found


def sglang_options(config: Config, server: Server) -> list[str]:
    """Return the options of ``sglang.launch_server`` for one server, without model, address and ports."""
    way, options = way_of(config), ["--tp-size", str(server.tp)]
    if way is not Way.SPLIT or server.role is Role.PREFILL:
        options += ["--chunked-prefill-size", str(config.simulation.step_tokens)]
    if way is not Way.SPLIT and config.simulation.order == "decode_first":
        options += ["--enable-mixed-chunk"]
    if way is Way.UNIFIED:
        return options
    role = DUAL if way is Way.DUAL else ("--disaggregation-mode", server.role.value)
    return [*options, "--disaggregation-transfer-backend", "nixl", *role]


def sglang_script(config: Config, model: str | None, about: str) -> str:
    """Return a script that starts SGLang's servers and the gateway on one machine."""
    way = way_of(config)
    lines = _head(about, "SGLang servers and the gateway on this machine", extras.how("sglang"), model)
    lines += [f"# {line}" for line in sglang_notes(config)]
    if way is Way.DUAL or config.batch_scheduler is not None:
        lines += [f"export PDPLUGINS_CONFIG={CONFIG}", ""]
    workers = []
    for server in servers(config):
        command = ["python", "-m", "sglang.launch_server", "--model-path", "MODEL", "--host", "127.0.0.1"]
        command += ["--port", str(PORT + server.number), *sglang_options(config, server)]
        if way is not Way.UNIFIED:
            command += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + server.number)]
        lines.append(f"CUDA_VISIBLE_DEVICES={server.gpus} {_shell(command)} &")
        label = f",role={server.role}" if way is Way.DUAL else ""
        workers.append(f"  --worker http://127.0.0.1:{PORT + server.number}{label}")
    lines += ["", f"pdplugins gateway --config {CONFIG} --port 8000 \\", " \\\n".join(workers)]
    return "\n".join(lines) + "\n"


def sglang_notes(config: Config) -> Iterator[str]:
    """Yield what these servers do otherwise than the simulation."""
    if way_of(config) is Way.DUAL and any(server.tp > 1 for server in servers(config)):
        yield "A dual-role server runs on one GPU so far: with a larger --tp-size these refuse to start, and say so."
        yield "Take workers of one GPU, or the best advice whose servers have one role each."
    if scales(config):
        yield "Nothing starts or stops servers here: the pools stay as they are at start."
        yield "So the figures above are not for this one."
    if config.power is not None:
        yield "Power caps stay as they are."


def scales(config: Config) -> bool:
    """Tell whether a planner of `config`, or of its bundle, starts and stops workers."""
    if config.planner is not None:
        return config.planner.name != "static"
    return config.bundle is not None and bool(config.bundle.settings.get("scale"))


def dynamo_options(config: Config, server: Server) -> list[str]:
    """Return the options of ``dynamo.sglang`` for one worker, without the model."""
    unified = way_of(config) is Way.UNIFIED
    options = ["--tp-size", str(server.tp)]
    if unified or server.role is Role.PREFILL:
        options += ["--chunked-prefill-size", str(config.simulation.step_tokens)]
    if unified:
        return [*options, "--enable-mixed-chunk"]
    role = ["--disaggregation-mode", server.role.value, "--disaggregation-transfer-backend", "nixl"]
    return [*options, *role, "--enable-forward-pass-metrics"] if config.planner is not None else [*options, *role]


def dynamo_script(config: Config, model: str | None, about: str) -> str:
    """Return a script that starts Dynamo's frontend and its SGLang workers on one machine."""
    lines = _head(
        about, "Dynamo's frontend and SGLang workers on this machine", 'pip install "ai-dynamo[sglang]"', model
    )
    lines += [f"# {line}" for line in dynamo_notes(config)]
    lines += [*(f'export {name}="{value}"' for name, value in DYNAMO.items()), ""]
    lines.append("python -m dynamo.frontend --http-port 8000 --router-mode kv &")
    for server in servers(config):
        command = ["python", "-m", "dynamo.sglang", "--model-path", "MODEL", *dynamo_options(config, server)]
        if way_of(config) is not Way.UNIFIED:
            command += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + server.number)]
        lines.append(f"CUDA_VISIBLE_DEVICES={server.gpus} {_shell(command)} &")
    return "\n".join([*lines, "wait -n", ""])


def dynamo_notes(config: Config) -> Iterator[str]:
    """Yield what Dynamo does otherwise than the simulation."""
    if way_of(config) is Way.DUAL:
        yield "Its frontend routes by KV cache, and these pools stay as they are: the router, the batches and the roles"
        yield "of the config are those of the SGLang script. So the figures above are not for this one."
    if scales(config):
        yield "The pools stay as they are at start here. On Kubernetes the planner scales them: kubernetes.yaml."
    if config.power is not None:
        yield "Power caps stay as they are."


def _head(about: str, what: str, needs: str, model: str | None) -> list[str]:
    given = shlex.quote(model) if model is not None else "${MODEL:?the path or the Hugging Face name of the model}"
    return [
        "#!/usr/bin/env bash",
        *(f"# {line}" for line in about.splitlines()),
        f"# Starts {what}; needs: {needs}",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        f"MODEL={given}",
        "trap 'kill $(jobs -p)' EXIT",
        "",
    ]


def _shell(words: list[str]) -> str:
    return shlex.join(words).replace(" MODEL ", f" {MODEL} ")
