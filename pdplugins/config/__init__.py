"""The config file: one YAML file for all hosts, which picks plugins by name and describes the deployment."""

from pdplugins.config.base import MOST_GPUS, MOST_JOBS, Choice
from pdplugins.config.choices import bundle_settings, in_bundle, resolved, settings_of, with_defaults
from pdplugins.config.files import find, load, named, parse, shipped
from pdplugins.config.messages import checked, first_error
from pdplugins.config.model import CHOICES, Config
from pdplugins.config.node import NodeConfig, NodeWorker
from pdplugins.config.sections import (
    Death,
    DecisionLogConfig,
    DeploymentConfig,
    ExtraWorkers,
    PoolConfig,
    SglangConfig,
    SignalsConfig,
    SimulationConfig,
    SloConfig,
)

__all__ = [
    "CHOICES",
    "MOST_GPUS",
    "MOST_JOBS",
    "Choice",
    "Config",
    "Death",
    "DecisionLogConfig",
    "DeploymentConfig",
    "ExtraWorkers",
    "NodeConfig",
    "NodeWorker",
    "PoolConfig",
    "SglangConfig",
    "SignalsConfig",
    "SimulationConfig",
    "SloConfig",
    "bundle_settings",
    "checked",
    "find",
    "first_error",
    "in_bundle",
    "load",
    "named",
    "parse",
    "resolved",
    "settings_of",
    "shipped",
    "with_defaults",
]
