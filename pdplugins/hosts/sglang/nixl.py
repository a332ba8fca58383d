"""NIXL's progress threads poll without pause, each a busy core even when nothing moves; here they pause.

NIXL has a delay for it (``pthrDelay`` of its agent's configuration), but its Python API fixes that at 0.
"""

from __future__ import annotations

import sys
from typing import Any

from pdplugins.errors import HostError


def pause_between_polls(delay_us: int) -> None:
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
