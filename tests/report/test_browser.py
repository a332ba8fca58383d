"""The pages in a real Chromium: on a phone and on a desk, by keyboard, for a screen reader, and without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pdplugins.report.runs import page as page_of_runs
from pdplugins.results import Scaling
from pdplugins.studies.advise.page import page as page_of_advice
from tests.report import browser
from tests.report.made import run
from tests.studies.advise.questions import small_advice

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


PAGES: dict[str, Callable[[], str]] = {"one run": one_run, "comparison": comparison, "advice": advice}


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
