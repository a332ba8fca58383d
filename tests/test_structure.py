"""The suite itself: who may import whom, and what runs together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def imported(source: Path) -> Iterator[str]:
    """The names of all modules that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "stubs" not in path.parts]


def mistake(name: str) -> str | None:
    parts = name.split(".")
    if name.startswith("."):
        return "write the full name"
    if [part for part in parts[:-1] if part.startswith("test_") or part == "conftest"]:
        return "what two files need lies in a plain module"
    return None


@pytest.mark.moderate
def test_no_test_imports_a_test_file_or_a_conftest() -> None:
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}: {why}"
        for source in sources("tests")
        for name in imported(source)
        if (why := mistake(name))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tests.sim.test_exact.BentModel", True),
        ("conftest.Serve", True),
        (".fake.FakeWorker", True),
        ("tests.sim.runs.test_duration_s", False),
    ],
)
def test_a_mistake_is_one(name: str, wrong: bool) -> None:
    assert bool(mistake(name)) is wrong


def test_folders_of_tests_are_named_like_what_they_test() -> None:
    known = {path.name for path in (ROOT / "pdplugins").iterdir() if path.is_dir()} | {"benchmarks", "chaos"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.rglob("test_*.py"))}
    assert folders <= known


def test_benchmarks_import_nothing_from_tests() -> None:
    """What both run on, the rig for real SGLang servers, lies in `benchmarks/rig`."""
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources("benchmarks")
        for name in imported(source)
        if name.split(".")[0] in ("tests", "conftest", "pytest")
    ]
    assert wrong == []


def test_the_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """Else each process starts servers of its own. pytest-xdist reads the group from the end of the test's name."""
    if request.config.getoption("dist", "no") != "no" or hasattr(request.config, "workerinput"):
        assert request.node.nodeid.endswith(f"@{__file__}")
