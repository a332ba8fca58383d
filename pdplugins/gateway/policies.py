"""The policies of a gateway, and what they share with each other and with the rest: a journal and signals."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from time import monotonic

from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError
from pdplugins.gateway.metrics import GatewayJournal, GatewayMetrics
from pdplugins.registry import Registry
from pdplugins.runtime.journal import build_journal
from pdplugins.runtime.metrics import Metrics
from pdplugins.runtime.policies import build_policies
from pdplugins.runtime.signals import PACE_S, build_board, connect

log = logging.getLogger("pdplugins.gateway")


class GatewayPolicies:
    """Router and flow policy of a config.

    Raises ConfigError when the config's policies, its folder of signals or the decision log cannot be used.
    """

    def __init__(
        self,
        config: Config,
        deployment: Deployment,
        registry: Registry | None,
        metrics: GatewayMetrics,
        decision_log: Path | None,
    ) -> None:
        policies = build_policies(config, deployment, registry)
        self.router = policies.router()
        """None: the least loaded workers are taken."""
        if config.gateway.shadow and self.router is None:
            raise ConfigError("gateway.shadow: no router to try; add for example 'router: arrow'")
        self.flow = policies.flow()
        """None: requests do not wait before the workers."""
        if config.gateway.shadow and self.flow is not None:
            log.warning("the flow policy is not asked in shadow mode: nothing waits that it could let go on")
            self.flow = None
        kinds = [Metrics(kind, metrics.registry) for kind in (Kind.ROUTER, Kind.FLOW)]
        journal = build_journal(
            config, deployment, registry, decision_log=decision_log, metrics=kinds, shadow=config.gateway.shadow
        )
        self.journal = GatewayJournal(journal, metrics)
        self._board = build_board(config)

    async def share_signals(self) -> None:
        """Carry signals between the policies here, and to and from other processes, for as long as this runs."""
        while True:
            parts = {Kind.ROUTER: self.router, Kind.FLOW: self.flow}
            present = {kind: part for kind, part in parts.items() if part is not None}
            connect(present, self._board, monotonic(), self.journal)
            await asyncio.sleep(PACE_S)

    def signals(self) -> dict[str, float]:
        """Return what all parts of the policy told last, here and in other processes."""
        return self._board.hear("", monotonic())

    def close(self) -> None:
        """Close the decision log, and take back this process's signals."""
        self._board.close()
        self.journal.close()
