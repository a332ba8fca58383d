"""The AMD backend through real versions of amdsmi, over a library that stands in for ROCm's.

The installed version is tested, and those in the folders that PDPLUGINS_AMDSMI_TREES names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rig.gpus import nodes
from benchmarks.rig.gpus.nodes import COMPILER, NO_COMPILER, Standin

pytestmark = pytest.mark.moderate
SCRIPT = Path(__file__).with_name("amd_script.py")
INSTALLED = importlib.util.find_spec("amdsmi")
TREES = [
    *([Path(INSTALLED.origin).parents[1]] if INSTALLED is not None and INSTALLED.origin else []),
    *map(Path, filter(None, os.environ.get("PDPLUGINS_AMDSMI_TREES", "").split(":"))),
]


class Amd:
    """A process with the backend over eight AMD GPUs."""

    def __init__(self, made: Standin, tree: Path) -> None:
        self.node = made.node
        paths = f"{tree}:{made.environment['PYTHONPATH']}"
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], env={**made.environment, "PYTHONPATH": paths},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def stop(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module", params=TREES or [None], ids=lambda tree: "none" if tree is None else tree.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    if request.param is None:
        pytest.skip("amdsmi is not installed")
    folder = tmp_path_factory.mktemp("rocm") / "lib"
    return nodes.amd_library(folder, request.param / "amdsmi"), request.param


@pytest.fixture
def amd(library: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Amd]:
    monkeypatch.setenv("STANDIN_NODE", "")
    it = Amd(nodes.standin(library[0], tmp_path / "node"), library[1])
    yield it
    it.stop()


def test_devices_are_told_in_watts(amd: Amd) -> None:
    said = amd.ask("devices")["said"]
    assert len({uuid for uuid, *_ in said}) == 8
    assert {tuple(facts[2:]) for facts in said} == {(200.0, 700.0, 700.0)}


def test_a_cap_is_set_and_the_draw_follows_it(amd: Amd) -> None:
    amd.node.gpu[3].demand_w = 900
    assert amd.ask("set 3 400.5")["said"] is None
    assert amd.node.limits_w() == [700.0] * 3 + [400.5] + [700.0] * 4
    amd.node.tau_s = 0.0
    draw_w, cap_w, energy_j = amd.ask("read 3")["said"]
    assert (draw_w, cap_w) == (pytest.approx(400.5, abs=1), 400.5)
    assert energy_j > 0


def test_without_a_draw_now_the_mean_is_taken(amd: Amd) -> None:
    amd.node.gpu[0].no_instant = 1
    assert amd.ask("read 0")["said"][0] == 120.0


@pytest.mark.parametrize(
    ("code", "fault", "fix"),
    [
        (2, "not_supported", "leave it out"),
        (10, "permission", "as root"),
        (31, "lost", "dmesg"),
        (7, "driver", "dmesg"),
    ],
)
def test_what_is_wrong_with_a_device_has_a_type_and_a_fix(amd: Amd, code: int, fault: str, fix: str) -> None:
    amd.node.gpu[5].write_fault = code
    answer = amd.ask("set 5 300")
    assert answer["fault"] == fault
    assert fix in answer["text"]
    assert "\n" not in answer["text"]


def test_a_gpu_that_cannot_be_read_is_passed_over(amd: Amd) -> None:
    uuids = [uuid for uuid, *_ in amd.ask("devices")["said"]]
    amd.node.gpu[2].read_fault = 2
    assert [uuid for uuid, *_ in amd.ask("devices")["said"]] == [*uuids[:2], *uuids[3:]]
    said = amd.ask("unreadable")["said"]
    assert list(said) == [uuids[2]]
    assert "leave it out of node.gpus" in said[uuids[2]]


def test_a_gpu_that_hangs_is_passed_over(amd: Amd) -> None:
    uuids = [uuid for uuid, *_ in amd.ask("devices")["said"]]
    amd.node.gpu[2].read_delay_s = 600.0
    assert [uuid for uuid, *_ in amd.ask("devices")["said"]] == [*uuids[:2], *uuids[3:]]
    assert "no answer within 5 s" in amd.ask("unreadable")["said"][uuids[2]]


def test_an_error_passes_while_another_gpu_is_broken(amd: Amd) -> None:
    assert len(amd.ask("devices")["said"]) == 8
    amd.node.gpu[2].read_fault = 2
    amd.node.gpu[5].read_fault = 31
    assert amd.ask("read 5")["fault"] == "lost"
    amd.node.gpu[5].read_fault = 0
    assert amd.ask("read 5")["said"][1] == 700.0
    assert amd.ask("read 2")["fault"] == amd.ask("read 2")["fault"] == "not_supported"


def test_a_cap_outside_the_limits_is_refused(amd: Amd) -> None:
    assert amd.ask("set 0 100")["fault"] == "refused"
    assert amd.node.limits_w() == [700.0] * 8


def test_without_the_library_it_is_one_line(tmp_path: Path) -> None:
    if INSTALLED is None:
        pytest.skip("amdsmi is not installed")
    program = "from pdplugins.power.amd import AmdBackend; AmdBackend()"
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "ROCM_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "HostError: power backend amdsmi: AMD SMI cannot be used" in done.stderr.splitlines()[-1]
