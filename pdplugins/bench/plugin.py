"""Registers the workloads that this package reads or makes."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.bench import synthetic, traces
from pdplugins.registry import Register


@hookimpl
def pd_register_workloads(register: Register) -> None:
    """Add the Azure and Mooncake readers and the synthetic generator."""
    register("azure-csv", traces.azure_csv)
    register("mooncake-jsonl", traces.mooncake_jsonl)
    register("synthetic", synthetic.synthetic, synthetic.SyntheticSettings)
