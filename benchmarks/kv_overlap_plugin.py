"""What `kv_overlap.py` adds to the servers that it measures: an SGLang plugin, not a part of pdplugins.

Between two requests the file named by KV_OVERLAP_SETTINGS may change `chunk`, the tokens of a prefill step, and
`sender`:

* "worker" leaves SGLang as it is: transfer threads of its own send the chunks;
* "paused" does too, but the threads that poll while a transfer runs (the one that sends, and the scheduler that
  receives) pause between polls: each keeps a core busy, and next to the compute a small machine has none to spare;
* "scheduler" sends each chunk on the scheduler's thread and waits for it: the control, in which nothing can hide.

So one pair of servers serves every case, and the cases can take turns. Each send is written to KV_OVERLAP_SENDS.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

MANAGER = "sglang.srt.disaggregation.nixl.conn.NixlKVManager."
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
PAUSE_S = 0.0005


def register() -> None:
    """Hook this process of SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only inside SGLang

    for target, hook in (
        (SCHEDULER + "get_new_batch_prefill", in_chunks),
        (SCHEDULER + "process_decode_queue", receiving),
        (MANAGER + "add_transfer_request", on_thread),
        (MANAGER + "send_kvcache", timed),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
    from sglang.srt.disaggregation.nixl import conn  # noqa: PLC0415 - only inside SGLang

    conn.time = Clock()


def settings() -> dict[str, Any]:
    return json.loads(Path(os.environ["KV_OVERLAP_SETTINGS"]).read_text())


def in_chunks(original: Any, scheduler: Any, *arguments: Any) -> Any:
    """Compose a prefill step with the chunk size of the settings."""
    stock, scheduler.chunked_prefill_size = scheduler.chunked_prefill_size, settings()["chunk"]
    try:
        return original(scheduler, *arguments)
    finally:
        scheduler.chunked_prefill_size = stock


def receiving(original: Any, scheduler: Any) -> Any:
    """Look for KV cache that has arrived, and pause where only that is waited for."""
    done = original(scheduler)
    if scheduler.disagg_decode_transfer_queue.queue and settings()["sender"] == "paused":
        time.sleep(PAUSE_S)
    return done


class Clock:
    """In place of the module `time` in SGLang's transfer threads, which wait with `sleep(0)`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds or (PAUSE_S if settings()["sender"] == "paused" else 0))


class Done(BaseException):
    """Ends SGLang's transfer worker, which has no end of its own."""


class Inline:
    """In place of a transfer queue: what is put into it is sent at once, by SGLang's own worker on this thread."""

    def __init__(self, manager: Any) -> None:
        self.manager, self.chunks = manager, []

    def put(self, chunk: Any) -> None:
        self.chunks.append(chunk)
        with contextlib.suppress(Done):
            self.manager.transfer_worker(self)

    def get(self) -> Any:
        if not self.chunks:
            raise Done
        return self.chunks.pop()


def on_thread(original: Any, manager: Any, *arguments: Any, **keywords: Any) -> Any:
    """Send a chunk from the thread of the settings."""
    if settings()["sender"] != "scheduler":
        return original(manager, *arguments, **keywords)
    stock, manager.transfer_queues = manager.transfer_queues, [Inline(manager)]
    try:
        return original(manager, *arguments, **keywords)
    finally:
        manager.transfer_queues = stock


def timed(original: Any, manager: Any, *arguments: Any, **keywords: Any) -> Any:
    """Note how much a send moves, how long posting it takes, and on which thread."""
    indices = keywords["prefill_kv_indices"] if "prefill_kv_indices" in keywords else arguments[1]
    begun_s = time.perf_counter()
    handle = original(manager, *arguments, **keywords)
    line = {
        "bytes": len(indices) * sum(manager.kv_args.kv_item_lens),
        "post_s": time.perf_counter() - begun_s,
        "main_thread": threading.current_thread() is threading.main_thread(),
    }
    with Path(os.environ["KV_OVERLAP_SENDS"]).open("a") as out:
        out.write(json.dumps(line) + "\n")
    return handle
