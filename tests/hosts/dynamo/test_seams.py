"""hooks/dynamo.toml lists what the code touches of Dynamo, no less and no more, and docs/hosts.md shows it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdplugins.hosts import seams

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "pdplugins/hosts/dynamo").rglob("*.py"))
MANIFEST = tomllib.loads((ROOT / "hooks/dynamo.toml").read_text())
KINDS = [kind for kind in seams.SEAMS if kind in MANIFEST]
ENV = re.compile(r"(DYN|ETCD|NATS)_[A-Z_]*[A-Z]|SCALING_[A-Z_]+")


def names(kind: str) -> set[str]:
    return {seam["name"] for seam in MANIFEST.get(kind, ())}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every dotted name of Dynamo that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "dynamo":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "dynamo")


def strings(tree: ast.AST) -> set[str]:
    """Every string of the code that is a single word; prose is not."""
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text for text in nodes if " " not in text}


@pytest.fixture(scope="module")
def code() -> dict[Path, ast.AST]:
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in SOURCES}


def test_every_import_of_dynamo_is_listed(code: dict[Path, ast.AST]) -> None:
    listed = names("symbol")
    missing = {str(path): [n for n in imports(tree) if not covered(n, listed)] for path, tree in code.items()}
    assert {path: found for path, found in missing.items() if found} == {}


def covered(name: str, listed: set[str]) -> bool:
    """Whether `name`, or something inside it, is listed: a module is imported for what is listed of it."""
    return any(one == name or one.startswith(name + ".") for one in listed)


def test_every_program_variable_and_metric_is_listed(code: dict[Path, ast.AST]) -> None:
    listed = names("symbol") | names("program")
    for path, tree in code.items():
        for text in strings(tree):
            if re.fullmatch(r"dynamo\.[a-z_.]+", text):
                assert text in listed, f"{path}: program {text}"
            if ENV.fullmatch(text):
                assert text in names("env"), f"{path}: environment variable {text}"
            if re.fullmatch(r"dynamo_(frontend|component)_[a-z_]+", text):
                assert text in names("metric"), f"{path}: metric {text}"


def test_every_flag_that_is_passed_to_a_program_is_listed(code: dict[Path, ast.AST]) -> None:
    flags = {flag for program in MANIFEST["program"] for flag in program["flags"]}
    for path, tree in code.items():
        texts = strings(tree)
        if names("program") & texts:
            assert {text for text in texts if re.fullmatch(r"--[a-z-]+", text)} <= flags, path


def test_nothing_is_listed_that_the_code_does_not_use(code: dict[Path, ast.AST]) -> None:
    used = {name for tree in code.values() for name in imports(tree)}
    texts = {text for tree in code.values() for text in strings(tree)}
    received = {seam["name"] for seam in MANIFEST["symbol"] if seam.get("received")}
    assert {n for n in names("symbol") - received if not covered(n, used) and n.rpartition(".")[0] not in used} == set()
    for kind in ("program", "env", "field", "metric"):
        assert names(kind) - texts == set(), kind
    assert {flag for program in MANIFEST["program"] for flag in program["flags"]} - texts == set()


def test_every_seam_says_what_it_is_for() -> None:
    for kind in KINDS:
        for seam in MANIFEST[kind]:
            assert re.fullmatch(r"[a-z].*[^.]", seam["why"]), seam


@pytest.mark.dynamo
def test_every_seam_is_as_recorded() -> None:
    """What `pdplugins doctor` checks, against the Dynamo that is installed."""
    pytest.importorskip("dynamo.planner")
    failed = [check.line() for check in seams.examine_host(MANIFEST) if check.state != "ok"]
    assert failed == []


def table() -> str:
    """The table of seams as docs/hosts.md shows it."""
    rows = [
        f"| {kind} | `{seam['name']}` | {seam['why']} | {', '.join(seam.get('known_in', MANIFEST['tested']))} |"
        for kind in KINDS
        for seam in MANIFEST[kind]
    ]
    return "\n".join(["| kind | name | used to | as recorded in |", "|---|---|---|---|", *rows])


def test_the_page_shows_every_seam() -> None:
    page = (ROOT / "docs/hosts.md").read_text()
    shown = page.partition("<!-- seams -->\n")[2].partition("\n<!-- /seams -->")[0]
    assert shown == table(), f"docs/hosts.md: between its seams marks there should be\n{table()}"
