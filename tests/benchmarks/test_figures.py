"""Pages quote the figures of the result files, and say of each figure where it is from."""

from __future__ import annotations

from pathlib import Path

import figures
import manifest
import pytest

from pdplugins.errors import PdpluginsError

ROOT = Path(__file__).parents[2]
PAGES = [str(path.relative_to(ROOT)) for path in figures.pages()]


@pytest.mark.parametrize("page", PAGES)
def test_every_marked_figure_is_that_of_its_result(page: str) -> None:
    """`python benchmarks/results.py pages` writes them again."""
    assert list(figures.wrong((ROOT / page).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES)
def test_what_looks_like_a_measured_figure_has_a_mark_or_a_source(page: str) -> None:
    assert list(figures.unmarked((ROOT / page).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_states_the_age_of_what_was_measured(page: str) -> None:
    named, aged = figures.sources((ROOT / page).read_text(encoding="utf-8"))
    assert {name for name in named if manifest.read(name).get("kind") == "measured"} <= aged


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "RESULTS", tmp_path)
    rows = [
        {"name": "a b", "share": 0.9353, "took": {"p50_ms": 1.25}, "stream": True},
        {"name": "c", "share": 0.5, "took": {"p50_ms": 3.0}, "stream": False},
    ]
    manifest.dump("x", {"rows": rows, "of": {"first key": 12345.6}, "commit": "0" * 12})
    manifest.dump("y", {"rows": rows[::-1]})


@pytest.mark.parametrize(
    ("mark", "shown"),
    [
        ("x rows[name=a b].share .1%", "93.5 %"),
        ("x rows[name=c & share=0.5].took.p50_ms .1f", "3.0"),
        ("x rows[1].took.p50_ms .2f", "3.00"),
        ("x of[first key] ,.0f", "12,346"),
        ("x rows[0].took.p50_ms * 1000 .0f", "1250"),
        ("x rows[1].took.p50_ms / rows[0].took.p50_ms .1f", "2.4"),
        ("x max(rows[*].share) - rows[1].share .2f", "0.44"),
        ("x commit s", "000000000000"),
    ],
)
@pytest.mark.usefixtures("result")
def test_a_mark_finds_its_figure(mark: str, shown: str) -> None:
    text = f"about {shown}<!-- figure: {mark} --> of it"
    assert list(figures.wrong(text)) == []
    assert (
        figures.refreshed(f"about **0.1<!-- figure: {mark} -->** of it")
        == f"about **{shown}<!-- figure: {mark} -->** of it"
    )
    assert len(list(figures.wrong(f"about 1{text[6:]}"))) == 1


@pytest.mark.parametrize("mark", ["x rows[name=none].share .1f", "x rows[7].share .1f", "x rows[0].share"])
@pytest.mark.usefixtures("result")
def test_a_mark_that_finds_nothing_is_an_error(mark: str) -> None:
    with pytest.raises(PdpluginsError, match="says how a mark is written"):
        figures.value(mark)


@pytest.mark.usefixtures("result")
def test_the_lines_of_a_table_are_written_from_the_rows() -> None:
    head = "| name | share |\n|---|---|\n"
    body = "| a b, c | 93.5 %, 50.0 % | stream, whole |\n| c, a b | 50.0 %, 93.5 % | whole, stream |\n"
    begin = "<!-- rows: x+y rows | {name} | {share:.1%} | {stream?stream:whole} | -->\n"
    assert figures.refreshed(f"{begin}{head}<!-- /rows -->") == f"{begin}{head}{body}<!-- /rows -->"
    assert list(figures.wrong(f"{begin}{head}{body}<!-- /rows -->")) == []
    assert len(list(figures.wrong(f"{begin}{head}| 1 |\n<!-- /rows -->"))) == 1


@pytest.mark.usefixtures("result")
@pytest.mark.parametrize("before", ["", "slower at commit abc, but ", "slower at commit abc.\n\nA paragraph. "])
def test_an_age_takes_the_place_of_the_one_before_and_of_nothing_else(before: str) -> None:
    now = figures.age("x")
    assert figures.refreshed(f"{before}at commit def, unchanged<!-- age: x -->.") == f"{before}{now}<!-- age: x -->."


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("it takes 3.4 ms and 99.1 % of it", 2),
        ("it takes 3.4 ms<!-- figure: x y .1f --> ms and 99.1 % of it", 1),
        ("the paper has 3.4 ms and 99.1 %<!-- quoted: Table 1 --> of it", 0),
        ("wait 2.5 s, or `3.4 ms`; version 1.4.2 of it, 12 % of 8 GPUs", 0),
        ("| 1.5 | 2.25 |", 2),
        ("<!-- figure7 -->\ntook 3.4 ms\n<!-- /figure7 -->", 0),
    ],
)
def test_what_looks_measured_is_found(line: str, found: int) -> None:
    assert len(list(figures.unmarked(line))) == found
