"""All faults of a gateway, by name: who brings them about, and whether others may feel them."""

from __future__ import annotations

from tests.chaos.clients import CLIENTS, FILLS, OPERATOR
from tests.chaos.plan import Fault, Others
from tests.chaos.stage import Stage
from tests.chaos.workers import CUTS, FAILS, HURTS, ODD, PROCESS, WORKER

FAULTS: list[Fault[Stage]] = [
    *(Fault(name, "client", act) for name, act in CLIENTS.items()),
    *(Fault(name, "client", act, Others.REFUSED) for name, act in FILLS.items()),
    *(Fault(name, "operator", act) for name, act in OPERATOR.items()),
    *(Fault(name, "worker", act) for name, act in WORKER.items()),
    *(Fault(name, "worker", act, Others.REFUSED) for name, act in HURTS.items()),
    *(Fault(name, "worker", act, Others.CUT) for name, act in CUTS.items()),
    *(Fault(name, "worker", act, Others.FAILED) for name, act in FAILS.items()),
    *(Fault(name, "worker", act, Others.ODD) for name, act in ODD.items()),
]
OF_PROCESSES: list[Fault[Stage]] = [Fault(name, "worker", act, Others.CUT) for name, act in PROCESS.items()]
"""Those of a worker that is a process of its own."""
