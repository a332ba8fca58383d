"""Lets batch schedulers size the steps of real SGLang on a GPU, and sees whether the steps keep their TPOT SLO.

    python benchmarks/slo_steps_gpu.py --out steps.json      with SGLang 0.5.16 and a GPU of 80 GB
    python benchmarks/slo_steps_gpu.py --publish steps.json  in a checkout: write it as the result slo-steps-gpu

Some requests decode, each with so much context, and long prompts wait. Before each step a batch scheduler says how many
prompt tokens join it, from the profile that `mixed_steps_profile.py` makes of other steps. The step is run and timed,
and the scheduler is told how long it took. Beside them stand fixed chunks, which is what engines have: the same number
of prompt tokens in each step. Engine, model and timing are those of `mixed_steps_gpu.py`; a step's time is `gpu_ms`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from mixed_steps_gpu import LLAMA_8B, TINY, Engine, Step, Watch, arguments, publish, versions

from pdplugins.config import parse
from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.contracts.request import Request
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies

PROFILE = "h100-measured/llama-3.1-8b"
PROMPT, BEFORE = 16_384, 16_384
"""Prompt tokens that wait, and those before them in the KV cache at the end of a run."""
DECODES = ((8, 1024), (32, 1024), (128, 1024), (64, 4096), (32, 8192))
"""Requests that decode, and the context of each in tokens."""
TPOTS_MS = (12.0, 20.0, 40.0)
CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192)
SIZERS: dict[str, dict[str, Any]] = {"dynaserve": {"batch_scheduler": "dynaserve"}, "fusion": {"bundle": "fusion"}}
Steps = list[list[float]]
"""Of each step its prompt tokens, those before them, and its milliseconds."""
SIZED, FIXED = 32, 8
"""Steps of a run: of a batch scheduler, and of a fixed chunk."""


class Run(NamedTuple):
    """One series of steps."""

    sizer: str
    """Name of a batch scheduler, or ``chunk N``."""
    tpot_ms: float | None
    """SLO that it keeps to; None for a fixed chunk."""
    batch: int
    context: int


def runs() -> list[Run]:
    """Return all series."""
    fixed = (Run(f"chunk {chunk}", None, *decodes) for chunk, decodes in product(CHUNKS, DECODES))
    sized = (Run(sizer, tpot, *decodes) for sizer, tpot, decodes in product(SIZERS, TPOTS_MS, DECODES))
    return [*fixed, *sized]


Sizer = tuple[Callable[[BatchView, float], BatchPlan], Callable[[BatchView, BatchPlan, float], None]]
"""What composes a step, and what hears how long it took."""


def sizer(run: Run) -> Sizer:
    """Return what sizes the steps of a run."""
    if run.tpot_ms is None:
        chunk = int(run.sizer.removeprefix("chunk "))

        def fixed(view: BatchView, _: float) -> BatchPlan:
            first = view.queue[0]
            return BatchPlan({first.request.id: min(chunk, first.remaining_tokens)})

        return fixed, lambda *_: None
    config = parse(
        {
            "slo": {"ttft_s": 2.0, "tpot_s": run.tpot_ms / 1e3},
            "deployment": {
                "profile": PROFILE, "gpu_budget": 2,
                "prefill": {"replicas": 1, "tp": 1}, "decode": {"replicas": 1, "tp": 1},
            },
            **SIZERS[run.sizer],
        }
    )  # fmt: skip
    build = build_policies(config, build_deployment(config)).batch_scheduler()
    assert build is not None
    scheduler = build()
    return scheduler.next_batch, scheduler.on_step


def series(run: Run, time_step: Callable[[Step], float]) -> Iterator[tuple[int, int, float]]:
    """Yield prompt tokens, those before them in the KV cache, and milliseconds of each step of a run.

    The tokens before them grow in equal parts, so that all runs attend to as many.
    """
    compose, told = sizer(run)
    now_s, count = 0.0, FIXED if run.tpot_ms is None else SIZED
    for index in range(count):
        done = BEFORE * index // count
        request = Request(f"p{index}", now_s, done + PROMPT)
        view = BatchView((QueuedPrefill(request, PROMPT, now_s, done),), run.batch, run.batch * run.context)
        plan = compose(view, now_s)
        tokens = plan.prefill_tokens.get(request.id, 0)
        mixed = Step("mixed", tokens, done, run.batch, run.context)
        took_ms = time_step(mixed if tokens else Step("decode", 0, 0, run.batch, run.context))
        if tokens:
            told(view, plan, took_ms / 1e3)
        yield tokens, done, took_ms
        now_s += took_ms / 1e3


def measure(engine: Engine, options: argparse.Namespace, begun: float) -> None:
    """Run all series in a random order, and write what was found after each."""
    watch = Watch(engine.cuda)
    before = watch.read()

    def time_step(step: Step) -> float:
        return float(engine.time(step)["gpu_ms"])

    for batch, context in DECODES:  # for what is compiled or chosen at first use
        for chunk in (0, *CHUNKS):
            if engine.capacity > (step := Step("mixed" if chunk else "decode", chunk, 0, batch, context)).held:
                time_step(step)
    most = PROMPT + BEFORE
    todo = [run for run in runs() if engine.capacity > most + run.batch * (run.context + 1)][:: options.every]
    random.Random(options.seed).shuffle(todo)  # noqa: S311 - an order, no secret
    rows: list[dict[str, Any]] = []
    for run in todo:
        if time.monotonic() - begun > options.limit_s:
            print(f"{len(todo) - len(rows)} series are left out: no time", flush=True)
            break
        steps = [[tokens, done, round(took_ms, 3)] for tokens, done, took_ms in series(run, time_step)]
        rows.append({**run._asdict(), "steps": steps})
        found = {
            "seed": options.seed, "versions": versions(), "profile": PROFILE, "model": options.config,
            "gpu_before": before, "gpu_after": watch.read(), "held_back": watch.held_back(), "planned": len(todo),
            "rows": sorted(rows, key=lambda row: (row["sizer"], row["tpot_ms"] or 0.0, row["batch"], row["context"])),
        }  # fmt: skip
        options.out.write_text(json.dumps(found))
    print(f"{len(rows)} of {len(todo)} series in {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    """Measure, or publish what was measured."""
    begun = time.monotonic()
    options = arguments(__doc__, "slo-steps-gpu").parse_args()
    if options.publish is not None:
        publish("slo-steps-gpu", "slo_steps_gpu.py", options, lambda found: {"summary": summary(found["rows"])})
        return
    options.config = TINY if options.tiny else LLAMA_8B
    measure(Engine(options.config, options.set, options.seed), options, begun)


def mean_ms(steps: Steps) -> float:
    """Return the mean time of steps: the TPOT of what decodes in them."""
    return fmean(took_ms for _, _, took_ms in steps)


def speed(steps: Steps) -> float:
    """Return the prompt tokens a second."""
    return max(1e3 * sum(tokens for tokens, _, _ in steps) / sum(took_ms for _, _, took_ms in steps), 1.0)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how well each batch scheduler keeps each TPOT, and its prefill over that of fixed chunks which keep it.

    A chunk keeps a TPOT if its steps do in the mean. Only decodes beside which some chunk does count. The best single
    chunk keeps it beside all of those.
    """
    steps = {Run(*(row[name] for name in Run._fields)): row["steps"] for row in rows}
    found = []
    for tpot_ms, name in product(TPOTS_MS, SIZERS):
        keep = {
            decodes: {
                chunk: speed(of)
                for chunk in CHUNKS
                if mean_ms(of := steps[Run(f"chunk {chunk}", None, *decodes)]) <= tpot_ms
            }
            for decodes in DECODES
        }
        beside = [decodes for decodes in DECODES if keep[decodes]]
        sized = [steps[Run(name, tpot_ms, *decodes)] for decodes in beside]
        one = max(set.intersection(*(set(keep[decodes]) for decodes in beside)))
        over_one = [speed(of) / keep[decodes][one] for of, decodes in zip(sized, beside, strict=True)]
        over_each = [speed(of) / max(keep[decodes].values()) for of, decodes in zip(sized, beside, strict=True)]
        took_ms = [step for of in sized for _, _, step in of]
        means = [mean_ms(of) / tpot_ms for of in sized]
        found.append(
            {
                "tpot_ms": tpot_ms, "sizer": name, "beside": len(beside), "steps": len(took_ms),
                "mean": fmean(means), "most_mean": max(means), "longest": max(took_ms) / tpot_ms,
                "one_chunk": one, "over_one": geometric_mean(over_one), "least_over_one": min(over_one),
                "over_each": geometric_mean(over_each), "least_over_each": min(over_each),
            }
        )  # fmt: skip
    return found


if __name__ == "__main__":
    main()
