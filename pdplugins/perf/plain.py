"""Performance models that answer only the six basic methods of `pdplugins.types.PerfModel`."""

from __future__ import annotations

from typing import Any, cast

from pdplugins.contracts.perf import PerfModel, PowerTable


class PlainPerf:
    """Base class of a performance model. Its optional methods return None.

    A model inherits from it, and implements the six basic methods and the optional ones that it can answer.
    """

    __slots__ = ()

    def dense_s(self, tokens: float, tp: int) -> float | None:
        """Return None: the attention part of a step is not known separately."""
        return None

    def prefill_knots(self, tp: int) -> tuple[float, ...] | None:
        """Return None: prefill times are not linear between known points."""
        return None

    def decode_contexts(self, tp: int) -> tuple[float, ...] | None:
        """Return None: decode times are not linear between known contexts."""
        return None

    def decode_row_s(self, batch: float, tp: int) -> tuple[float, ...] | None:
        """Return None: callers ask for each context by `decode_step_s`."""
        return None

    def power(self) -> PowerTable | None:
        """Return None: the effect of power caps is not known."""
        return None


EXTENSIONS = tuple(name for name in vars(PlainPerf) if not name.startswith("_"))
"""The methods of a performance model that may answer None."""


class _Widened(PlainPerf):
    """A model of another package, which returns None from the methods that it lacks."""

    def __init__(self, perf: Any) -> None:
        self._perf = perf
        for name in EXTENSIONS:
            if callable(method := getattr(perf, name, None)):
                setattr(self, name, method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._perf, name)


def wide(perf: Any) -> PerfModel:
    """Return `perf` itself if it has every method of `PerfModel`, else a wrapper that adds the missing ones.

    The added methods return None. Models of other packages may be older than the contract. They enter at one place,
    `runtime.assembly.load_profile`, so that no other code needs to check which methods a model has.
    """
    if all(callable(getattr(perf, name, None)) for name in EXTENSIONS):
        return cast(PerfModel, perf)
    return cast(PerfModel, _Widened(perf))
