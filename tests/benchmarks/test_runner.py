"""`benchmarks/results.py` in a repository of its own: what is out of date is found, made again, and may be stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.moderate
ROOT = Path(__file__).parents[2]
TOOLS = ("results", "manifest", "fingerprint", "equality", "figures", "planners_report")
EXPERIMENTS = """
[parts]
policy = ["pdplugins/policy.py"]
[groups]
[no_figure]
files = []
[[experiment]]
run = "python benchmarks/quick.py"
results = ["quick"]
code = ["policy"]
tolerance = 0.1
[[experiment]]
run = "python benchmarks/slow.py --traces DIR"
results = ["slow"]
code = ["policy"]
traces = ["trace.csv"]
[[experiment]]
run = "python benchmarks/engine.py"
results = ["engine"]
code = ["policy"]
needs = "an engine"
"""
SCRIPT = """
import sys, time, pathlib
import manifest
from pdplugins.policy import answer
from pdplugins.provenance import record

def row():
    return {"name": "one", "answer": answer()}

def cell():
    return {"NAME": [row()]}

def main():
    pathlib.Path("NAME.started").touch()
    while WAIT and not pathlib.Path("go").exists():
        time.sleep(0.01)
    manifest.write("NAME", {**record("simulated", seed=1), "rows": [row()]})

if __name__ == "__main__":
    main()
"""
POLICY = '"""A policy."""\n\n\ndef answer() -> float:\n    """Return the answer."""\n    return 42.0\n'
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the tools, three experiments and a policy that they measure."""
    for name in TOOLS:
        (tmp_path / "benchmarks").mkdir(exist_ok=True)
        shutil.copy2(ROOT / f"benchmarks/{name}.py", tmp_path / "benchmarks")
    (tmp_path / "pdplugins").mkdir()
    for name in ("__init__", "errors", "files", "provenance", "registry"):
        shutil.copy2(ROOT / f"pdplugins/{name}.py", tmp_path / "pdplugins")
    (tmp_path / "pdplugins/__init__.py").write_text("__version__ = '1'\n")
    (tmp_path / "pdplugins/policy.py").write_text(POLICY)
    (tmp_path / "benchmarks/experiments.toml").write_text(EXPERIMENTS)
    (tmp_path / "benchmarks/README.md").write_text("# Benchmarks\n")
    (tmp_path / "README.md").write_text("It is 0<!-- figure: quick rows[0].answer .1f -->.\n")
    for name in ("quick", "slow", "engine"):
        text = SCRIPT.replace("NAME", name).replace("WAIT", str(name == "slow"))
        (tmp_path / f"benchmarks/{name}.py").write_text(text)
    (tmp_path / ".gitignore").write_text("__pycache__/\n*.started\ngo\ntraces/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "one")


def environment(folder: Path) -> dict[str, str]:
    rest = {key: value for key, value in os.environ.items() if key not in {"TRACES", "PYTHONPATH"}}
    return {**rest, "PYTHONPATH": str(folder)}


def tool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/results.py", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False, timeout=60
    )


def test_what_is_missing_is_made_and_what_is_up_to_date_is_skipped(repository: Path) -> None:
    assert "missing  quick" in tool(repository, "status").stdout
    first = tool(repository, "run")
    assert first.returncode == 0, first.stderr
    data = json.loads((repository / "benchmarks/results/quick.json").read_text())
    assert data["command"] == "pdplugins" or data["rows"][0]["answer"] == 42.0
    assert "fresh    quick" in tool(repository, "status").stdout
    assert "skipped  quick: up to date" in tool(repository, "run").stderr
    assert "skipped  slow: trace.csv not there" in first.stderr
    assert "skipped  engine: needs an engine" in first.stderr


def test_prose_does_not_age_a_result_and_code_does(repository: Path) -> None:
    tool(repository, "run")
    policy = repository / "pdplugins/policy.py"
    policy.write_text(POLICY.replace("Return the answer.", "Return it.").replace("42.0", "42.0  # of everything"))
    assert "fresh    quick" in tool(repository, "status").stdout
    policy.write_text(POLICY.replace("42.0", "43.0"))
    assert "changed since commit" in (said := tool(repository, "status", "--only", "quick").stdout)
    assert "stale    quick" in said
    assert ": policy\n" in said
    assert "make it again: python benchmarks/quick.py" in said


@pytest.mark.parametrize(("now", "code", "state"), [("43.0", 0, "equal    quick"), ("142.0", 1, "stale    quick")])
def test_a_cell_that_is_computed_again_shows_a_result_equal_or_not(
    repository: Path, now: str, code: int, state: str
) -> None:
    tool(repository, "run")
    (repository / "pdplugins/policy.py").write_text(POLICY.replace("42.0", now))
    commit(repository)
    done = tool(repository, "verify")
    assert done.returncode == code, done.stderr
    assert ("differs  quick quick one: answer was 42.0, is 142.0" in done.stdout) is bool(code)
    assert state in tool(repository, "status").stdout
    assert "It is 42.0<!--" in (repository / "README.md").read_text()


def test_results_are_of_committed_code_only(repository: Path) -> None:
    (repository / "pdplugins/policy.py").write_text(POLICY.replace("42.0", "43.0"))
    done = tool(repository, "run")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("a result names its commit")
    assert not (repository / "benchmarks/results/quick.json").exists()


def test_an_experiment_that_fails_is_named(repository: Path) -> None:
    (repository / "pdplugins/policy.py").write_text("def answer():\n    raise ValueError('no answer')\n")
    commit(repository)
    done = tool(repository, "run")
    assert done.returncode == 1
    assert "failed   quick: exit code 1: ValueError: no answer" in done.stderr


def test_who_is_stopped_half_way_keeps_what_had_ended_and_goes_on(repository: Path) -> None:
    (repository / "traces").mkdir()
    (repository / "traces/trace.csv").touch()
    words = [sys.executable, "benchmarks/results.py", "run", "--traces", "traces"]
    running = subprocess.Popen(
        words, cwd=repository, env=environment(repository), stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - a shell's background job ignores it
    )  # fmt: skip
    while not (repository / "slow.started").exists():
        assert running.poll() is None
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "call it again to go on" in said
    assert {path.name for path in (repository / "benchmarks/results").glob("*.json")} == {"quick.json"}
    (repository / "go").touch()
    again = tool(repository, "run", "--traces", "traces")
    assert again.returncode == 0, again.stderr
    assert "skipped  quick: up to date" in again.stderr
    assert "fresh    slow" in tool(repository, "status").stdout
