"""For tests of plugins and of hosts: views made by hand, scripted policies, checks of answers, and conformance classes.

The rest of the package never imports this one. It needs no test framework; the conformance classes are for pytest:

* a plugin's author subclasses the class of the kind of policy, from `policies`, and says how to `make` one;
* a host's author subclasses `HostConformance` from `hosts` and says how to `run` a scenario.
"""

from pdplugins.testing.checks import (
    check_batch_plan,
    check_flow_decision,
    check_placement,
    check_power_plan,
    check_scale_plan,
)
from pdplugins.testing.models import LinearModel, flat_model
from pdplugins.testing.observations import Observations
from pdplugins.testing.policies import (
    BatchSchedulerConformance,
    FlowConformance,
    PlannerConformance,
    PowerConformance,
    RouterConformance,
)
from pdplugins.testing.scripted import FixedRouter, PoolsPlanner, RecordingRouter, ScriptedPlanner, ScriptSettings
from pdplugins.testing.views import Load, Worker, deployment, fleet, planner_view, request, worker

__all__ = [
    "BatchSchedulerConformance",
    "FixedRouter",
    "FlowConformance",
    "LinearModel",
    "Load",
    "Observations",
    "PlannerConformance",
    "PoolsPlanner",
    "PowerConformance",
    "RecordingRouter",
    "RouterConformance",
    "ScriptSettings",
    "ScriptedPlanner",
    "Worker",
    "check_batch_plan",
    "check_flow_decision",
    "check_placement",
    "check_power_plan",
    "check_scale_plan",
    "deployment",
    "flat_model",
    "fleet",
    "planner_view",
    "request",
    "worker",
]
