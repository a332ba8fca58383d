"""The compiled kernel is never older than its sources, and its absence is said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pdplugins.errors import HostError
from pdplugins.sim import kernel


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with one source, and the stamp of a kernel that was compiled from it."""
    source = tmp_path / "clock.py"
    source.write_text("now = 0")
    (tmp_path / "kernel.json").write_text(json.dumps({"clock.py": hashlib.sha256(b"now = 0").hexdigest()}))
    monkeypatch.setattr(kernel, "CORE", tmp_path)
    monkeypatch.setattr(kernel, "COMPILED", True)
    return source


def test_a_kernel_of_these_sources_runs(compiled: Path) -> None:
    kernel.check()
    assert kernel.describe() == "compiled"


def test_a_kernel_of_other_sources_is_refused(compiled: Path) -> None:
    compiled.write_text("now = 1")
    with pytest.raises(HostError, match=r"clock\.py changed since the kernel was compiled; compile it again"):
        kernel.check()
    assert "not from the sources" in kernel.describe()


def test_plain_python_needs_no_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel, "CORE", tmp_path)
    monkeypatch.setattr(kernel, "COMPILED", False)
    kernel.check()
    assert kernel.describe().startswith("plain Python")
