"""hooks/sglang.toml lists what the code touches of SGLang, no less and no more, and docs/sglang.md shows it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from pdplugins.hosts import seams
from pdplugins.hosts.sglang.batching import BatchHooks
from pdplugins.hosts.sglang.names import SCHEDULER
from pdplugins.hosts.sglang.older import TIMEOUT_POLL

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "pdplugins/hosts/sglang").glob("*.py"))
MANIFEST = tomllib.loads((ROOT / "hooks/sglang.toml").read_text())
SYMBOLS = {seam["name"]: seam for seam in MANIFEST["symbol"]}
RECEIVED = {name for name, seam in SYMBOLS.items() if seam.get("received")}
"""Types whose objects the code is handed; what it uses of them is in `takes` and `has`."""
PREFIXES = {"SCHEDULER": SCHEDULER, "components": "sglang.srt.managers.scheduler_components."}
"""Names that the code puts before others."""


def touched() -> set[str]:
    """Every dotted name of SGLang that the code imports or hooks."""
    found: set[str] = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Constant) and re.fullmatch(r"sglang(\.\w+){3,}", str(node.value)):
                found.add(node.value)
            elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name) and node.left.id in PREFIXES:
                right = node.right
                found.add(PREFIXES[node.left.id] + (right.value if isinstance(right, ast.Constant) else TIMEOUT_POLL))
    return found


def test_every_name_of_sglang_is_listed() -> None:
    assert {name for name in touched() if name not in SYMBOLS} == set()


def test_nothing_is_listed_that_the_code_does_not_use() -> None:
    code = "\n".join(path.read_text() for path in SOURCES)
    unused = {name for name in SYMBOLS.keys() - RECEIVED - touched() if name.rpartition(".")[2] not in code}
    assert unused == set()
    for name in RECEIVED:
        attributes = [*SYMBOLS[name].get("takes", ()), *SYMBOLS[name].get("has", ())]
        assert [one for one in attributes if one not in code] == [], name


def test_the_hooks_take_what_the_manifest_promises() -> None:
    hooks = BatchHooks(lambda mixes: pytest.fail("not asked")).hooks()
    assert hooks.keys() <= SYMBOLS.keys()
    assert "batch" in SYMBOLS[SCHEDULER + "run_batch"]["takes"]


def test_every_seam_says_what_it_is_for() -> None:
    for seam in MANIFEST["symbol"]:
        assert re.fullmatch(r"[a-z].*[^.]", seam["why"]), seam


@pytest.mark.sglang
def test_every_seam_is_as_recorded() -> None:
    """What `pdplugins doctor` checks, against the SGLang that is installed."""
    pytest.importorskip("sglang")
    failed = [check.line() for check in seams.examine_host(MANIFEST) if check.state != "ok"]
    assert failed == []


def table() -> str:
    """The table of seams as docs/sglang.md shows it."""
    rows = [
        f"| `{name.removeprefix('sglang.srt.')}` | {seam['why']} | {seam.get('only', 'all')} |"
        for name, seam in SYMBOLS.items()
    ]
    return "\n".join(["| `sglang.srt.` | used to | versions |", "|---|---|---|", *rows])


def test_the_page_shows_every_seam() -> None:
    page = (ROOT / "docs/sglang.md").read_text()
    shown = page.partition("<!-- seams -->\n")[2].partition("\n<!-- /seams -->")[0]
    assert shown == table(), f"docs/sglang.md: between its seams marks there should be\n{table()}"
