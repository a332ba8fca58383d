"""Documentation that a machine can check: every command, plugin and config has its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pdplugins import config
from pdplugins.registry import default_registry

ROOT = Path(__file__).parents[1]
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
