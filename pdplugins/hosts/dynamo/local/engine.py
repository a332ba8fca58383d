"""How the processes of the stack are started: their command lines, their environment, the files they read."""

from __future__ import annotations

import json
import os
import site
from abc import ABC, abstractmethod
from pathlib import Path

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.local.model_dir import write_model
from pdplugins.hosts.dynamo.local.unified import unified_command
from pdplugins.hosts.dynamo.mocker import Engines, engine_args
from pdplugins.hosts.dynamo.router.engines import MOCKER, EngineKind
from pdplugins.hosts.dynamo.router.places import FRONT, NAMESPACE
from pdplugins.perf.npz import export_npz
from pdplugins.processes.addresses import without_proxy
from pdplugins.processes.process import python

MIGRATIONS = 3
"""How many other workers a request may go on at when its own dies."""


class Engine(ABC):
    """One kind of engine: the commands of the frontend and of the workers.

    :param folder: of the stack; what processes share and the discovery files live in it.
    :param model: the name by which clients call the model.
    :param delay_s: how long a worker waits before it starts its engine.
    :param broker_url: of the broker of the workers' events.
    """

    kind: EngineKind
    """How the router speaks with the workers."""
    start_s: float
    """How long a worker may take until it serves, and the endpoint until it answers."""

    def __init__(self, folder: Path, model: str, delay_s: float, broker_url: str) -> None:
        self._folder = folder
        self._model = model
        self._delay_s = delay_s
        self._broker_url = broker_url

    @property
    def discovery(self) -> Path:
        """The folder of Dynamo's file-based discovery."""
        return self._folder / "discovery"

    def prepare(self) -> None:
        """Write every file that the processes read."""
        self.discovery.mkdir()
        (self._folder / "home").mkdir()

    def frontend(self, host: str, port: int, *, routed: bool) -> list[str]:
        """Return the command of Dynamo's frontend. With `routed` it knows our router, and no worker."""
        where = ("--http-host", host, "--http-port", str(port))
        if routed:
            return python("dynamo.frontend", *where, "--namespace", FRONT)
        return python("dynamo.frontend", *where, "--router-mode", "round-robin", "--migration-limit", str(MIGRATIONS))

    @abstractmethod
    def worker(self, role: Role, *, at_once: bool, both: bool = False) -> list[str]:
        """Return the command of one worker, which does `both` phases or that of its role.

        `at_once` leaves out the delay before its engine starts.
        """

    @property
    def model_options(self) -> tuple[str, ...]:
        """What every program here is told of the model."""
        return "--model-path", str(self.model_folder), "--model-name", self._model

    @property
    @abstractmethod
    def model_folder(self) -> Path:
        """Where the model is, or at least its tokenizer."""

    def environment(self, worker: str | None = None) -> dict[str, str]:
        """Return the environment of a process; `worker` is the name of the worker it is to be.

        Settings of Dynamo in the user's own environment belong to some other deployment and are left out, but for the
        log level.
        """
        others = ("DYN_", "ETCD_", "NATS_")
        inherited = without_proxy({k: v for k, v in os.environ.items() if not k.startswith(others)})
        own = {
            "HOME": str(self._folder / "home"),  # Dynamo caches models there
            "PYTHONSAFEPATH": "1",  # a user's h2.py in this folder is not the package h2
            "PYTHONUSERBASE": site.getuserbase(),
            "TMPDIR": str(self._folder),  # Dynamo's logging leaves files behind
        }
        return inherited | self.runtime_environment() | own | ({"DYN_STABLE_ROUTING_ID": worker} if worker else {})

    def worker_environment(self, worker: str, *, both: bool) -> dict[str, str]:
        """Return the environment of the worker of that name."""
        return self.environment(worker)

    def runtime_environment(self) -> dict[str, str]:
        """Return what makes Dynamo need nothing but this machine: no etcd, no NATS, no model hub."""
        return {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self.discovery),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_ZMQ_BROKER_URL": self._broker_url,
            "DYN_NAMESPACE": NAMESPACE,
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "lo",  # an interface, whatever its name says
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "DYN_SYSTEM_PORT": "0",  # any port, but not none: workers serve their tokenizer to the frontend there
            "DYN_COMPUTE_THREADS": "0",
            # One request that all workers fail takes them away from everyone for so long, by default for 5 s. It takes
            # the launcher less to take away one that has died; until then, nobody's next attempt may go there.
            "DYN_RUNTIME_INHIBITED_DURATION_SECS": "1",
            "DYN_LOG": os.environ.get("DYN_LOG", "warn"),  # at info every request is logged twice
            "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }


class Mocker(Engine):
    """Dynamo's mocker engines, timed by the profile. The delay makes a start take as long as one with a GPU."""

    kind = MOCKER
    start_s = 120.0  # a crowded small machine is slow

    def __init__(self, folder: Path, model: str, deployment: Deployment, delay_s: float, broker_url: str) -> None:
        super().__init__(folder, model, delay_s, broker_url)
        self._deployment = deployment

    @property
    def model_folder(self) -> Path:
        """Where the tokenizer is; a mocker has no weights."""
        return self._folder / "model"

    def prepare(self) -> None:
        """Write every file that the processes read."""
        super().prepare()
        write_model(self.model_folder)
        deployment, table = self._deployment, self._folder / "timing.npz"
        export_npz(deployment.perf, table, deployment.prefill_tp, deployment.decode_tp)
        for role in Role:
            arguments = engine_args(role, Engines(), deployment, table)
            # The mocker registers before its simulated start-up is over and lets requests wait; a real engine
            # registers after. So the start-up is a delay before the process runs the engine.
            del arguments["startup_time"]
            self._engine_file(role).write_text(json.dumps(arguments), encoding="utf-8")

    def worker(self, role: Role, *, at_once: bool, both: bool = False) -> list[str]:
        """Return the command of one worker, which does `both` phases or that of its role.

        `at_once` leaves out the start-up time that a real engine would need.
        """
        delay_s = 0.0 if at_once else self._delay_s
        if both:
            files = {each: self._engine_file(each) for each in Role}
            return unified_command(role, self.model_options, files, delay_s)
        mode = ("--disaggregation-mode", role.value, "--extra-engine-args", str(self._engine_file(role)))
        return python("dynamo.mocker", *self.model_options, *mode, delay_s=delay_s)

    def _engine_file(self, role: Role) -> Path:
        return self._folder / f"{role}.json"
