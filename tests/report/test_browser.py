"""The pages in a real Chromium: on a phone and on a desk, by keyboard, for a screen reader, and without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pdplugins.config import Config
from pdplugins.policies.ampd.planning import DeploymentPlan, Group
from pdplugins.report.runs import page as page_of_runs
from pdplugins.report.series import series_of_records
from pdplugins.results import RequestRecord, Scaling
from pdplugins.studies.advise.page import page as page_of_advice
from pdplugins.studies.deployment.coefficients import LOADS, POOLS, Curve
from pdplugins.studies.deployment.plan import Judged, Planned
from pdplugins.studies.deployment.report import page as page_of_plans
from pdplugins.types import Role, Slo
from tests.report import browser
from tests.report.made import run
from tests.studies.advise.questions import small_advice

pytestmark = pytest.mark.timeout(600)  # a machine with much else to do is slow to draw

LONG = "a-name-without-any-place-to-break-it-" * 6 + "<script>alert(1)</script>"


@cache
def one_run() -> str:
    made = run("dopd", requests=600)
    scaling = [Scaling(at_s=at, prefill=1 + at % 3, decode=1, reason=f"{at} {LONG}") for at in range(20)]
    return page_of_runs([replace(made, result=made.result.model_copy(update={"scaling": scaling}))], [LONG])


@cache
def comparison() -> str:
    made = run(requests=600)
    return page_of_runs([replace(made, name=name) for name in ("dopd", "arrow", LONG, *map(str, range(9)))])


@cache
def advice() -> str:
    return page_of_advice(small_advice(), "pdplugins advise", "a commit")


@cache
def replay() -> str:
    """A run of which only the requests and the changes of the pools are known."""
    made = run("dopd", requests=600)
    records = [RequestRecord(float(at), 90, 3, (at + 0.2 * at, at + 0.3 * at + 1)) for at in range(1, 200)]
    scaling = [Scaling(at_s=0, prefill=1, decode=1), Scaling(at_s=90, prefill=3, decode=1, reason="a queue")]
    return page_of_runs([replace(made, series=series_of_records(records, Slo(2.0, 0.08), scaling))])


@cache
def plan() -> str:
    groups = Group(Role.PREFILL, 2, 3), Group(Role.DECODE, 4, 1)
    judged = tuple(Judged(DeploymentPlan(groups, 0.5 + rank), rank, run(requests=60).result) for rank in (1, 2, 3))
    curves = tuple(
        Curve(role, degree, 1.0 + degree, 0, (tuple(0.01 * 3**step for step in range(len(LOADS))),) * len(POOLS))
        for role in Role
        for degree in (1, 2, 4, 8)
    )
    planned = Planned(8, 1.5, curves, judged, 1.0, 1.0, 1.0)
    return page_of_plans(planned, 3, Config(), {"command": LONG, "versions": {"pdplugins": "1", "python": "3.11"}})


PAGES: dict[str, Callable[[], str]] = {
    "one run": one_run,
    "comparison": comparison,
    "advice": advice,
    "replay": replay,
    "plan": plan,
}


@pytest.fixture(autouse=True)
def there() -> None:
    browser.needs()


@pytest.mark.moderate
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_for_everyone(name: str, tmp_path: Path) -> None:
    """No violation of axe-core's rules, nothing to scroll sideways, nothing loaded, in the light and in the dark."""
    file = tmp_path / "page.html"
    file.write_text(PAGES[name]())
    assert file.stat().st_size < 1_000_000

    async def look() -> None:
        async with browser.chromium() as tab:
            for width in browser.WIDTHS:
                for dark in (False, True):
                    await tab.open(file.as_uri(), width, dark=dark)
                    assert await tab.overflow() == []
                    assert await tab.violations() == []
            await tab.open(file.as_uri(), browser.WIDTHS[0])
            await tab.value("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert await tab.overflow() == []
            assert await tab.violations() == []
            assert set(tab.requested) == {file.as_uri()}
            assert tab.complaints == []
            assert await tab.value("document.scripts.length") == 0

    asyncio.run(look())


@pytest.mark.moderate
def test_the_figures_of_a_chart_are_reached_by_keyboard(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(one_run())

    async def look() -> None:
        async with browser.chromium() as tab:
            await tab.open(file.as_uri(), browser.WIDTHS[0])
            assert await tab.reached_by_keyboard(2) == ["SUMMARY", "SUMMARY"]
            for kind in ("keyDown", "keyUp"):
                await tab.call("Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r")
            assert await tab.until("document.activeElement.parentElement.open")

    asyncio.run(look())
