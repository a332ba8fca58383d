"""``pdplugins advise``: one run whole, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.studies.advise import folder
from tests.command_line import printed
from tests.studies.advise.questions import small_search

SMALL = ("--profile", "h100/llama-3.1-8b", "--gpus", "2", "--jobs", "1", "--clip-s", "20")


@pytest.mark.moderate
def test_one_run_writes_all_that_was_asked_for(tmp_path: Path) -> None:
    with small_search():
        said = printed(
            "advise",
            *("--isl", "600", "--osl", "50", "--rate", "4", *SMALL),
            *("--json", tmp_path / "a.json", "--html", tmp_path / "a.html", "--save-dir", tmp_path / "d"),
        )
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["kind"] == "simulated"
    assert said.startswith(data["verdict"][0])
    assert data["best"]["slo_attainment"] > 0.9
    assert data["gain"]["low"] <= data["gain"]["mean"] <= data["gain"]["high"]
    assert "GPUs held, on the average" in said
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert str(tmp_path / "d/config.yaml") in said
    folder.check(tmp_path / "d")  # the same command may write it again


def test_the_folder_takes_the_place_of_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("requests: 5\n")
    with pytest.raises(ConfigError, match=r"--save-dir, its config\.yaml config\.yaml is also --trace; name"):
        printed("advise", "--trace", "config.yaml", "--save-dir", ".")
    with pytest.raises(ConfigError, match=r"^--save-dir \.: its config\.yaml is not of 'advise'; name another folder$"):
        printed("advise", "--trace", "synthetic", "--save-dir", ".")
    assert (tmp_path / "config.yaml").read_text() == "requests: 5\n"
    (tmp_path / "d").mkdir()
    with pytest.raises(ConfigError, match=r"its sglang\.sh d/sglang\.sh is also --json"):
        printed("advise", "--trace", "synthetic", "--save-dir", "d", "--json", "d/sglang.sh")


def test_a_folder_in_the_place_of_a_file_is_told_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d/sglang.sh").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"^d/sglang\.sh: is a folder; name a file in it$"):
        printed("advise", "--trace", "synthetic", "--save-dir", "d")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "name your traffic"),
        (("--isl", "100", "--osl", "10"), "name your traffic"),
        (("--trace", "synthetic", "--isl", "100"), "not both"),
        (("--trace", "synthetic", "--profile", "a/b", "--gpu", "h100"), "not both"),
        (("--trace", "synthetic", "--gpu", "abacus"), "there is no 'abacus/llama-3.1-70b-fp8'"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        printed("advise", *words)
