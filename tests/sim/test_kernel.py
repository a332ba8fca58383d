"""The kernel that runs is the one that is installed, is never older than its sources, and its absence is said."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pdplugins.errors import HostError
from pdplugins.sim import kernel

PLAIN = str(Path(__file__).parents[1] / "plain")
CORE = kernel.CORE


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


def test_the_installed_kernel_is_what_runs_unless_the_sources_are_asked_for(pytestconfig: pytest.Config) -> None:
    """Here and in the programs that tests start. Else a suite could pass on one kernel and users run the other."""
    wanted = bool(list(CORE.glob("*.so"))) and not pytestconfig.getoption("pure")
    assert kernel.COMPILED is wanted
    code = "from pdplugins.sim.kernel import COMPILED; print(COMPILED)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(wanted)


@pytest.mark.parametrize(("folders", "suffix"), [([], sysconfig.get_config_var("EXT_SUFFIX")), ([PLAIN], ".py")])
def test_pure_means_the_sources_although_compiled_modules_lie_beside_them(
    folders: list[str], suffix: str, tmp_path: Path
) -> None:
    """What Python finds in a kernel of which one module has both."""
    core = tmp_path / "pdplugins/sim/core"
    core.mkdir(parents=True)
    for package in (core, core.parent, core.parent.parent):
        (package / "__init__.py").touch()
    for name in ("clock.py", f"clock{sysconfig.get_config_var('EXT_SUFFIX')}"):
        (core / name).touch()
    code = "from importlib.util import find_spec; print(find_spec('pdplugins.sim.core.clock').origin)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, str(tmp_path)])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(core / f"clock{suffix}")
