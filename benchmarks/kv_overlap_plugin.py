"""What `kv_overlap.py` adds to the servers that it measures: an SGLang plugin, not a part of pdplugins.

Between two requests the file named by KV_OVERLAP_SETTINGS may change `chunk`, the tokens of a prefill step, and
`sender`:

* "paused" leaves the servers as they are: SGLang's transfer threads send the chunks, and what polls for them pauses, as
  `nixl_poll_us` says;
* "spinning" takes the pauses of SGLang's own threads away;
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
CHANGED = {"at_ns": 0, "to": {}}
"""The settings as they were read last."""
PAUSE_S: list[float] = []
"""What the servers came with."""


def register() -> None:
    """Hook this process of SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only inside SGLang

    for target, hook in (
        (SCHEDULER + "get_new_batch_prefill", in_chunks),
        (SCHEDULER + "on_idle", polling),
        (MANAGER + "add_transfer_request", on_thread),
        (MANAGER + "send_kvcache", timed),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


def settings() -> Any:
    file = Path(os.environ["KV_OVERLAP_SETTINGS"])
    if (at_ns := file.stat().st_mtime_ns) != CHANGED["at_ns"]:
        CHANGED.update(at_ns=at_ns, to=json.loads(file.read_text()))
    return CHANGED["to"]


def set_pause() -> None:
    """Set the pause of the clock that pdplugins gave to the threads that poll."""
    from sglang.srt.disaggregation.nixl import conn  # noqa: PLC0415 - only inside SGLang

    clock: Any = conn.time
    if not PAUSE_S:
        PAUSE_S.append(clock.pause_s)
    clock.pause_s = 0.0 if settings()["sender"] == "spinning" else PAUSE_S[0]


def polling(original: Any, scheduler: Any) -> Any:
    """Look for what has arrived, in the way of the settings."""
    set_pause()
    return original(scheduler)


def in_chunks(original: Any, scheduler: Any, *arguments: Any) -> Any:
    """Compose a prefill step with the chunk size of the settings."""
    set_pause()
    stock, scheduler.chunked_prefill_size = scheduler.chunked_prefill_size, settings()["chunk"]
    try:
        return original(scheduler, *arguments)
    finally:
        scheduler.chunked_prefill_size = stock


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
