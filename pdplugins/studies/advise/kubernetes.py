"""The Kubernetes manifest: a graph of Dynamo's operator, or SGLang servers behind the gateway."""

from __future__ import annotations

import json
import shlex
from typing import Any

import yaml

from pdplugins.config import Config
from pdplugins.contracts.workers import Role
from pdplugins.studies.advise.serving import (
    BOOTSTRAP_PORT,
    PORT,
    Server,
    Way,
    dynamo_options,
    servers,
    sglang_notes,
    sglang_options,
    way_of,
)

NAME = "pdplugins-advice"
DYNAMO = "1.4.2"
WORKER_IMAGE = f"nvcr.io/nvidia/ai-dynamo/sglang-runtime:{DYNAMO}"
PLANNER_IMAGE = f"REGISTRY/dynamo-planner-pdplugins:{DYNAMO}"
"""Dynamo's planner image with pdplugins installed: the user makes it."""
SGLANG_IMAGE = "REGISTRY/sglang-pdplugins:0.5.23"
"""SGLang's image with pdplugins installed: the user makes it."""
Object = dict[str, Any]


def manifest(config: Config, model: str | None, about: str) -> str:
    """Return the manifest as YAML."""
    head = [
        *about.splitlines(),
        "Replace MODEL and REGISTRY. Written from the published schemas; not run on a cluster.",
    ]
    if way_of(config) is Way.DUAL:
        head += sglang_notes(config)
    named = model or "MODEL"
    objects = gateway_objects(config, named) if way_of(config) is Way.DUAL else [graph(config, named)]
    text = yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=110)
    return "".join(f"# {line}\n" for line in head) + text


def graph(config: Config, model: str) -> Object:
    """Return a DynamoGraphDeployment: frontend, workers, and a planner where the config has one."""
    pools: dict[str, list[Server]] = {}
    for server in servers(config):
        pools.setdefault("worker" if way_of(config) is Way.UNIFIED else server.role.value, []).append(server)
    services: Object = {
        "Frontend": {
            "componentType": "frontend",
            "replicas": 1,
            "envs": [{"name": "DYN_ROUTER_MODE", "value": "kv"}],
            "extraPodSpec": {"mainContainer": {"image": WORKER_IMAGE}},
        }
    }
    if config.planner is not None:
        services["Planner"] = _planner(config)
    services |= {name: _worker(config, name, members, model) for name, members in pools.items()}
    kind = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": NAME}}
    return {**kind, "spec": {"services": services}}


def _worker(config: Config, name: str, members: list[Server], model: str) -> Object:
    args = ["-m", "dynamo.sglang", "--model-path", model, *dynamo_options(config, members[0]), "--host", "0.0.0.0"]  # noqa: S104 - a pod
    role = {} if name == "worker" else {"subComponentType": name}
    if role:
        args += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
    return {
        "componentType": "worker",
        **role,
        "replicas": len(members),
        "resources": {"limits": {"gpu": str(members[0].tp)}},
        "extraPodSpec": {"mainContainer": {"image": WORKER_IMAGE, "command": ["python3"], "args": args}},
    }


def _planner(config: Config) -> Object:
    planner = {
        "environment": "kubernetes",
        "backend": "sglang",
        "max_gpu_budget": config.deployment.gpu_budget,
        "scheduling": {"scale_interval_seconds": 5},
        "plugin_registration": {"in_process_plugins": [_plugin(config)]},
    }
    args = ["--config", json.dumps(planner)]
    container = {"image": PLANNER_IMAGE, "command": ["python3", "-m", "dynamo.planner"], "args": args}
    return {"componentType": "planner", "replicas": 1, "extraPodSpec": {"mainContainer": container}}


def _plugin(config: Config) -> Object:
    kept = config.model_dump(mode="json", include={"slo", "deployment", "planner"})
    return {
        "module": "pdplugins.hosts.dynamo.doors.inprocess",
        "class": "PdPlanner",
        "plugin_id": "pdplugins",
        "plugin_type": "propose",
        "priority": 1,
        "execution_interval_seconds": 5,
        "hold_policy": "HOLD_LAST",
        "needs": ["observations.fpm", "observations.workers"],
        "kwargs": {"config": kept, "frontend_url": f"http://{NAME}-frontend:8000"},
    }


def gateway_objects(config: Config, model: str) -> list[Object]:
    """Return SGLang servers that do both phases, the gateway before them, and what connects them."""
    ours = servers(config)
    pools = [[one for one in ours if one.role is role] for role in Role]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {"config.yaml": yaml.safe_dump(config.model_dump(mode="json", exclude_none=True), sort_keys=False)},
        },
        _service("workers", {"clusterIP": "None", "publishNotReadyAddresses": True}, PORT),
        *(_workers(config, pool, model) for pool in pools if pool),
        _gateway(pools),
        _service("gateway", {}, 8000),
    ]


def _service(name: str, more: Object, port: int) -> Object:
    spec = {**more, "selector": {"app": f"{NAME}-{name}"}, "ports": [{"name": "http", "port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{NAME}-{name}"}, "spec": spec}


def _workers(config: Config, ours: list[Server], model: str) -> Object:
    name = f"{NAME}-{ours[0].role}"
    words = ["python3", "-m", "sglang.launch_server", "--model-path", model, "--port", str(PORT)]
    words += [*sglang_options(config, ours[0]), "--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
    container = {
        "name": "sglang",
        "image": SGLANG_IMAGE,
        # A server knows by its --host which requests name it.
        "command": ["/bin/sh", "-c", f'exec {shlex.join(words)} --host "$POD.{NAME}-workers"'],
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "PDPLUGINS_CONFIG", "value": "/etc/pdplugins/config.yaml"},
        ],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": str(ours[0].tp)}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/pdplugins"}],
    }
    spec = {
        "serviceName": f"{NAME}-workers",
        "replicas": len(ours),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": f"{NAME}-workers", "pool": name}},
        "template": _pod(f"{NAME}-workers", container, pool=name),
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def _gateway(pools: list[list[Server]]) -> Object:
    args = ["gateway", "--config", "/etc/pdplugins/config.yaml", "--host", "0.0.0.0", "--port", "8000"]  # noqa: S104 - a pod
    for pool in pools:
        for index, one in enumerate(pool):
            args += ["--worker", f"http://{NAME}-{one.role}-{index}.{NAME}-workers:{PORT},role={one.role}"]
    container = {
        "name": "gateway",
        "image": SGLANG_IMAGE,
        "command": ["pdplugins"],
        "args": args,
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/pdplugins"}],
    }
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": f"{NAME}-gateway"}},
        "template": _pod(f"{NAME}-gateway", container),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"{NAME}-gateway"}, "spec": spec}


def _pod(app: str, container: Object, **labels: str) -> Object:
    volumes = [{"name": "config", "configMap": {"name": NAME}}]
    return {"metadata": {"labels": {"app": app, **labels}}, "spec": {"containers": [container], "volumes": volumes}}
