"""The plugin of docs/writing-a-plugin.md installs, is found, and decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.moderate

EXAMPLE = Path(__file__).parents[1] / "docs/example-plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the example plugin is installed beside pdplugins."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(EXAMPLE)], check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": str(target)}


def pdplugins(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from pdplugins.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False
    )


def test_it_is_listed_with_its_distribution(installed: dict[str, str]) -> None:
    done = pdplugins(installed, "plugins", "--json")
    rows = {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}
    assert rows["planner", "queue_step"] == {
        "kind": "planner",
        "name": "queue_step",
        "plugin": "queue_step",
        "distribution": "pdplugins-queue-step",
        "version": "1.0",
        "hooks": ["pd_register_planners"],
    }


def test_its_settings_are_checked(installed: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("planner: {name: queue_step, quue: 2}")
    done = pdplugins(installed, "config", str(path))
    assert done.returncode == 2
    assert done.stderr == (
        f"pdplugins: {path}: planner queue_step: unknown key 'quue'; valid keys here are interval_s, queue\n"
    )


@pytest.mark.dynamo
def test_it_scales_a_simulated_deployment(installed: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = pdplugins(installed, "replay", "--planner", "queue_step", "--trace", "synthetic", "--json", str(out))
    assert done.returncode == 0, done.stderr
    scaling = json.loads(out.read_text())["scaling"]
    assert max(change["prefill"] for change in scaling) > 1
    assert "waiting" in scaling[0]["reason"]
