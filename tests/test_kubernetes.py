"""What deploy/ has for Kubernetes and Docker: checked offline against published schemas, and by the commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import typer
import yaml

from pdplugins import cli
from pdplugins.config import parse
from pdplugins.gateway import discovery
from pdplugins.gateway.process import CUT_OFF_S
from pdplugins.registry import default_registry
from pdplugins.studies.advise.kubernetes import graph
from pdplugins.types import Role
from tests.kubernetes_models import as_kubernetes_reads

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/pdplugins"
RENDERED = {name: ROOT / f"deploy/kubernetes/{name}.yaml" for name in ("gateway", "graph")}
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
GRAPH = jsonschema_rs.validator_for(json.loads((ROOT / "tests/data/dynamo-graph-deployment.schema.json").read_text()))
VERSION = "1.30"


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(RENDERED[name].read_text(encoding="utf-8")))


def found(name: str, kind: str, ending: str = "") -> dict[str, Any]:
    (one,) = [one for one in objects(name) if one["kind"] == kind and one["metadata"]["name"].endswith(ending)]
    return one


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in objects("gateway"):
        if one["kind"] == "Deployment":
            yield one["metadata"]["name"], one["spec"]["template"]


MODELS = {"apps/v1": "V1", "v1": "V1", "rbac.authorization.k8s.io/v1": "V1"}


@pytest.mark.parametrize("name", RENDERED)
def test_kubernetes_knows_every_field(name: str) -> None:
    for one in objects(name):
        if (prefix := MODELS.get(one["apiVersion"])) is not None:
            assert as_kubernetes_reads(one, prefix + one["kind"]) == one


@pytest.mark.parametrize("name", RENDERED)
def test_the_published_schemas_take_every_object(name: str) -> None:
    """Required fields and values, too."""
    validate = pytest.importorskip("kubernetes_validate", reason="make setup installs it")
    for one in objects(name):
        if one["apiVersion"] in MODELS:
            validate.validate(one, VERSION, strict=True)


def dynamo_graphs() -> list[Any]:
    ours = parse({"planner": "dopd", "deployment": {"decode": {"tp": 1}}})
    return [found("graph", "DynamoGraphDeployment"), json.loads(json.dumps(graph(ours, "org/model")))]


@pytest.mark.parametrize("one", dynamo_graphs(), ids=["chart", "advice"])
def test_dynamos_operator_knows_every_field_of_the_graph(one: dict[str, Any]) -> None:
    GRAPH.validate(one)
    for service in one["spec"]["services"].values():
        pod = dict(service["extraPodSpec"])
        container = {"name": "main", **pod.pop("mainContainer")}
        assert as_kubernetes_reads(container, "V1Container") == container
        spec = {"containers": [], **pod}
        assert as_kubernetes_reads(spec, "V1PodSpec") == spec


@pytest.mark.parametrize(
    "change", [{"componentTyp": "worker"}, {"replicas": -1}, {"resources": {"limits": {"gpu": 1}}}]
)
def test_a_graph_with_a_field_that_is_not_there_is_found(change: dict[str, Any]) -> None:
    one = found("graph", "DynamoGraphDeployment")
    one["spec"]["services"]["Planner"] |= change
    with pytest.raises(jsonschema_rs.ValidationError):
        GRAPH.validate(one)


# --- what the objects say to each other -------------------------------------------------------------------------------


def test_configs_are_those_of_pdplugins() -> None:
    config = parse(yaml.safe_load(found("gateway", "ConfigMap")["data"]["config.yaml"]))
    assert config.router is not None
    planner = yaml.safe_load(found("graph", "ConfigMap")["data"]["planner.yaml"])
    (plugin,) = planner["plugin_registration"]["in_process_plugins"]
    assert parse(plugin["kwargs"].pop("config")).planner is not None
    assert set(plugin["kwargs"]) == {"decision_log", "frontend_url", "metrics_host", "metrics_port", "shadow"}
    assert plugin["kwargs"]["shadow"] is True, "the first day it only watches"


@pytest.mark.dynamo
def test_dynamo_reads_the_planners_config_and_our_plugin_its_arguments() -> None:
    module = pytest.importorskip("dynamo.planner.config.planner_config")
    planner = yaml.safe_load(found("graph", "ConfigMap")["data"]["planner.yaml"])
    assert module.PlannerConfig.model_validate(planner).max_gpu_budget == 8
    (plugin,) = planner["plugin_registration"]["in_process_plugins"]
    door = pytest.importorskip(plugin["module"])
    kwargs = plugin["kwargs"] | {"decision_log": None, "metrics_port": None}
    assert getattr(door, plugin["class"])(**kwargs).interval_s > 0


def test_services_find_their_pods_and_pods_their_volumes() -> None:
    labels = {name: template["metadata"]["labels"] for name, template in pods()}
    for service in objects("gateway"):
        if service["kind"] == "Service":
            assert service["spec"]["selector"].items() <= labels[service["metadata"]["name"]].items()
    maps = {one["metadata"]["name"] for one in objects("gateway") if one["kind"] == "ConfigMap"}
    for _, template in pods():
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        assert mounted == set(volumes)
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= maps


@pytest.fixture(scope="module")
def command() -> Any:
    default_registry().add_commands(cli.app)
    return typer.main.get_command(cli.app)


def gateway_container() -> dict[str, Any]:
    return dict(next(template for name, template in pods() if name.endswith("gateway"))["spec"]["containers"][0])


def test_the_gateway_takes_its_options(command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    args = gateway_container()["args"]
    command.commands["gateway"].make_context("pdplugins", list(args))
    monkeypatch.setattr(discovery, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for name in ("token", "namespace"):
        (tmp_path / name).write_text("llm")
    sources = [discovery.parse_source(arg.partition("=")[2]) for arg in args if arg.startswith("--discover=")]
    services = {one["metadata"]["name"] for one in objects("gateway") if one["kind"] == "Service"}
    assert all(isinstance(one, discovery.KubernetesSource) and one.service in services for one in sources)
    assert [getattr(one, "options", "") for one in sources] == [f",role={role}" for role in Role]
    role = found("gateway", "Role")
    assert role["rules"] == [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}]


def test_a_pod_drains_before_it_is_killed() -> None:
    spec = next(template for name, template in pods() if name.endswith("gateway"))["spec"]
    (container,) = spec["containers"]
    drain_s = next(float(arg.removeprefix("drain_s=")) for arg in container["args"] if arg.startswith("drain_s="))
    pause_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > pause_s + drain_s + CUT_OFF_S
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert "tcpSocket" in container["livenessProbe"], "/health is 503 while no server is there"


def test_the_gateway_may_do_nothing_on_its_node() -> None:
    spec = next(template for name, template in pods() if name.endswith("gateway"))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == int(re.findall(r"^USER (\d+)$", DOCKERFILE.read_text(), re.M)[0])
    assert gateway_container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    planner = found("graph", "DynamoGraphDeployment")["spec"]["services"]["Planner"]["extraPodSpec"]
    assert planner["securityContext"]["runAsNonRoot"] is True
    for _, template in pods():
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert {"readinessProbe", "livenessProbe"} <= set(container)


def test_images_are_those_of_a_version() -> None:
    text = "".join(path.read_text() for path in RENDERED.values())
    images = re.findall(r"image: \"?([^\"\s]+)", text)
    assert len(images) >= 6
    assert all(re.search(r":\d+\.\d+", image) for image in images)


# --- the chart --------------------------------------------------------------------------------------------------------


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    if (program := shutil.which("helm")) is None:
        pytest.skip("helm is not installed")
    return subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", RENDERED)
def test_the_rendered_files_are_those_of_the_chart(name: str) -> None:
    first = RENDERED[name].read_text(encoding="utf-8").splitlines()[0]
    done = helm(*first.removeprefix("# Made by: helm ").split())
    assert done.returncode == 0, done.stderr
    assert list(yaml.safe_load_all(done.stdout)) == objects(name)


@pytest.mark.parametrize(
    ("settings", "sees"),
    [
        (["gateway.shadow=true"], "--shadow"),
        (["gateway.apiKeysSecret=keys", "gateway.admin=true"], "--admin-host=0.0.0.0"),
        (["gateway.drainSeconds=60"], "terminationGracePeriodSeconds: 75"),
        (["config.sglang.dual_role=false"], "--disaggregation-mode=prefill"),
        (["workers.envSecret=hf"], "secretRef"),
    ],
)
def test_values_of_the_chart_act(settings: list[str], sees: str) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    done = helm("template", "p", str(CHART), "--kube-version", VERSION, *words)
    assert done.returncode == 0, done.stderr
    assert sees in done.stdout
    assert sees not in helm("template", "p", str(CHART), "--kube-version", VERSION).stdout
    for one in yaml.safe_load_all(done.stdout):
        assert as_kubernetes_reads(one, MODELS[one["apiVersion"]] + one["kind"]) == one


@pytest.mark.parametrize(
    ("setting", "why"), [("gateway.admin=true", "name gateway.apiKeysSecret"), ("graph.enabled=true", "planner: dopd")]
)
def test_values_that_cannot_be_are_refused(setting: str, why: str) -> None:
    done = helm("template", "p", str(CHART), "--kube-version", VERSION, "--set", setting)
    assert done.returncode != 0
    assert why in done.stderr


def test_every_value_of_the_chart_is_used() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for section in ("gateway", "workers", "graph"):
        for key in values[section]:
            assert re.search(rf"\.{key}\b", templates), f"{section}.{key}"
    assert parse(values["config"]).router is not None


# --- the image --------------------------------------------------------------------------------------------------------


def test_hadolint_takes_the_dockerfile() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    if (program := shutil.which("hadolint") or (str(beside) if beside.exists() else None)) is None:
        pytest.skip("hadolint is not installed (make setup installs it)")
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_pinned_and_runs_as_nobody() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+$", text, re.M), "a base of a version"
    assert not re.search(r"^ADD ", text, re.M)
    assert not re.search(r"https?://", text)
    assert ":latest" not in text
    gateway = text.partition(" AS gateway\n")[2].partition("\nFROM ")[0]
    assert re.search(r"^USER 10001$", gateway, re.M)
    assert gateway.index("USER 10001") < gateway.index("ENTRYPOINT")
