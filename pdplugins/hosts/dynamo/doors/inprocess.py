"""Door (b): a pdplugins planner inside the stock ``python -m dynamo.planner``, from its YAML alone.

.. code-block:: yaml

    plugin_registration:
      in_process_plugins:
        - module: pdplugins.hosts.dynamo.doors.inprocess
          class: PdPlanner
          plugin_id: pdplugins
          plugin_type: propose
          priority: 1
          execution_interval_seconds: 5
          hold_policy: HOLD_LAST
          needs: [observations.fpm, observations.workers]
          kwargs: {config: dopd, frontend_url: "http://127.0.0.1:8000"}

Without a `frontend_url`, add ``observations.traffic`` to the needs: Dynamo then asks Prometheus for the traffic. With
one, leave it out, or Dynamo's planner waits half a minute per tick for a Prometheus that is not there.

Its answer is final: Dynamo's own proposals are discarded, its CONSTRAIN stage and ``max_gpu_budget`` still apply.
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from dynamo.planner.plugins.types import (
    AcceptResult,
    BootstrapRequest,
    BootstrapResponse,
    ComponentTarget,
    OverrideResult,
    OverrideType,
    ProposeStageRequest,
    ProposeStageResponse,
)

from pdplugins.config import Config, find, load, parse
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.doors.proposer import Proposer, door_planner
from pdplugins.runtime.metrics import process_metrics
from pdplugins.runtime.planner import SafePlanner
from pdplugins.runtime.signals import SignalBoard, build_board


class PdPlanner(Proposer):
    """Dynamo's in-process planner plugin. Its arguments are the ``kwargs`` of the YAML entry.

    :param config: the name of a shipped config, the path of one, or the config itself as a mapping.
    :param decision_log: file to append decisions to.
    :param metrics_port: serve our metrics there; without it they are on the planner's own metrics port.
    :param metrics_host: the address that they are served on.
    :param frontend_url: read traffic, TTFT and TPOT from this frontend, or from several with commas between them,
        instead of from Prometheus.
    :param model: count only this model's requests at the frontend.
    :param shadow: decide and log, and leave Dynamo its own behaviour.
    :param state: file in which what the planner learned is kept for the next run.
    :param planner: in place of `config`, `decision_log` and `state`, a safe planner built in this process.
    :param board: where that planner hears and tells signals.
    """

    def __init__(  # noqa: PLR0913 - the kwargs of a YAML entry
        self,
        config: str | dict[str, Any] | None = None,
        *,
        decision_log: str | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        frontend_url: str | None = None,
        model: str | None = None,
        shadow: bool = False,
        state: str | None = None,
        planner: SafePlanner | None = None,
        board: SignalBoard | None = None,
    ) -> None:
        launched = planner is not None
        if planner is None:
            chosen = _config(config)
            log = Path(decision_log) if decision_log else None
            planner = door_planner(chosen, log, shadow=shadow, state=Path(state) if state else None)
            board = build_board(chosen)
        frontend = FrontendMetrics(frontend_url, model) if frontend_url else None
        super().__init__(planner, frontend=frontend, board=board, shadow=shadow, launched=launched)
        # Dynamo tells no plugin that it ends. A planner of this process is closed by whoever built it.
        atexit.register(self.close if not launched else self._board.close)
        if metrics_port is not None:
            process_metrics(Kind.PLANNER).serve(metrics_port, metrics_host)

    async def Bootstrap(self, _request: BootstrapRequest) -> BootstrapResponse:  # noqa: N802 - Dynamo's name
        """Get ready for the first tick."""
        await self.begin()
        return BootstrapResponse(ok=True)

    async def Propose(self, request: ProposeStageRequest) -> ProposeStageResponse:  # noqa: N802 - Dynamo's name
        """Answer one tick of Dynamo's PROPOSE stage."""
        decision = await self.propose(request.context)
        if decision is None:
            return ProposeStageResponse(accept=AcceptResult())
        plan = decision.answer
        targets = [
            ComponentTarget(sub_component_type=role, replicas=count, type=OverrideType.SET)
            for role, count in (("prefill", plan.prefill), ("decode", plan.decode))
        ]
        return ProposeStageResponse(final=True, override=OverrideResult(targets=targets, reason=plan.reason))


def _config(config: str | dict[str, Any] | None) -> Config:
    if config is None:
        raise ConfigError("kwargs: no config; add the name of a shipped one, the path of one, or one as a mapping")
    return load(find(config)) if isinstance(config, str) else parse(config, "kwargs.config")
