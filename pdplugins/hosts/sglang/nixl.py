"""Gives threads that poll for transfers a pause. Without one, each of them keeps a core busy.

Two kinds of thread poll:

* NIXL's progress threads, also when nothing moves. NIXL has a delay for it (``pthrDelay`` of its agent's
  configuration), but its Python API fixes that at 0.
* SGLang's transfer threads while a chunk is on its way, and a scheduler that has nothing else to do. They compete for
  Python's lock with the computation of the next chunk.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from pdplugins.errors import HostError
from pdplugins.hosts.sglang.waiting import Clock

TARGET = "sglang.srt.disaggregation.nixl.conn.time"
"""With its ``sleep(0)`` SGLang's transfer threads wait."""
NEXT_CHUNK = "sglang.srt.disaggregation.common.utils.FastQueue.get"
"""Gives a transfer thread the next chunk to send."""


def pause_transfer_threads(delay_us: int) -> Clock:
    """Let SGLang's transfer threads pause for `delay_us` µs, by the clock returned; 0 leaves them as they are."""
    clock = Clock(delay_us / 1e6)
    if delay_us:
        module, _, name = TARGET.rpartition(".")
        setattr(importlib.import_module(module), name, clock)
    return clock


def next_chunk(clock: Clock) -> Callable[..., Any]:
    """Return the hook on `NEXT_CHUNK`: with each chunk the wait of its thread begins anew."""

    def take(original: Callable[..., Any], queue: Any) -> Any:
        chunk = original(queue)
        clock.begin()
        return chunk

    return take


def pause_progress_threads(delay_us: int) -> None:
    """Give every NIXL agent that this process makes from now on a pause of `delay_us` µs; 0 leaves NIXL as it is.

    Raises HostError when there is no NIXL.
    """
    if not delay_us:
        return
    try:
        from nixl._api import nixl_agent  # noqa: PLC0415 - only where transfers run
    except ImportError as error:
        raise HostError(f"sglang.dual_role: no NIXL to move the KV cache with ({error}); pip install nixl") from None
    api: Any = sys.modules[nixl_agent.__module__]
    if not isinstance(api.nixlBind, _Bindings):
        api.nixlBind = _Bindings(api.nixlBind, delay_us)


class _Bindings:
    """NIXL's bindings, with a configuration whose delay cannot be set to 0."""

    def __init__(self, bindings: Any, delay_us: int) -> None:
        self._bindings = bindings
        stock = bindings.nixlAgentConfig

        class Configuration(stock):  # type: ignore[misc,valid-type]
            @property
            def pthrDelay(self) -> int:  # noqa: N802 - NIXL's name
                return int(stock.pthrDelay.__get__(self))

            @pthrDelay.setter
            def pthrDelay(self, value: int) -> None:  # noqa: N802
                stock.pthrDelay.__set__(self, value or delay_us)

        self.nixlAgentConfig = Configuration

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)
