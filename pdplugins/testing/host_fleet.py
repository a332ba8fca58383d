"""What a host promises to policies that see the fleet: planners, power controllers, and all that move roles."""

from __future__ import annotations

from itertools import pairwise

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan
from pdplugins.contracts.roles import RoleChange, Stage
from pdplugins.contracts.router import Ending
from pdplugins.contracts.workers import Role
from pdplugins.testing.host_policies import (
    BadPlanner,
    CappingPower,
    FlippingPower,
    HearingPlanner,
    MovingRouter,
    WatchingPlanner,
)
from pdplugins.testing.scenario import HostTests, Job, Scenario, Seam, Served, fills

LONG = tuple(Job(0.25 * index, 100, 5) for index in range(40))
"""Ten seconds of work, for what happens on a planner's tick."""
FIRST_PLANS = 3
"""Least number of plans that a planner makes in that time."""


def _all_finished(served: Served) -> None:
    assert set(served.endings) <= {Ending.FINISHED}


class FleetTests(HostTests):
    """Each test is that of one seam."""

    # --- planners ----------------------------------------------------------------------------------------------------

    @fills(Seam.PLANNER_VIEW)
    def test_the_planner_sees_the_workers_and_the_traffic(self) -> None:
        """On a clock that goes on."""
        planner = WatchingPlanner((0.0, 1, 2))
        _all_finished(self.run(Scenario(LONG, prefill=1, decode=2, planner=planner)))
        views = planner.views
        assert len(views) >= FIRST_PLANS
        assert all(later.now_s > view.now_s for view, later in pairwise(views))
        assert {(view.prefill.ready, view.decode.ready) for view in views} == {(1, 2)}
        windows = [view.traffic for view in views if view.traffic is not None]
        assert len(LONG) / 2 < sum(window.requests for window in windows) <= len(LONG)
        lengths = [window.isl_tokens for window in windows if window.isl_tokens is not None]
        assert lengths
        assert all(abs(tokens - LONG[0].prompt_tokens) < 1 for tokens in lengths)

    @fills(Seam.PLANNER_POOLS)
    def test_the_pools_follow_the_planner(self) -> None:
        """One worker more, and then one less; the planner sees both."""
        planner = WatchingPlanner((0.0, 1, 1), (2.0, 2, 1), (6.0, 1, 1))
        _all_finished(self.run(Scenario(LONG, prefill=1, decode=1, planner=planner)))
        pools = [(view.prefill.ready, view.decode.ready) for view in planner.views]
        assert pools[0] == (1, 1), pools
        assert (2, 1) in pools, pools
        assert pools[-1] == (1, 1), pools

    @fills(Seam.PLANNER_FAULTS)
    def test_a_bad_planner_changes_no_worker_and_is_counted(self) -> None:
        """The workers stay that there are."""
        for answer in (RuntimeError("a planner that always fails"), None, ScalePlan(-1, 0, "nobody")):
            planner = BadPlanner(answer)
            served = self.run(Scenario(LONG, prefill=1, decode=2, planner=planner))
            _all_finished(served)
            assert len(planner.views) >= FIRST_PLANS, answer
            assert {(view.prefill.ready, view.decode.ready) for view in planner.views} == {(1, 2)}, answer
            assert served.faults.get(Kind.PLANNER, 0) >= len(planner.views), answer

    @fills(Seam.GPU_BUDGET)
    def test_a_planner_gets_no_more_gpus_than_the_budget(self) -> None:
        """It gets more workers than at the start, though."""
        planner = WatchingPlanner((0.0, 50, 50))
        _all_finished(self.run(Scenario(LONG, prefill=1, decode=1, planner=planner, gpu_budget=6)))
        pools = [(view.prefill, view.decode) for view in planner.views]
        held = [sum(pool.ready + pool.starting + pool.draining for pool in pair) for pair in pools]
        assert 2 < max(held) <= 6, held

    # --- roles -------------------------------------------------------------------------------------------------------

    def _changed(self, changes: list[RoleChange], by: str) -> None:
        done = [change for change in changes if change.stage is Stage.DONE]
        assert done, f"no role has changed: {changes}"
        assert all(change.by == by for change in done), f"not by the {by}: {done}"
        assert any((change.before, change.role) == (Role.DECODE, Role.PREFILL) for change in done)

    @fills(Seam.PLANNER_ROLES)
    def test_the_planner_changes_roles_and_hears_of_it(self) -> None:
        """A decode worker becomes a prefill worker."""
        planner = HearingPlanner()
        served = self.run(Scenario(LONG, prefill=1, decode=2, any_role=True, planner=planner))
        _all_finished(served)
        self._changed(planner.changes, "planner")

    @fills(Seam.ROUTER_ROLES)
    def test_the_router_changes_roles_and_hears_of_it(self) -> None:
        """A decode worker becomes a prefill worker."""
        router = MovingRouter()
        served = self.run(Scenario(LONG, router, prefill=1, decode=2, any_role=True))
        _all_finished(served)
        self._changed(router.changes, "router")

    @fills(Seam.POWER_ROLES)
    def test_the_power_controller_changes_roles_and_hears_of_it(self) -> None:
        """A decode worker becomes a prefill worker."""
        power = FlippingPower()
        served = self.run(Scenario(LONG, prefill=1, decode=2, any_role=True, power=power))
        _all_finished(served)
        self._changed(power.changes, "power")

    @fills(Seam.POWER_CAPS)
    def test_the_power_controller_sets_caps(self) -> None:
        """The GPUs keep them from then on, as the controller sees."""
        power = CappingPower()
        _all_finished(self.run(Scenario(LONG, prefill=1, decode=1, power=power)))
        assert len(power.caps_w) >= FIRST_PLANS
        assert power.caps_w[-1] == [power.cap_w] * 2, power.caps_w
