"""Documentation that a machine can check: every command, plugin and config has its place."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from pdplugins import config
from pdplugins.registry import default_registry

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for folder in ("docs", "benchmarks") for path in (ROOT / folder).rglob("*.md")),
]
IN_REPOSITORY = re.compile(
    r"(?<![\w/.-])(?:pdplugins|tests|benchmarks|configs|docs|hooks|profiles)/[\w./*<>-]*[\w*>](?![\w/*<>-])"
)
IN_PACKAGE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")
"""A file named within its package, such as `core/kv.py`."""
ELSEWHERE = {"disaggregation/decode.py"}
"""Files of other projects that a page names."""
DOTTED = re.compile(r"(?<![\w/.-])pdplugins(?:\.\w+)+")
FILE_ENDINGS = ("md", "yaml", "yml", "json", "jsonl", "log")
PAPERS = sorted({path.parent.name for path in ROOT.glob("pdplugins/policies/*/plugin.py")} - {"stock"})


@pytest.mark.parametrize("paper", PAPERS)
def test_one_name_everywhere(paper: str) -> None:
    """The plugin, its config, its tests and its page have one name."""
    assert config.find(paper).is_file()
    assert (ROOT / "tests/policies" / paper).is_dir()
    assert (ROOT / "docs/policies" / f"{paper}.md").is_file()
    assert any(r.name == paper for r in default_registry().registrations())


@pytest.mark.parametrize("paper", PAPERS)
def test_every_setting_is_on_the_page(paper: str) -> None:
    page = (ROOT / "docs/policies" / f"{paper}.md").read_text()
    for registration in default_registry().registrations():
        if registration.name == paper:
            missing = [name for name in registration.settings.model_fields if f"`{name}`" not in page]
            assert missing == []
            assert all(field.description for field in registration.settings.model_fields.values())


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    here = ROOT / page
    targets = re.findall(r"\]\(([^)#\s]+)", here.read_text())
    broken = [t for t in targets if "://" not in t and not (here.parent / t).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_module_that_a_page_names_exists(page: str) -> None:
    assert list(missing((ROOT / page).read_text())) == []


def missing(text: str) -> Iterator[str]:
    """Yield the paths of this repository and the dotted names of this package in `text` that do not exist."""
    text = re.sub(r"<!--.*?-->", " ", text, flags=re.DOTALL)  # marks stand right behind what they are about
    for path in IN_REPOSITORY.findall(text):
        if not any(ROOT.glob(re.sub(r"<\w+>", "*", path))):
            yield path
    for path in IN_PACKAGE.findall(text):
        if path not in ELSEWHERE and not any(f"/{known}".endswith(f"/{path}") for known in sources()):
            yield path
    for name in DOTTED.findall(text):
        if name.rpartition(".")[2] not in FILE_ENDINGS and not exists(name):
            yield name


@cache
def sources() -> tuple[str, ...]:
    """Return every Python file of the repository, without those of environments and build folders below it."""
    folders = ("pdplugins", "tests", "benchmarks", "docs")
    below = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return tuple(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.py"), *below))


@cache
def exists(name: str) -> bool:
    """Tell whether a dotted name resolves."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("see pdplugins/contracts/workers.py, `sim/core/kv.py`, hooks/<host>.toml and pdplugins.config.load", []),
        ("see `pdplugins/gone.py`", ["pdplugins/gone.py"]),
        ("see `gateway/gone.py`", ["gateway/gone.py"]),
        ("run python -m pdplugins.sim.gone", ["pdplugins.sim.gone"]),
        ("https://example.org/docs/anything and /tmp/pdplugins/x", []),
    ],
)
def test_a_name_that_is_gone_is_found(text: str, gone: list[str]) -> None:
    assert sorted(set(missing(text))) == gone


@pytest.mark.parametrize("page", PAGES)
def test_every_table_has_a_head(page: str) -> None:
    """A blank line within a table makes bars of what is below it."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    begins = [
        number
        for number, (before, line) in enumerate(pairwise(["", *lines]), 1)
        if line.startswith("|") and not before.startswith("|")
    ]
    assert [number for number in begins if not re.fullmatch(r"[|: -]+", "".join(lines[number : number + 1]))] == []
