"""The public names of `pdplugins.contracts`. Plugins import from here; pdplugins itself imports from `contracts`."""

from pdplugins.contracts.batching import BatchPlan, BatchScheduler, BatchView, FallsBackToBatches, QueuedPrefill
from pdplugins.contracts.bundle import Bundle
from pdplugins.contracts.dated import DatedLoad
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Flow, FlowDecision, Go, Hold, Refuse, Waiting
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.perf import PerfModel, PowerTable
from pdplugins.contracts.planner import Eager, Planner, PlannerView, Remembers, ScalePlan, Traffic
from pdplugins.contracts.power import (
    Device,
    DeviceError,
    DeviceFault,
    Flip,
    GpuView,
    PowerBackend,
    PowerController,
    PowerPlan,
    Reading,
)
from pdplugins.contracts.register import NoSettings, Register
from pdplugins.contracts.request import Request, Slo, Terms
from pdplugins.contracts.roles import HearsRoles, MovesRoles, RoleChange, RoleMove, Stage
from pdplugins.contracts.router import (
    BindsEarly,
    ElasticRouter,
    Ending,
    FallsBack,
    HearsOutcomes,
    Outcome,
    Placement,
    PlansAhead,
    Router,
)
from pdplugins.contracts.signals import HearsSignals, Signals, TellsSignals
from pdplugins.contracts.workers import Capabilities, LoadView, Pool, Role, WorkerLoad, WorkerView
from pdplugins.perf.plain import PlainPerf
from pdplugins.workloads.trace import Round, TraceRequest

__all__ = [
    "BatchPlan",
    "BatchScheduler",
    "BatchView",
    "BindsEarly",
    "Bundle",
    "Capabilities",
    "DatedLoad",
    "Deployment",
    "Device",
    "DeviceError",
    "DeviceFault",
    "Eager",
    "ElasticRouter",
    "Ending",
    "FallsBack",
    "FallsBackToBatches",
    "Flip",
    "Flow",
    "FlowDecision",
    "Go",
    "GpuView",
    "HearsOutcomes",
    "HearsRoles",
    "HearsSignals",
    "Hold",
    "LoadView",
    "MovesRoles",
    "NoSettings",
    "Outcome",
    "PerfModel",
    "Placement",
    "PlainPerf",
    "Planner",
    "PlannerView",
    "PlansAhead",
    "Pool",
    "PowerBackend",
    "PowerController",
    "PowerPlan",
    "PowerTable",
    "QueuedPrefill",
    "Reading",
    "Refuse",
    "Register",
    "Remembers",
    "Request",
    "Role",
    "RoleChange",
    "RoleMove",
    "Round",
    "Router",
    "ScalePlan",
    "Signals",
    "Slo",
    "Stage",
    "TellsSignals",
    "Terms",
    "TraceRequest",
    "Traffic",
    "Waiting",
    "WorkerLoad",
    "WorkerView",
    "is_number",
]
