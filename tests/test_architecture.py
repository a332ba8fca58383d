"""The picture of the architecture is that of the code."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
LEAVES = frozenset({"errors", "extras", "files", "resources", "interrupt", "safe_yaml", "redaction"})
"""Small modules that any other may use; the picture leaves them out."""


def packages() -> dict[str, set[str]]:
    """Every package and module right below pdplugins, and what each imports of the others."""
    graph = grimp.build_graph("pdplugins", exclude_type_checking_imports=True)
    names = {name.split(".")[1] for name in graph.find_children("pdplugins")} - LEAVES
    return {
        name: {
            other
            for other in names - {name}
            if graph.direct_import_exists(importer=f"pdplugins.{name}", imported=f"pdplugins.{other}", as_packages=True)
        }
        for name in names
    }


def reach(imports: dict[str, set[str]], name: str) -> set[str]:
    """Everything that `name` needs, directly or not."""
    found: set[str] = set()
    waiting = [*imports[name]]
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += imports[one]
    return found


def picture(imports: dict[str, set[str]]) -> str:
    """The picture: each package above all that it needs, with the arrows that no longer path explains."""
    below = {name: reach(imports, name) for name in imports}

    def height(name: str) -> int:
        return 1 + max((height(other) for other in imports[name]), default=0)

    lines = []
    for name in sorted(imports, key=lambda name: (-height(name), name)):
        if direct := sorted(imports[name] - {far for near in imports[name] for far in below[near]}):
            lines.append(f"{name:<{max(map(len, imports))}}  ──>  {', '.join(direct)}")
    return "\n".join(["```", *lines, "```"])


def test_no_package_needs_itself() -> None:
    imports = packages()
    assert [name for name in imports if name in reach(imports, name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_picture_is_that_of_the_code(page: str) -> None:
    text = (ROOT / page).read_text()
    shown = text.partition("<!-- picture -->\n")[2].partition("\n<!-- /picture -->")[0]
    assert shown == picture(packages()), f"{page}: between its picture marks there should be\n{picture(packages())}"


def test_the_page_says_what_is_in_each_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    assert [name for name in packages() if f"`{name}`" not in page] == []
