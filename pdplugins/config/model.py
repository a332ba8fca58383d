"""The whole config file."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from pdplugins.config.base import Choice, Section
from pdplugins.config.node import NodeConfig
from pdplugins.config.sections import (
    DecisionLogConfig,
    DeploymentConfig,
    SglangConfig,
    SignalsConfig,
    SimulationConfig,
    SloConfig,
)
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.workers import Role
from pdplugins.limits import GatewayConfig, TermsConfig
from pdplugins.registry import BUNDLE

CHOICES = (*Kind, BUNDLE)
"""Keys of a config that pick a plugin by name."""


class Config(Section):
    """A whole config file."""

    slo: SloConfig = SloConfig()
    deployment: DeploymentConfig = DeploymentConfig()
    planner: Choice | None = Field(None, description="how many workers of each role")
    router: Choice | None = Field(None, description="where each request runs; the host's own when absent")
    batch_scheduler: Choice | None = Field(None, description="what an instance runs next; the host's own when absent")
    flow: Choice | None = Field(None, description="what waits before the workers; nothing waits when absent")
    power: Choice | None = Field(None, description="watts per GPU; untouched when absent")
    bundle: Choice | None = Field(None, description="provides the policies that no key above picks")
    decision_log: DecisionLogConfig = DecisionLogConfig()
    signals: SignalsConfig = SignalsConfig()
    simulation: SimulationConfig = SimulationConfig()
    sglang: SglangConfig = SglangConfig()
    gateway: GatewayConfig = GatewayConfig()
    terms: TermsConfig = TermsConfig()
    node: NodeConfig = NodeConfig()

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept ``planner: dopd`` for ``planner: {name: dopd}``."""
        if not isinstance(data, dict):
            return data
        return {k: {"name": v} if k in CHOICES and isinstance(v, str) else v for k, v in data.items()}

    @model_validator(mode="after")
    def _a_worker_of_each_role(self) -> Config:
        """Refuse pools that leave a phase without a worker."""
        pools = {Role.PREFILL: self.deployment.prefill, Role.DECODE: self.deployment.decode}
        for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            if pools[role].replicas or (self.any_role and pools[other].replicas):
                continue
            raise ValueError(
                f"deployment.{role}.replicas: 0 leaves nobody to {role}; let it be at least 1, or 0 where {other} "
                "workers do both phases (simulation.flip: label, or sglang.dual_role: true)"
            )
        return self

    @property
    def any_role(self) -> bool:
        """Whether every worker can do both phases."""
        return self.simulation.flip == "label" or self.sglang.dual_role

    @property
    def profiles(self) -> set[str]:
        """The names of all profiles of its workers, or their files."""
        wanted = self.simulation
        more = (wanted.prefill_profile, wanted.decode_profile, *(workers.profile for workers in wanted.extra))
        return {self.deployment.profile, *filter(None, more)}

    @property
    def chosen(self) -> dict[str, Choice]:
        """The plugins that the file picks, by their key of `CHOICES`."""
        return {key: choice for key in CHOICES if (choice := getattr(self, key)) is not None}

    def choice(self, kind: Kind) -> Choice | None:
        """Return the policy that the key `kind` names; None where it is absent, even if a bundle has such a policy."""
        return self.chosen.get(kind)
