"""Registers the workloads that this package can read or generate."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.workloads import azure, jsonl, servegen, sessions, synthetic


@hookimpl
def pd_register_workloads(register: Register) -> None:
    """Add the readers of published traces and the generators."""
    register("azure-csv", azure.azure_csv)
    register("mooncake-jsonl", jsonl.mooncake_jsonl)
    register("agentic-csv", sessions.agentic_csv, sessions.AgenticSettings)
    register("taubench-csv", sessions.taubench_csv, sessions.TauBenchSettings)
    register("vidur-csv", sessions.vidur_csv, sessions.VidurSettings)
    register("servegen", servegen.servegen, servegen.ServeGenSettings)
    register("synthetic", synthetic.synthetic, synthetic.SyntheticSettings)
