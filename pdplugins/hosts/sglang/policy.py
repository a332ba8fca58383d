"""The batch schedulers of `pdplugins.policies`, one for each queue of an engine, and never able to stop it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from pdplugins.config import Config, settings_of
from pdplugins.contracts.batching import BatchPlan, BatchScheduler, BatchView
from pdplugins.contracts.deployment import Deployment
from pdplugins.errors import ConfigError
from pdplugins.registry import default_registry

log = logging.getLogger(__name__)

LOG_EVERY = 1000
"""After the first one, every how manyth error is logged."""


def scheduler_factory(config: Config, deployment: Deployment) -> Callable[[], BatchScheduler]:
    """Return what builds the batch scheduler that `config` chooses."""
    choice = config.batch_scheduler
    if choice is None:
        raise ConfigError("batch_scheduler: none chosen; add for example 'batch_scheduler: dynaserve'")
    build = default_registry().get("batch_scheduler", choice.name).factory
    settings = settings_of("batch_scheduler", choice)
    return lambda: cast(BatchScheduler, build(settings, deployment))


class SafeScheduler:
    """A batch scheduler whose errors are counted, and logged once in a while; the engine then goes its own way."""

    def __init__(self, scheduler: BatchScheduler) -> None:
        self._scheduler = scheduler
        self.errors = 0

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan | None:
        """Return the plan for the next step; None when the policy raised."""
        try:
            return self._scheduler.next_batch(view, now_s)
        except Exception as error:  # whatever a policy does, serving goes on
            self._count(error)
            return None

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Let the policy learn from a step that has completed."""
        try:
            self._scheduler.on_step(view, plan, took_s)
        except Exception as error:
            self._count(error)

    def _count(self, error: Exception) -> None:
        if self.errors % LOG_EVERY == 0:
            log.exception("pdplugins: batch scheduler failed (%d times before): %s", self.errors, error)
        self.errors += 1
