"""The options that commands of this folder share: one help text for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdplugins.config import MOST_GPUS, MOST_JOBS

SYNTHETIC = "synthetic"
Trace = Annotated[
    str | None, typer.Option(help=f"Trace or workload file, or a workload by its name; else '{SYNTHETIC}'.")
]
Gpus = Annotated[int | None, typer.Option(min=2, max=MOST_GPUS, help="GPUs of all workers; each pool keeps its share.")]
Profile = Annotated[str | None, typer.Option(help="Performance profile, <gpu>/<model>.")]
Prefill = Annotated[int | None, typer.Option(min=1, help="Prefill workers at start.")]
Decode = Annotated[int | None, typer.Option(min=1, help="Decode workers at start.")]
Ttft = Annotated[float | None, typer.Option(help="SLO of the time to first token, s.")]
Tpot = Annotated[float | None, typer.Option(help="SLO of the time per output token, s.")]
Seed = Annotated[
    int, typer.Option(min=0, help="Seed of the policies' random choices; a workload has its own: --trace demo:seed=2.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the config and a value in YAML.")
]
Bound = Annotated[bool, typer.Option("--bound", help="Compute what no policy can beat (takes seconds).")]
Json = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the metrics there.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="OUT", help="Write a report that opens offline.")]
Records = Annotated[Path | None, typer.Option(metavar="OUT", help="Write a line for each request, .jsonl or .parquet.")]
DecisionLog = Annotated[Path | None, typer.Option(metavar="FILE", help="Log what policies decide: pdplugins explain.")]
LookBack = Annotated[
    bool, typer.Option("--hindsight/--no-hindsight", help="Say what fixed pools would have attained (takes a second).")
]
Stream = Annotated[
    bool, typer.Option("--stream", help="Hold no trace and no records in memory: for runs of millions of requests.")
]
Jobs = Annotated[int | None, typer.Option(min=1, max=MOST_JOBS, help="Runs at the same time; default: one per core.")]
EverySeed = Annotated[int, typer.Option(min=0, help="Seed of every random choice.")]
Results = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write all results there.")]
