"""What --save-dir writes: files that load again, start what was simulated, and use the GPUs that there are."""

from __future__ import annotations

import os
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdplugins.config import Config, load
from pdplugins.errors import ConfigError
from pdplugins.gateway.backends import WorkerOption
from pdplugins.resources import data_dir
from pdplugins.runtime.assembly import build_deployment
from pdplugins.studies.advise import folder
from pdplugins.studies.advise.candidates import Candidate, systems
from pdplugins.studies.advise.kubernetes import manifest
from pdplugins.studies.advise.serving import Way, dynamo_script, servers, sglang_script, way_of
from tests.studies.advise.questions import QUESTION

ABOUT = "Run it\n(simulated)"


def candidates() -> dict[str, Candidate]:
    """One candidate of each system, on four GPUs."""
    found = [(one.name, list(one.cells(QUESTION, 4, rank))) for rank, one in enumerate(systems(QUESTION))]
    return {name: cells[len(cells) // 2] for name, cells in found if cells}


CANDIDATES = candidates()
SYSTEMS = pytest.mark.parametrize("config", [one.config for one in CANDIDATES.values()], ids=list(CANDIDATES))
WAYS = {"co-location": Way.UNIFIED, "fixed split": Way.SPLIT, "dopd": Way.SPLIT, "arrow": Way.DUAL, "fusion": Way.DUAL}


@pytest.mark.parametrize(("system", "way"), WAYS.items())
def test_every_system_is_served_as_it_was_simulated(system: str, way: Way) -> None:
    assert way_of(CANDIDATES[system].config) is way


@SYSTEMS
def test_the_files_are_whole(config: Config, tmp_path: Path) -> None:
    names = {path.name for path, _ in folder.write(config, "org/model", ABOUT, tmp_path / ".")}
    assert names == {"config.yaml", "sglang.sh", "dynamo.sh", "kubernetes.yaml"}
    assert load(tmp_path / "config.yaml") == config
    for script in ("sglang.sh", "dynamo.sh"):
        subprocess.run(["bash", "-n", tmp_path / script], check=True)
        assert os.access(tmp_path / script, os.X_OK)
        assert "MODEL=org/model" in (tmp_path / script).read_text()


@SYSTEMS
def test_every_gpu_belongs_to_one_server(config: Config) -> None:
    gpus = [gpu for one in servers(config) for gpu in one.gpus.split(",")]
    assert sorted(set(gpus)) == sorted(gpus)
    assert len(gpus) <= config.deployment.gpu_budget
    script = sglang_script(config, None, ABOUT)
    assert script.count("CUDA_VISIBLE_DEVICES=") == len(servers(config))


@SYSTEMS
def test_the_gateway_knows_every_server(config: Config) -> None:
    words = shlex.split(sglang_script(config, None, ABOUT).partition("pdplugins gateway")[2])
    given = [WorkerOption.parse(word) for before, word in pairwise(words) if before == "--worker"]
    assert [one.url for one in given] == [f"http://127.0.0.1:{30000 + index}" for index in range(len(servers(config)))]
    if way_of(config) is Way.DUAL:
        assert [one.role for one in given] == [one.role for one in servers(config)]


def test_the_chunk_that_was_simulated_is_started() -> None:
    config = CANDIDATES["co-location"].config
    options = f"--chunked-prefill-size {config.simulation.step_tokens} --enable-mixed-chunk"
    assert options in sglang_script(config, None, ABOUT)
    assert options in dynamo_script(config, None, ABOUT)


def test_the_dynamo_script_says_what_it_leaves_out() -> None:
    assert "Its frontend routes by KV cache" in dynamo_script(CANDIDATES["arrow"].config, None, ABOUT)
    assert "the planner scales them" in dynamo_script(CANDIDATES["dopd"].config, None, ABOUT)
    assert "Its frontend routes" not in dynamo_script(CANDIDATES["fixed split"].config, None, ABOUT)


@SYSTEMS
def test_the_manifest_has_as_many_gpus_as_the_config(config: Config) -> None:
    documents = list(yaml.safe_load_all(manifest(config, "org/model", ABOUT)))
    assert gpus_of(documents) == sum(one.tp for one in servers(config))


def gpus_of(documents: list[dict[str, Any]]) -> int:
    """Sum the GPUs of all pods."""
    if documents[0]["kind"] == "DynamoGraphDeployment":
        services = documents[0]["spec"]["services"].values()
        return sum(one["replicas"] * int(one["resources"]["limits"]["gpu"]) for one in services if "resources" in one)
    pools = [one["spec"] for one in documents if one["kind"] == "StatefulSet"]
    return sum(one["replicas"] * int(limits(one)["nvidia.com/gpu"]) for one in pools)


def limits(pool: dict[str, Any]) -> dict[str, str]:
    """The limits of the only container of a pool."""
    (container,) = pool["template"]["spec"]["containers"]
    found: dict[str, str] = container["resources"]["limits"]
    return found


def test_the_config_of_the_manifest_is_the_one_that_was_simulated() -> None:
    config = CANDIDATES["arrow"].config
    documents = list(yaml.safe_load_all(manifest(config, "org/model", ABOUT)))
    (data,) = (one["data"]["config.yaml"] for one in documents if one["kind"] == "ConfigMap")
    assert Config.model_validate(yaml.safe_load(data)) == config


@pytest.mark.dynamo
@pytest.mark.moderate
def test_dynamo_takes_the_config_of_its_planner() -> None:
    from dynamo.planner.config.planner_config import PlannerConfig  # noqa: PLC0415

    from pdplugins.hosts.dynamo.doors.inprocess import PdPlanner  # noqa: PLC0415

    (graph,) = yaml.safe_load_all(manifest(CANDIDATES["dopd"].config, "org/model", ABOUT))
    (_, text) = graph["spec"]["services"]["Planner"]["extraPodSpec"]["mainContainer"]["args"]
    checked = PlannerConfig.from_config_arg(text)
    (plugin,) = checked.plugin_registration.in_process_plugins
    assert checked.max_gpu_budget == 4
    PdPlanner(**plugin.kwargs)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--save-dir"):
        folder.check(tmp_path / "file")
    with pytest.raises(ConfigError, match="--save-dir"):
        folder.check(tmp_path / "not" / "there")


@pytest.mark.parametrize("name", folder.NAMES)
def test_only_files_of_its_own_are_replaced(name: str, tmp_path: Path) -> None:
    own = f"It is the best.\n{folder.FOUND_BY}pdplugins advise)"
    for _ in range(2):
        folder.check(tmp_path)
        assert len(list(folder.write(CANDIDATES["fixed split"].config, None, own, tmp_path))) == 4
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"its {name} is not of 'advise'; name another folder$"):
        folder.check(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_looking_at_a_folder_leaves_it_as_it_was(tmp_path: Path) -> None:
    theirs = tmp_path / "old" / ".pdplugins"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    folder.check(tmp_path / "old")
    folder.check(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert [path.read_text() for path in theirs.parent.iterdir()] == ["theirs"]


def test_a_profile_of_ones_own_goes_with_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts go into their folder first, and somebody may take that elsewhere."""
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text((data_dir("profiles") / "h100/llama-3.1-8b.json").read_text())
    config = CANDIDATES["fixed split"].config
    deployment = config.deployment.model_copy(update={"profile": "mine.json"})
    written = [
        path
        for path, _ in folder.write(config.model_copy(update={"deployment": deployment}), None, ABOUT, Path("advice"))
    ]
    assert Path("advice/profile.json") in written
    Path("advice").rename("elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert build_deployment(load(Path(folder.CONFIG))).perf is not None


def test_a_manifest_says_that_its_servers_do_not_start() -> None:
    config = CANDIDATES["arrow"].config
    parts = {role: getattr(config.deployment, role).model_copy(update={"tp": 2}) for role in ("prefill", "decode")}
    two = config.model_copy(update={"deployment": config.deployment.model_copy(update=parts)})
    assert "these refuse to start" in manifest(two, None, ABOUT)
    assert "these refuse to start" in sglang_script(two, None, ABOUT)


def test_a_batch_scheduler_reaches_stock_servers_too() -> None:
    config = CANDIDATES["dopd"].config
    assert config.batch_scheduler is not None
    assert "export PDPLUGINS_CONFIG=" in sglang_script(config, None, ABOUT)
