"""The JSON Schemas that editors check configs and workloads by: shipped as the code makes them, and strict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from pdplugins import schema
from pdplugins.registry import Registry
from pdplugins.safe_yaml import read_yaml

ROOT = Path(__file__).parents[1]
SHIPPED = {"config": ROOT / "configs/config.schema.json", "workload": ROOT / "configs/workloads/workload.schema.json"}
FILES = sorted(path for path in (ROOT / "configs").rglob("*.yaml"))
HINT = "# yaml-language-server: $schema="


def shipped_plugins() -> Registry:
    """A registry of its own: other tests may have added plugins to that of the process."""
    registry = Registry()
    registry.load_entry_points()
    return registry


def shipped(kind: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(json.loads(SHIPPED[kind].read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_shipped_schema_is_the_one_that_the_code_makes(kind: str) -> None:
    """`pdplugins config --schema KIND > FILE` writes it again."""
    assert json.loads(SHIPPED[kind].read_text(encoding="utf-8")) == schema.SCHEMAS[kind](shipped_plugins())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_file_names_the_schema_that_it_fulfils(path: Path) -> None:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith(HINT)
    named = (path.parent / first.removeprefix(HINT)).resolve()
    (kind,) = (kind for kind, file in SHIPPED.items() if file == named)
    assert [str(error) for error in shipped(kind).iter_errors(read_yaml(path))] == []


def errors(kind: str, text: str) -> list[Any]:
    return list(shipped(kind).iter_errors(yaml.safe_load(text)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("config", "planer: dopd"),
        ("config", "planner: dpod"),
        ("config", "planner: {name: dopd, intervall_s: 3}"),
        ("config", "planner: {name: dopd, interval_s: -3}"),
        ("config", "planner: {interval_s: 3}"),
        ("config", "planner: arrow"),
        ("config", "bundle: dopd"),
        ("config", "slo: {ttft_s: fast}"),
        ("config", "simulation: {extra: [{role: nobody}]}"),
        ("config", "node: {backend: {name: nvml, nonsense: 1}}"),
        ("workload", "isl_tokens: {kind: lognormal, mean: 3, sigma: 1}"),
        ("workload", "isl_tokens: long"),
        ("workload", "workload: nobody"),
        ("workload", "mix: []"),
        ("workload", "mix: [{trace: demo, speed: 2}]"),
        ("workload", "phases: [{arrivals: {kind: ramp, rate: 2, to_rat: 3}}]"),
    ],
)
def test_what_the_loader_refuses_an_editor_marks(kind: str, text: str) -> None:
    assert errors(kind, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("config", "{}"),
        ("config", "{planner: dopd, router: null, bundle: fusion}"),
        ("config", "router: {name: fusion, oldest_share: 0.2}"),
        ("config", "deployment: {prefill: {tp: auto}}"),
        ("config", "node: {backend: nvml}"),
        ("workload", "{isl_tokens: 1000, osl_tokens: {kind: uniform, low: 1, high: 3}}"),
        ("workload", "{workload: servegen, path: clients}"),
        ("workload", "{workload: azure-csv, path: trace.csv}"),
    ],
)
def test_what_the_loader_takes_an_editor_leaves_alone(kind: str, text: str) -> None:
    assert errors(kind, text) == []
