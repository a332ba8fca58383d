"""What an installation brings: one package with its data, quick commands, and nothing under a generic name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from hatch_build import LINK, index_page
from pdplugins import extras
from pdplugins.config import parse
from pdplugins.errors import HostError
from tools.slim_wheel import LEFT_OUT, slim

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


@pytest.mark.long
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


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def test_the_slim_wheel_has_the_same_files_and_needs_no_host(checkout: Path, tmp_path: Path) -> None:
    wheel, names, _ = build(checkout, tmp_path, HATCH_BUILD_NO_HOOKS="true")
    made = slim(wheel)
    with zipfile.ZipFile(made) as archive:
        assert [name for name in names if ".dist-info" not in name] == [
            name for name in archive.namelist() if ".dist-info" not in name
        ]
    whole, less = metadata(wheel), metadata(made)
    always = [it for it in less.get_all("Requires-Dist", []) if "extra ==" not in it]
    assert less["Name"] == "pdplugins-slim"
    assert less.get_all("Provides-Extra") == whole.get_all("Provides-Extra")
    assert {"numpy", "aiohttp"} <= {it.partition(">")[0].partition("<")[0] for it in always}
    assert not [it for it in always if it.startswith(("ai-dynamo", "scipy", "pandas", "plotly"))]
    target = tmp_path / "installed"  # pip checks the names of the wheel, and RECORD
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(made)], check=True)
    assert (target / "pdplugins_slim-0.1.0.dist-info/METADATA").is_file()


def test_wheels_are_built_beside_an_installation_and_not_with_it() -> None:
    """An operator's .venv stays as it is."""
    make = ["make", "--dry-run", "--always-make", "wheels"]
    said = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "slim_wheel.py dist/pdplugins-" in said
    assert "--editable" not in said
    assert ".venv" not in said


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_page_of_versions_says_what_is_installed_and_tested() -> None:
    page = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    rows = [line for line in page.splitlines() if line.startswith(("| Python ", "| | `3."))]
    ran = [line for line in rows if "nothing yet" not in line]
    assert re.findall(r"3\.\d+", " ".join(line.split("|")[2] for line in ran)) == named
    assert PROJECT["requires-python"] == f">={named[0]},<3.{int(named[-1].partition('.')[2]) + 1}"
    hosts = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "hooks").glob("*.toml")}
    for host, title in (("dynamo", "Dynamo"), ("sglang", "SGLang")):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {title} |"))
        assert re.findall(r"\d[\d.]+\d", row.split("|")[2]) == hosts[host]["tested"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"SGLANG_VERSIONS := {' '.join(hosts['sglang']['tested'])}\n" in makefile
    assert any(it.startswith("ai-dynamo") and f"`{it}`" in page for it in PROJECT["dependencies"])


@pytest.mark.parametrize("extra", LEFT_OUT)
def test_a_plain_installation_has_what_the_extras_have(extra: str) -> None:
    assert set(PROJECT["optional-dependencies"][extra]) <= set(PROJECT["dependencies"])


def test_links_of_the_index_page_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(LINK.findall(text)) > 20
    assert LINK.findall(index_page(text, "")) == []
    assert "[Hosts](https://example.org/x/blob/main/docs/hosts.md)" in index_page(text, "https://example.org/x")


def test_a_policy_that_cannot_decide_without_an_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every decision would be the host's own, which only a counter tells."""
    monkeypatch.setattr(extras, "has", lambda module: module != "scipy")
    with pytest.raises(HostError, match=r"router arrow: it needs scipy.*pip install 'pdplugins-slim\[analysis\]'"):
        parse({"router": "arrow"})
    assert parse({"router": "fusion"}).router is not None


LESS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from pdplugins.cli import main
main()
"""


@pytest.mark.parametrize("config", ["dopd", "ampd", "dynaserve", "fusion", "rapid", "stock-threshold"])
def test_the_simulator_runs_without_the_extras(config: str, tmp_path: Path) -> None:
    code = LESS.format(absent={*extras.ANALYSIS, *extras.DYNAMO})
    words = ["simulate", config, "--trace", "demo", "--clip-s", "10", "--no-hindsight", "--html", "page.html"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "policy_error" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "page.html").is_file()


def test_a_command_that_needs_an_extra_says_which_in_one_line(tmp_path: Path) -> None:
    code = LESS.format(absent={*extras.ANALYSIS, *extras.DYNAMO})
    words = ["bound", "--trace", "demo", "--clip-s", "10"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        "it needs scipy, which is not installed; pip install 'pdplugins-slim[analysis]', or pdplugins\n"
    )


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
