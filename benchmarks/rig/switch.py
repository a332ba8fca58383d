"""An SGLang plugin for benchmarks: one server that takes the settings of any side between two runs.

A start of a server costs minutes of a GPU that is lent for minutes. So `benchmarks/gpu_live.py` starts one, and writes
into the file that RIG_SWITCH names which chunk size SGLang has, whether it mixes prefill with decodes, and whose batch
scheduler it asks: nobody's, or that of a config, through the same `BatchHooks` that pdplugins installs for it. The
engine looks when a request finds it idle. SGLang reads both settings for each step that it composes, from attributes of
its scheduler.

Of each step, whoever composed it, a line says how many prompt tokens and decodes it had, and its milliseconds.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TextIO

from pdplugins.config import Config, load
from pdplugins.gateway.terms import carried_by
from pdplugins.hosts.sglang.batching import BatchHooks
from pdplugins.hosts.sglang.hooking import Hook, HookInstaller, broken_seams
from pdplugins.hosts.sglang.install import MOST_KNOWN, journal_of
from pdplugins.hosts.sglang.names import SCHEDULER
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies

VARIABLE = "RIG_SWITCH"
"""Names the file with what is on now: `chunk`, `mixed`, `config` (a path, or null), and `steps`, the file to write."""


def register() -> None:
    """Hook the switch into this process, where the variable says so."""
    if name := os.environ.get(VARIABLE):
        installer = HookInstaller(["the benchmark's switch"], strict=True)
        if broken := broken_seams():
            installer.refuse("; ".join(broken))
        installer.install(Switch(Path(name)).hooks())


class Switch:
    """Passes each step on to SGLang alone, or to the batch scheduler that is on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._policy: BatchHooks | None = None
        self._steps: TextIO | None = None
        """Each line is written at once: nobody says when a run has ended."""
        self._launched: deque[tuple[int, int, float] | None] = deque()
        self._completed_s = 0.0

    def hooks(self) -> dict[str, Hook]:
        """Return each hook by the name of what it wraps."""
        return {
            SCHEDULER + "get_new_batch_prefill": self.new_prefill,
            SCHEDULER + "run_batch": self.run,
            SCHEDULER + "process_batch_result": self.completed,
        }

    def new_prefill(self, original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        """Compose the prefill of the next step."""
        if scheduler.waiting_queue and running_batch.is_empty() and scheduler.chunked_req is None:
            self._look(scheduler)
        if self._policy is None:
            return original(scheduler, running_batch)
        return self._policy.new_prefill(original, scheduler, running_batch)

    def run(self, original: Callable[..., Any], scheduler: Any, batch: Any, *more: Any, **keywords: Any) -> Any:
        """Note what a step runs before it is launched."""
        self._launched.append(sizes(batch, time.perf_counter()))
        if self._policy is None:
            return original(scheduler, batch, *more, **keywords)
        return self._policy.run(original, scheduler, batch, *more, **keywords)

    def completed(self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
        """Write how long a step took, as `BatchHooks.completed` counts it."""
        wrapped = original if self._policy is None else partial(self._policy.completed, original)
        done = wrapped(scheduler, batch, result)
        now_s = time.perf_counter()
        if (step := self._launched.popleft() if self._launched else None) is not None and self._steps is not None:
            tokens, decodes, launched_s = step
            took_ms = 1e3 * (now_s - max(launched_s, self._completed_s))
            self._steps.write(f"[{tokens}, {decodes}, {took_ms:.3f}]\n")
        self._completed_s = now_s
        return done

    def _look(self, scheduler: Any) -> None:
        """Take what the file says. It changes only while the engine has nothing to do."""
        if (text := self._path.read_text(encoding="utf-8")) == self._text:
            return
        self._text, on = text, json.loads(text)
        scheduler.chunked_prefill_size, scheduler.is_mixed_chunk = on["chunk"], on["mixed"]
        self._policy = None if on["config"] is None else hooks_of(load(Path(on["config"])))
        if self._steps is not None:
            self._steps.close()
        self._steps = Path(on["steps"]).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115 - until the next look


def hooks_of(config: Config) -> BatchHooks:
    """Return what pdplugins installs for a config."""
    build = build_policies(config, build_deployment(config)).batch_scheduler()
    assert build is not None, "no batch scheduler in the config"
    return BatchHooks(
        build, asked=lru_cache(MOST_KNOWN)(partial(carried_by, config=config.terms)), journal=journal_of(config)
    )


def sizes(batch: Any, now_s: float) -> tuple[int, int, float] | None:
    """Return prompt tokens and decodes of a step, and when it is launched; None for a step of another kind."""
    if batch.forward_mode.is_decode():
        return 0, len(batch.reqs), now_s
    if not batch.forward_mode.is_extend():
        return None
    decoding = len(batch.decoding_reqs or [])
    return sum(batch.extend_lens[: len(batch.reqs) - decoding]), decoding, now_s
