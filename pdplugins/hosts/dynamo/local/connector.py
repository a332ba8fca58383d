"""Dynamo's connector protocol (``dynamo.planner.connectors.base``), over the worker processes of the local stack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.local.fleet import Fleet
from pdplugins.runtime.roster import Life


class LocalProcessConnector:
    """Scales the fleet as Dynamo's planner orders, and tells it what is there.

    :param worker_info: Dynamo's own provider of what workers say about themselves (``RuntimeFpmProvider``).
    :param on_target: called with the counts when the planner orders other ones than before.
    """

    def __init__(
        self,
        fleet: Fleet,
        model: str,
        gpus: Mapping[Role, int],
        worker_info: Any,
        on_target: Callable[[int, int], None] = lambda prefill, decode: None,
    ) -> None:
        self._fleet = fleet
        self._model = model
        self._gpus = gpus
        self._worker_info = worker_info
        self._on_target = on_target

    async def async_init(self) -> None:
        """Nothing to set up."""

    async def validate_deployment(self, **_: object) -> None:
        """Accept the deployment as the launcher started it."""

    async def wait_for_deployment_ready(self, include_planner: bool = True) -> None:
        """Return when at least one worker of each role serves."""
        while not all(self._fleet.count(role, Life.READY) for role in Role):
            await asyncio.sleep(0.1)

    def get_model_name(self, require_prefill: bool = True, require_decode: bool = True) -> str:
        """Return the name of the served model."""
        return self._model

    def get_gpu_counts(self, require_prefill: bool = True, require_decode: bool = True) -> tuple[int, int]:
        """Return the GPUs of one prefill and one decode worker."""
        return self._gpus[Role.PREFILL], self._gpus[Role.DECODE]

    def get_worker_info(self, sub_component_type: Any, backend: str = "mocker") -> Any:
        """Return what the workers of one role say about themselves."""
        return self._worker_info.get_worker_info(sub_component_type, backend)

    def get_worker_runtime_namespace(self, base_dynamo_namespace: str) -> str:
        """Return the namespace of the workers, which never changes here."""
        return base_dynamo_namespace

    async def get_actual_worker_counts(
        self, prefill_component_name: str | None = None, decode_component_name: str | None = None
    ) -> tuple[int, int, bool]:
        """Return how many prefill and decode workers serve, and whether no more are starting or draining."""
        fleet = self._fleet
        return fleet.count(Role.PREFILL, Life.READY), fleet.count(Role.DECODE, Life.READY), fleet.settled

    async def set_component_replicas(self, target_replicas: Iterable[Any], blocking: bool = True) -> None:
        """Order other counts. Returns at once; the fleet gets there on its own time."""
        now = {role: self._fleet.wanted(role) for role in Role}
        then = now | {Role(t.sub_component_type.value): int(t.desired_replicas) for t in target_replicas}
        if then != now:
            self._on_target(then[Role.PREFILL], then[Role.DECODE])
        for role, count in then.items():
            self._fleet.want(role, count)
