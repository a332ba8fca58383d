"""The section `node`: what `pdplugins power run` may do to the GPUs of one node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pdplugins.config.base import MOST_NAME, Choice, Pause, Seconds, Section, Watts
from pdplugins.contracts.workers import Role


class NodeWorker(Section):
    """One worker of the node, and its GPUs."""

    worker: str = Field(max_length=MOST_NAME, description="its name; beside a gateway its host:port there")
    gpus: tuple[str, ...] = Field(min_length=1, description="UUIDs of its GPUs")
    role: Role = Field(Role.PREFILL, description="its role at start, where the host does not tell it")


class NodeConfig(Section):
    """The GPUs of one node, whose caps and roles `pdplugins power run` moves. docs/power.md explains every key."""

    backend: Choice = Field(Choice(name="nvml"), description="who speaks with the GPUs: nvml, amdsmi, simulated")
    gpus: tuple[str, ...] = Field((), description="UUIDs of those that take part; all when empty")
    workers: tuple[NodeWorker, ...] = Field((), description="which GPUs serve which worker")
    budget_w: Watts | None = Field(
        None, description="watts that all caps may sum to; the power policy's own budget_w when absent"
    )
    floor_w: float = Field(100.0, ge=0, allow_inf_nan=False, description="no cap is below this, whatever the GPU takes")
    beside: Literal["nothing", "gateway", "dynamo"] = Field("nothing", description="who tells traffic and loads")
    url: str | None = Field(None, max_length=MOST_NAME, description="admin address of a gateway, or Dynamo's frontend")
    key_file: Path | None = Field(None, description="file with a key of the gateway's admin listener")
    actuator: Literal["host", "role_switch", "command", "nothing"] = Field(
        "host", description="who changes roles: the gateway, SGLang's /pd_role_switch, a program of yours, nobody"
    )
    command: tuple[str, ...] = Field((), description="the program of actuator command, with its first arguments")
    graph_gb: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GB that role_switch must find free for a decode worker's CUDA graphs",
    )
    drain_s: Seconds = Field(60.0, description="time in which a worker must drain, else it keeps its role")
    stale_s: Seconds = Field(5.0, description="age from which what the host told last counts no more")
    settle_s: Pause = Field(0.3, description="from a new cap until the draw below it counts")
    obey_s: Seconds = Field(3.0, description="time in which the draw must follow a lower cap, else all is rolled back")
    rest_s: Seconds = Field(5.0, description="pause after a change that failed")
    call_s: Seconds = Field(1.0, description="time of a driver call after which the GPU counts as hung")
    poll_s: Seconds = Field(0.1, description="pause between two readings of a GPU")
    tolerance_w: float = Field(
        15.0, ge=0, allow_inf_nan=False, description="by which a GPU that keeps its cap may exceed it"
    )
    restore_s: Seconds = Field(10.0, description="time in which the caps from before are put back at the end")
    state: Path = Field(Path("/var/lib/pdplugins/power"), description="folder of the lock and of the caps from before")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept ``backend: nvml`` for ``backend: {name: nvml}``."""
        if isinstance(data, dict) and isinstance(data.get("backend"), str):
            return data | {"backend": {"name": data["backend"]}}
        return data

    @model_validator(mode="after")
    def _complete(self) -> NodeConfig:
        if self.beside != "nothing" and self.url is None:
            raise ValueError(f"url: say where the {self.beside} is, for example http://127.0.0.1:8001")
        if self.actuator == "command" and not self.command:
            raise ValueError("command: name the program that changes roles")
        return self
