"""Models that know only the six basic methods, as other packages register them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from pdplugins import hookimpl
from pdplugins.perf.plain import EXTENSIONS, PlainPerf, wide
from pdplugins.perf.profile import read_profile
from pdplugins.perf.steps import step_model
from pdplugins.perf.table import TableModel
from pdplugins.policies.ampd.costs import Costs
from pdplugins.registry import Registry
from pdplugins.resources import data_dir
from pdplugins.runtime.assembly import load_profile
from pdplugins.sim.core.power import NO_EFFECT, power_curve
from pdplugins.sim.core.steps import StepTimes
from pdplugins.types import Deployment, PerfModel, Register, Role, Slo


class Basic:
    """Written before the contract had more than this."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return 0.01 + 1e-4 * tokens

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return 0.01 + 1e-4 * batch

    def transfer_s(self, tokens: float) -> float:
        return 0.0

    def kv_capacity_tokens(self, tp: int) -> int:
        return 1000

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1000.0

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        return (1,)


class Dense(Basic):
    """One that knows more, but not all."""

    def dense_s(self, tokens: float, tp: int) -> float:
        return 0.004 + 1e-5 * tokens


class Whole(PlainPerf, Basic):
    """One that inherits what it does not say."""


def answers(perf: PerfModel) -> dict[str, Any]:
    arguments: dict[str, tuple[float, ...]] = {"dense_s": (100, 1), "decode_row_s": (4, 1), "power": ()}
    return {name: getattr(perf, name)(*arguments.get(name, (1,))) for name in EXTENSIONS}


def test_the_extensions_are_what_the_contract_has_beyond_the_basic_methods() -> None:
    methods = {name for name in vars(PerfModel) if not name.startswith("_")}
    assert methods - set(EXTENSIONS) == {name for name in vars(Basic) if not name.startswith("_")}


def test_a_model_that_lacks_methods_says_nothing_there_and_keeps_its_own() -> None:
    assert set(answers(wide(Basic())).values()) == {None}
    assert answers(wide(Dense())) == answers(wide(Basic())) | {"dense_s": pytest.approx(0.005)}
    assert wide(Basic()).prefill_s(100, 1) == Basic().prefill_s(100, 1)


def test_a_model_that_has_every_method_stays_itself() -> None:
    table = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-8b.json"))
    whole: PerfModel = Whole()
    assert wide(table) is table
    assert wide(whole) is whole


@pytest.mark.parametrize("kind", [Basic, Dense])
def test_a_registered_model_that_lacks_methods_serves_policies_and_the_simulator(
    kind: type[Basic], registry: Registry, add_plugin: Callable[..., ModuleType]
) -> None:
    @hookimpl
    def pd_register_profiles(register: Register) -> None:
        register("old/model", lambda _: kind())

    add_plugin("old", pd_register_profiles=pd_register_profiles)
    perf = load_profile("old/model", registry)
    assert StepTimes(perf, 1).mixed([(100, 0), (50, 20)], 4, 400) > StepTimes(perf, 1).line(4).step(400)
    assert (step_model(perf, 1).dense is None) is (kind is Basic)
    assert power_curve(perf) is NO_EFFECT
    assert Costs(Deployment(Slo(1, 1), perf, 2, 1, 1, 0.0, 8)).prefill_s(50, 100, 1) > 0
