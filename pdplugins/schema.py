"""JSON Schemas of the files that people write: configs and workloads, with the settings of every plugin.

Editors check and complete a file by the schema that its first line names::

    # yaml-language-server: $schema=config.schema.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from pdplugins.config import CHOICES, Config
from pdplugins.registry import BUNDLE, Registry
from pdplugins.workloads.sources import Mix

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/"


def config_schema(registry: Registry) -> Schema:
    """Return the schema of a config file, for the plugins of `registry`."""
    root = Config.model_json_schema()
    shared = root.pop("$defs")
    del shared["Choice"]
    for key in CHOICES:
        plugins = _named(registry, BUNDLE) | _named(registry, key)
        root["properties"][key] |= _choice(plugins, shared, key) | {"anyOf": [*_forms(plugins, key), {"type": "null"}]}
    backends = _named(registry, "power_backend")
    backend = shared["NodeConfig"]["properties"]["backend"]
    del backend["$ref"]
    backend |= _choice(backends, shared, "power_backend") | {"anyOf": _forms(backends, "power_backend")}
    return {"$schema": DIALECT, "title": "Config file of pdplugins", **_less(root, "title"), "$defs": shared}


def workload_schema(registry: Registry) -> Schema:
    """Return the schema of a workload file, for the workloads of `registry`. One without `workload` is synthetic."""
    shared: Schema = {}
    workloads = _named(registry, "workload")
    for name, settings in workloads.items():
        shared[name] = _settings(settings, shared, f"{name}.")
        shared[name]["properties"] |= {"workload": {"const": name}, "path": {"type": "string"}}
        if name != "synthetic":
            shared[name].setdefault("required", []).append("workload")
    shared["mix"] = _settings(Mix, shared, "mix.")
    chosen = [_when("workload", name, name) for name in workloads]
    plain = {"if": {"not": {"anyOf": [{"required": ["workload"]}, {"required": ["mix"]}]}}, "then": _ref("synthetic")}
    mixed = {"if": {"required": ["mix"]}, "then": _ref("mix")}
    names = {"workload": {"enum": list(workloads), "description": "who makes or reads it; synthetic when absent"}}
    root = {"type": "object", "properties": names, "allOf": [*chosen, plain, mixed]}
    return {"$schema": DIALECT, "title": "Workload file of pdplugins", **root, "$defs": shared}


SCHEMAS: dict[str, Callable[[Registry], Schema]] = {"config": config_schema, "workload": workload_schema}
"""By kind of file: what makes its schema."""


def text(schema: Schema) -> str:
    """Return `schema` as it is shipped."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _named(registry: Registry, kind: str) -> dict[str, type[BaseModel]]:
    """Return the settings of everything that is registered as `kind`, by name."""
    return {
        registration.name: registration.settings
        for registration in registry.registrations()
        if registration.kind == kind
    }


def _choice(plugins: dict[str, type[BaseModel]], shared: Schema, kind: str) -> Schema:
    """Put the settings of each plugin into `shared`; return what a key's value must match beside its forms."""
    for name, settings in plugins.items():
        definition = _settings(settings, shared, f"{kind}.{name}.")
        definition["properties"] = {"name": {"const": name}, **definition.get("properties", {})}
        shared[f"{kind}.{name}"] = definition
    return {"allOf": [_when("name", name, f"{kind}.{name}") for name in plugins]}


def _forms(plugins: dict[str, type[BaseModel]], kind: str) -> list[Schema]:
    """Return both forms of a choice: the bare name, and a mapping with the name and settings."""
    names = {"enum": sorted(plugins), "description": f"a {kind} that is installed"}
    return [names, {"type": "object", "required": ["name"], "properties": {"name": names}}]


def _when(key: str, value: str, definition: str) -> Schema:
    """Return: where `key` is `value`, the definition holds."""
    chosen = {"type": "object", "required": [key], "properties": {key: {"const": value}}}
    return {"if": chosen, "then": _ref(definition)}


def _ref(definition: str) -> Schema:
    return {"$ref": _REFERENCE + definition}


def _settings(model: type[BaseModel], shared: Schema, prefix: str) -> Schema:
    """Return the schema of a settings model. What it refers to goes into `shared`, each name behind `prefix`."""
    schema: Schema = model.model_json_schema(ref_template=f"{_REFERENCE}{prefix}{{model}}")
    shared |= {prefix + name: _numbers(definition) for name, definition in schema.pop("$defs", {}).items()}
    return _less(_numbers(schema), "title")


def _numbers(node: Any) -> Any:
    """Return a schema in which a bare number stands for a distribution that is always this number."""
    if isinstance(node, list):
        return [_numbers(item) for item in node]
    if not isinstance(node, dict):
        return node
    walked = {key: _numbers(value) for key, value in node.items()}
    if {"fixed", "lognormal"} <= set(walked.get("discriminator", {}).get("mapping", ())):
        union = {key: walked.pop(key) for key in ("discriminator", "oneOf")}
        walked["anyOf"] = [{"type": "number"}, union]
    return walked


def _less(schema: Schema, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}
