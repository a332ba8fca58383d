"""Reads ``--launch``, the model and SGLang's options, and makes the command line of each server."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdplugins import extras
from pdplugins.config import Config
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError, HostError
from pdplugins.gateway.access.worker_keys import ADMIN_KEY, KEY, OPTION, WorkerKey
from pdplugins.processes.addresses import without_proxy
from pdplugins.processes.child import SECRET_ARGUMENTS
from pdplugins.processes.ports import free_ports
from pdplugins.processes.process import python
from pdplugins.resources import CONFIG_VARIABLE

HOST = "127.0.0.1"
DUAL = ("--disaggregation-mode", "decode", "--disaggregation-decode-enable-radix-cache", "--sleep-on-idle")
OURS = ("--model-path", "--host", "--port", "--disaggregation-mode", "--disaggregation-bootstrap-port")
"""Options that differ between servers, so that the gateway sets them."""
SECRET = ("--api-key", "--admin-api-key")
TP = ("--tp-size", "--tp", "--tensor-parallel-size")
PP = ("--pp-size", "--pp", "--pipeline-parallel-size")
LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class Launch:
    """The model and the options that all servers have."""

    model: str
    options: tuple[str, ...] = ()
    gpus: int = 1
    """GPUs of one server: its tensor-parallel times its pipeline-parallel size."""
    alone: bool = True
    """The gateway has no other servers, with which these would exchange KV cache."""

    @classmethod
    def parse(cls, text: str) -> Launch:
        """Read ``MODEL_PATH [options of sglang.launch_server]``. Raises ConfigError."""
        try:
            model, *options = shlex.split(text)
        except ValueError:
            raise ConfigError("--launch: name a model, and SGLang's options after it, in one argument") from None
        parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False, add_help=False)
        parser.add_argument(*TP, dest="tp", type=int, default=1)
        parser.add_argument(*PP, dest="pp", type=int, default=1)
        try:
            sizes, others = parser.parse_known_args(options)
        except argparse.ArgumentError as error:
            raise ConfigError(f"--launch: {error}") from None
        if taken := sorted({other.partition("=")[0] for other in others} & set(OURS)):
            raise ConfigError(f"--launch: leave out {', '.join(taken)}; the gateway sets it for each server")
        if seen := sorted({other.partition("=")[0] for other in others} & set(SECRET)):
            raise ConfigError(
                f"--launch: leave out {', '.join(seen)}, since everyone can read a command line; give the key with "
                f"{OPTION} or {KEY}, and the servers get it too"
            )
        if model.startswith("-"):
            raise ConfigError(f"--launch: begin with the model, not with {model}")
        return cls(model, tuple(options), sizes.tp * sizes.pp)


@dataclass(frozen=True, slots=True)
class Spec:
    """One server that is to be started."""

    name: str
    role: Role
    port: int
    gpus: tuple[str, ...]
    """What ``CUDA_VISIBLE_DEVICES`` says to it; nothing where there are no GPUs."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"

    def command(self, launch: Launch, *, dual: bool) -> list[str]:
        """Return the command that runs it until the gateway dies.

        Its bootstrap port is a new one each time, so that other servers do not take it for the one that has died.
        """
        role = DUAL if dual else ("--disaggregation-mode", self.role.value)
        return python(
            "sglang.launch_server",
            *("--model-path", launch.model, "--host", HOST, "--port", str(self.port)),
            *("--disaggregation-transfer-backend", "nixl", *role),
            *("--disaggregation-bootstrap-port", str(free_ports(1)[0]), *launch.options),
        )

    def environment(self, config: Path, key: WorkerKey) -> dict[str, str]:
        """Return the environment in which it runs, with the keys that it wants from then on."""
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        keys = [(option, value) for option, value in zip(SECRET, (key.key, key.admin), strict=True) if value]
        ours = {
            CONFIG_VARIABLE: str(config.absolute()),
            SECRET_ARGUMENTS: json.dumps([w for pair in keys for w in pair]),
        }
        inherited = {name: value for name, value in os.environ.items() if name not in (KEY, ADMIN_KEY)}
        return without_proxy(inherited) | gpus | ours


def plan(config: Config, launch: Launch) -> list[Spec]:
    """Return the servers that a config asks for. Raises ConfigError; HostError when this machine has too few GPUs."""
    if importlib.util.find_spec("sglang") is None:
        raise HostError(f"--launch: this Python has no SGLang; {extras.how('sglang')}")
    counts = {Role.PREFILL: config.deployment.prefill.replicas, Role.DECODE: config.deployment.decode.replicas}
    roles = [(role, number) for role, count in counts.items() for number in range(1, count + 1)]
    gpus, each = visible_gpus(os.environ), launch.gpus
    if gpus and len(gpus) < each * len(roles):
        raise ConfigError(
            f"--launch: {len(roles)} servers with {each} GPUs each need {each * len(roles)}, and {len(gpus)} are "
            "there; set deployment.prefill.replicas and deployment.decode.replicas of the config"
        )
    return [
        Spec(f"{role}-{number}", role, port, tuple(gpus[index * each : (index + 1) * each]))
        for index, ((role, number), port) in enumerate(zip(roles, free_ports(len(roles)), strict=True))
    ]


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` allows; all of them without it; none where there is no driver."""
    if (given := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu.strip() for gpu in given.split(",") if gpu.strip()]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LOOK_S)
    except (OSError, subprocess.SubprocessError):
        return []
    return said.stdout.split()
