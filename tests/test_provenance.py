"""A result says where it comes from: command line, commit, seed and versions."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pdplugins import __version__, provenance


def test_the_command_line_can_be_run_again_and_names_no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["simulate", "dopd", "--set", "planner.name=a b"]
    monkeypatch.setattr(sys, "argv", ["/opt/somewhere/bin/pdplugins", *words])
    assert shlex.split(provenance.command_line()) == ["pdplugins", *words]
    assert provenance.command_line("dynamo", ["serve"]) == "dynamo serve"


def test_a_command_line_names_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    words = [
        "--traces",
        str(tmp_path),
        f"--out={tmp_path}/a.json",
        str(tmp_path / "checkout/configs/dopd.yaml"),
        "http://h:1/x",
    ]
    assert provenance.command_line("p", words) == "p --traces DIR --out=a.json configs/dopd.yaml http://h:1/x"
    assert provenance.command_line("p", ["../traces/x.csv", "planner.interval_s=5"]) == "p x.csv planner.interval_s=5"


def test_a_tilde_is_kept_as_it_was_typed() -> None:
    words = ["--set", "planner=~", "--json=~nobody-here/a.json", "~"]
    assert shlex.split(provenance.command_line("p", words)) == ["p", *words]


def test_a_path_that_is_too_long_is_cut_to_its_name() -> None:
    assert provenance.command_line("p", ["/" + "x" * 300]) == "p " + "x" * 300


def test_a_record_says_how_to_make_the_result_again() -> None:
    made = provenance.record("measured", seed=3, command="pdplugins bench decisions")
    commit, versions = provenance.commit(), provenance.versions()
    assert made == {
        "kind": "measured",
        "command": "pdplugins bench decisions",
        "commit": commit,
        "versions": versions,
        "seed": 3,
    }


def test_the_versions_are_of_pdplugins_and_of_what_took_part() -> None:
    found = provenance.versions("numpy")
    assert found["pdplugins"] == __version__
    assert set(found) == {"pdplugins", "python", "numpy"}


def test_a_commit_is_dirty_when_code_differs_and_not_when_results_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=tmp_path, check=True)

    code, result = tmp_path / "pdplugins" / "provenance.py", tmp_path / "benchmarks" / "results" / "a.json"
    for file in (code, result):
        file.parent.mkdir(parents=True)
        file.write_text("1\n")
    git("init", "--quiet")
    git("add", "-A")
    git("commit", "--quiet", "-m", "one")
    monkeypatch.setattr(provenance, "__file__", str(code))
    clean = provenance.commit()
    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    result.write_text("2\n")
    assert provenance.commit() == clean
    (code.parent / "new.py").write_text("1\n")
    assert provenance.commit() == f"{clean}-dirty"
    (code.parent / "new.py").unlink()
    code.write_text("2\n")
    assert provenance.commit() == f"{clean}-dirty"
