"""The documentation as a site: every page is there, every link leads somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import metrics_page

ROOT = Path(__file__).parents[1]
LOADED = re.compile(r"""<(?:script|link|img|iframe)[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'\s>]+""")
TEST = re.compile(r"`(tests/[\w/.]+\.py)::(\w+)`")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.moderate
def test_every_page_is_built_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages - {Path("README")} <= built
    loaded = [found for path in site.rglob("*.html") for found in LOADED.findall(path.read_text(encoding="utf-8"))]
    assert loaded == []
    assert not [path for path in site.rglob("*.html") if 'class="mermaid"' in path.read_text(encoding="utf-8")]


@pytest.mark.moderate
def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in (
        "planner.Planner",
        "router.Router.on_arrival",
        "flow.Flow",
        "batching.BatchScheduler",
        "power.PowerPlan",
    ):
        assert f'id="pdplugins.contracts.{name}"' in page


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}" not in navigation and not page.startswith("example-plugins")] == []


def test_the_page_of_metrics_is_what_the_code_exports() -> None:
    """`python -m tools.metrics_page` writes it again."""
    text = metrics_page.PAGE.read_text(encoding="utf-8")
    assert metrics_page.written(text) == text
    assert re.search(r"\| [a-z][A-Z]{2}", text) is None, "an abbreviation keeps its capitals"


def test_no_page_names_a_metric_that_nobody_exports() -> None:
    known = {one.name for group in metrics_page.groups().values() for one in group} | metrics_page.names()
    named = re.compile(r"`(pdplugins_(?:gateway|planner|router|flow|power|local|sglang)_\w+[a-z])(?:\{\w+\})?`")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong = {name for page in pages for name in named.findall(page.read_text(encoding="utf-8"))} - known
    assert wrong == set()


def test_the_tests_that_pages_name_exist() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for path, name in TEST.findall(page.read_text(encoding="utf-8")):
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in found, f"{page.name}: {path} has no {name}"


def test_each_request_of_users_that_is_met_names_what_tests_it() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs/requests.md").read_text(encoding="utf-8").splitlines()]
    answers = [(asked, answer, tested) for asked, answer, tested in (row for row in rows if len(row) == 3)]
    met = [row for row in answers if row[1].startswith(("solved", "partly", "answered"))]
    assert len(met) > 30
    for asked, answer, tested in answers:
        said = answer.startswith(("here", "not solved")) or "`tests/" in tested or "benchmarks/" in tested
        assert said or "advise.md" in tested, f"{asked}: no test is named"
