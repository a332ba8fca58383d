"""What an installation brings: one package with its data, quick commands, and nothing under a generic name."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = ("dynamo", "grpc", "matplotlib", "pandas", "prophet", "scipy", "sglang", "sklearn", "statsmodels", "torch")


def test_the_wheel_holds_one_package_and_its_data(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pdplugins"}
    assert "pdplugins/_data/configs/dopd.yaml" in names
    assert "pdplugins/_data/profiles/h100/llama-3.1-70b-fp8.json" in names
    assert "pdplugins/_data/hooks/dynamo.toml" in names


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
