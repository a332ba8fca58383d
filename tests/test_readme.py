"""The console blocks of the pages are run, and print what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consoles import ROOT, consoles, differences, differences_of_replay, run

PAGES = {"README.md": 3, "docs/start.md": 2, "docs/tuning.md": 1}
"""Pages whose commands are run, and how many they are at least."""
SHOWN = list(consoles((ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(page: str, tmp_path: Path) -> None:
    """`python -m tests.consoles README.md` writes the figures again."""
    shown_here = consoles((ROOT / page).read_text(encoding="utf-8"))
    blocks = [shown for shown in shown_here if shown.command.startswith("pdplugins ")]
    assert len(blocks) >= PAGES[page]
    assert [line for shown in blocks for line in differences(shown.lines, run(shown.command, tmp_path))] == []


def test_the_other_commands_of_readme_are_run_in_ci() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    others = [shown.command.partition(" --json")[0] for shown in SHOWN if not shown.command.startswith("pdplugins ")]
    assert [it for it in others if it.removeprefix("dynamo serve --planner dopd ") not in script] == []


PRINTED = ["one 1.00* of 2,000", "two  99.5 % in 3 s", "three 7"]


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        (["one 1.00 of 2,010", "three 7"], 0),
        (["two 99.6 % …"], 0),
        (["two 97.5 % in 3 s"], 1),
        (["one 1.00 of 2,100"], 1),
        (["two 99.5 % at 3 s"], 1),
        (["three 7", "one 1.00 of 2,000"], 1),
    ],
)
def test_a_line_that_is_not_printed_is_found(shown: list[str], wrong: int) -> None:
    assert len(differences(shown, PRINTED)) == wrong


REPLAYED = "Replayed 418 requests in 73 s, 0 failed; SLO attainment {}%; TTFT p50 276 ms"


@pytest.mark.parametrize(("printed", "agrees"), [("46.0", True), ("60.1", True), ("77.0", False), ("15.0", False)])
def test_a_live_run_may_differ_by_some_points_of_attainment(printed: str, agrees: bool) -> None:
    assert (differences_of_replay([REPLAYED.format("45.9")], [REPLAYED.format(printed)]) == []) is agrees
    assert differences_of_replay([REPLAYED.format("45.9")], ["Serving."]) != []
    assert differences_of_replay([REPLAYED.format("45.9")], [REPLAYED.format("45.9").replace(" 0 f", " 1 f")]) != []
