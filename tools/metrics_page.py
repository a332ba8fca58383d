"""Every metric that pdplugins exports. `python -m tools.metrics_page` writes the tables of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from pdplugins.contracts.kinds import Kind
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.hosts.dynamo.local.metrics import FleetMetrics
from pdplugins.hosts.dynamo.router.component import PREFIX
from pdplugins.hosts.power.metrics import NodeMetrics
from pdplugins.runtime.metrics import Metrics

RULES = Path(__file__).parents[1] / "deploy/prometheus/pdplugins-alerts.yaml"
PAGE = Path(__file__).parents[1] / "docs/metrics.md"
BEGIN, END = "<!-- metrics: {} -->\n", "<!-- /metrics -->"


@dataclass(frozen=True)
class Exported:
    """One metric: its name as queries write it, without the endings of a histogram."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> set[str]:
        """The names that a query may use."""
        return {self.name + end for end in ("_bucket", "_sum", "_count")} if self.kind == "histogram" else {self.name}


def groups() -> dict[str, list[Exported]]:
    """Return the metrics by who exports them."""
    return {
        "gateway": list(_of(GatewayMetrics().registry)),
        "dynamo_router": list(_of(GatewayMetrics(PREFIX).registry)),
        **{kind.value: list(_of(_policy(kind))) for kind in Kind},
        "power_node": list(_of(_node())),
        "local": list(_of(_local())),
        "sglang": [
            Exported("pdplugins_sglang_feature", "gauge", ("feature",), "1: serves; 0: refused, stock SGLang serves")
        ],
    }


def _policy(kind: Kind) -> CollectorRegistry:
    registry = CollectorRegistry()
    Metrics(kind, registry)
    return registry


def _node() -> CollectorRegistry:
    registry = CollectorRegistry()
    caps = SimpleNamespace(accounts={}, budget_w=0.0)
    NodeMetrics(registry).node = SimpleNamespace(gpus={}, caps=caps, counts={}, kept_w=0.0)  # type: ignore[assignment]
    return registry


def _local() -> CollectorRegistry:
    registry = CollectorRegistry()
    FleetMetrics(registry)
    return registry


def _of(registry: CollectorRegistry) -> Iterator[Exported]:
    """Yield the metrics of a registry by name. A family knows its labels, or the metric does that collects it."""
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            labels: Any = getattr(family, "_labelnames", getattr(collector, "_labelnames", ()))
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield Exported(name, family.type, tuple(labels), family.documentation)


def names() -> set[str]:
    """Return every name that a query may use."""
    return {name for group in groups().values() for one in group for name in one.series}


def table(group: list[Exported]) -> str:
    """Return the rows of one group."""
    rows = ["| metric | type | labels | what it counts or shows |", "|---|---|---|---|"]
    for one in group:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.kind} | {labels} | {_in_a_row(one.text)} |")
    return "\n".join(rows) + "\n"


def _in_a_row(text: str) -> str:
    """Return a text that begins small, unless it begins with an abbreviation."""
    return text if text[:2].isupper() else text[0].lower() + text[1:]


def shown() -> dict[str, list[Exported]]:
    """Return the groups as the page shows them: what differs by its prefix only stands there once."""
    found = groups()
    others = [replace(one, name=one.name.replace("_router_", "_<kind>_")) for one in found["router"]]
    texts = {one.name: one.text.replace("the router", "a policy") for one in others}
    found["policies"] = [replace(one, text=texts[one.name]) for one in others]
    return {
        name: group for name, group in found.items() if name not in {"dynamo_router", *Kind} or name == Kind.PLANNER
    }


def written(page: str) -> str:
    """Return the page with the tables of now."""
    for name, group in shown().items():
        head, begin, rest = page.partition(BEGIN.format(name))
        if not begin:
            raise LookupError(f"docs/metrics.md: {BEGIN.format(name).strip()} is missing")
        page = head + begin + table(group) + END + rest.partition(END)[2]
    head, begin, rest = page.partition(BEGIN.format("alerts"))
    return head + begin + alerts() + END + rest.partition(END)[2]


def alerts() -> str:
    """Return the table of the alert rules."""
    rows = ["| alert | severity | means | do |", "|---|---|---|---|"]
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            says = rule["annotations"]
            rows.append(f"| `{rule['alert']}` | {rule['labels']['severity']} | {says['summary']} | {says['do']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
