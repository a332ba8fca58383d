"""What an installation brings: one package with its data, quick commands, and nothing under a generic name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.moderate

ROOT = Path(__file__).parents[1]
HEAVY = ("dynamo", "grpc", "matplotlib", "pandas", "prophet", "scipy", "sglang", "sklearn", "statsmodels", "torch")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that no build touches this checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    for name in ("pdplugins", "hooks", "configs", "profiles"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "kernel.json"))
    return copy


def build(checkout: Path, target: Path, **environment: str) -> tuple[Path, list[str], str]:
    """Build a wheel into `target`; return it, the names in it, and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=checkout,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = target.glob("*.whl")
    return wheel, zipfile.ZipFile(wheel).namelist(), done.stdout + done.stderr


def test_the_wheel_holds_one_package_and_its_data(checkout: Path, tmp_path: Path) -> None:
    wheel, names, _ = build(checkout, tmp_path, HATCH_BUILD_NO_HOOKS="true")
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pdplugins"}
    assert "pdplugins/_data/configs/dopd.yaml" in names
    assert "pdplugins/_data/profiles/h100/llama-3.1-70b-fp8.json" in names
    assert "pdplugins/_data/hooks/dynamo.toml" in names
    assert wheel.name.endswith("py3-none-any.whl")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_where_there_is_a_c_compiler_the_wheel_holds_the_kernel(checkout: Path, tmp_path: Path) -> None:
    cc = tmp_path / "cc"
    cc.write_text('#!/bin/sh\nexec cc "$@" -O0\n')  # what is built is the same, in half a minute less
    cc.chmod(0o700)
    wheel, names, _ = build(checkout, tmp_path, CC=str(cc))
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["hooks"]["custom"][
        "modules"
    ]
    compiled = [name for name in names if name.endswith(".so")]
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pdplugins"}
    assert {name.partition(".")[0] + ".py" for name in compiled} >= set(modules)
    assert "pdplugins/sim/core/kernel.json" in names
    assert not wheel.name.endswith("none-any.whl")


def test_where_there_is_none_the_wheel_is_plain_and_says_so(checkout: Path, tmp_path: Path) -> None:
    wheel, names, text = build(checkout, tmp_path, CC="/nowhere/cc")
    assert "the simulator runs as plain Python: there is no C compiler (/nowhere/cc)" in text
    assert not [name for name in names if name.endswith(".so")]
    assert wheel.name.endswith("py3-none-any.whl")


def test_help_and_the_plugin_list_import_nothing_heavy() -> None:
    code = (
        "import sys, typer\n"
        "from pdplugins import cli\n"
        "from pdplugins.registry import default_registry\n"
        "default_registry().add_commands(cli.app)\n"
        "typer.main.get_command(cli.app); typer.main.get_command(cli.dynamo_app)\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_nobody_imports_the_data_folders() -> None:
    for source in (ROOT / "pdplugins").rglob("*.py"):
        lines = source.read_text().splitlines()
        starts = ("import configs", "import hooks", "import profiles", "from configs", "from hooks", "from profiles")
        assert not [line for line in lines if line.strip().startswith(starts)], source


def test_files_and_functions_stay_small() -> None:
    long = [
        path.relative_to(ROOT)
        for path in (ROOT / "pdplugins").rglob("*.py")
        if "_vendor" not in path.parts and len(path.read_text().splitlines()) > 500
    ]
    assert long == []
