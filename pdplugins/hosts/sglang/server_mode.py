"""SGLang's own setting of the role, turned to prefill while it builds what only a prefill server has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def prefill_mode(arguments: Any | None) -> Iterator[None]:
    """Make SGLang believe that it was started as a prefill server, if it was started as a decode server.

    Up to 0.5.16 the role is read from the server arguments; later versions publish it to a runtime context.

    :param arguments: SGLang's server arguments; None where a later version does not hand them over.
    """
    from sglang.srt.runtime_context import get_context  # noqa: PLC0415 - only inside SGLang

    context = get_context()
    published = hasattr(context, "override")
    was = context.config_leaf("disaggregation_mode") if published else arguments.disaggregation_mode  # type: ignore[union-attr]

    def set_mode(mode: str) -> None:
        if published:
            context.override("pdplugins", disaggregation_mode=mode)
        else:
            arguments.disaggregation_mode = mode  # type: ignore[union-attr]

    if was != "decode":
        yield
        return
    set_mode("prefill")
    try:
        yield
    finally:
        set_mode(was)
