"""Keeps the engine running when a bootstrap address accepts a connection and does not answer.

Before its first request to a server that prefills, SGLang asks that server how it is laid out, in the thread that runs
the steps, for up to 5 s, up to 15 times. Here another thread asks. SGLang still counts its tries, so a request to such
an address ends after about 15 s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

TARGET = "sglang.srt.disaggregation.common.conn.CommonKVManager.try_ensure_parallel_info"
PATIENCE_S = 0.05
"""How long the engine itself waits for an answer: the next try is a second later."""


class Inquiries:
    """The questions that are under way, one for each address."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}

    def ensure(self, original: Callable[..., Any], manager: Any, address: str) -> bool:
        """Tell whether `manager` knows the layout of the server at `address`; ask when it does not."""
        if address in manager.prefill_info_table:
            return True
        thread = self._threads.get(address)
        if thread is None:
            thread = threading.Thread(target=self._ask, args=(original, manager, address), daemon=True)
            self._threads[address] = thread
            try:
                thread.start()
            except RuntimeError as error:  # SGLang's next try is a second later
                del self._threads[address]
                log.warning("pdplugins: this machine has no thread to ask %s: %s", address, error)
                return False
            thread.join(PATIENCE_S)  # only once: many silent addresses would stop the engine for as many of these
        return address in manager.prefill_info_table

    def _ask(self, original: Callable[..., Any], manager: Any, address: str) -> None:
        """Let SGLang ask, and note the answer. It raises when that server does not fit; that may not end this one."""
        try:
            original(manager, address)
        except Exception as error:
            log.warning("pdplugins: the server at %s cannot prefill for this one: %s", address, error)
        finally:
            del self._threads[address]
