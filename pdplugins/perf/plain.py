"""Performance models that know the basic six methods of `pdplugins.types.PerfModel` and nothing else."""

from __future__ import annotations

from typing import Any, cast

from pdplugins.contracts.perf import PerfModel, PowerTable


class PlainPerf:
    """Base class of a performance model: it answers None to everything that a model need not know.

    A model inherits from it, writes the six basic methods, and those of the others that it can answer.
    """

    __slots__ = ()

    def dense_s(self, tokens: float, tp: int) -> float | None:
        """Return None: attention is not told from the rest of a step."""
        return None

    def prefill_knots(self, tp: int) -> tuple[float, ...] | None:
        """Return None: prefill times are not linear between known points."""
        return None

    def decode_contexts(self, tp: int) -> tuple[float, ...] | None:
        """Return None: decode times are not linear between known contexts."""
        return None

    def decode_row_s(self, batch: float, tp: int) -> tuple[float, ...] | None:
        """Return None: each context has to be asked for."""
        return None

    def power(self) -> PowerTable | None:
        """Return None: what power caps do is not known."""
        return None


EXTENSIONS = tuple(name for name in vars(PlainPerf) if not name.startswith("_"))
"""The methods of a performance model that may answer None."""


class _Widened(PlainPerf):
    """A model of another package, with None for the methods that it lacks."""

    def __init__(self, perf: Any) -> None:
        self._perf = perf
        for name in EXTENSIONS:
            if callable(method := getattr(perf, name, None)):
                setattr(self, name, method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._perf, name)


def wide(perf: Any) -> PerfModel:
    """Return `perf` itself where it has every method of `PerfModel`; else the same model with None for the others.

    Models of other packages may be older than the contract. They come in at one place, `runtime.assembly.load_profile`,
    so that nothing else needs to ask what a model has.
    """
    if all(callable(getattr(perf, name, None)) for name in EXTENSIONS):
        return cast(PerfModel, perf)
    return cast(PerfModel, _Widened(perf))
