"""Policies that do whatever they like, and the workers that they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from pdplugins.types import Capabilities, Request, Role, WorkerLoad


class UnshowableError(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Panic(BaseException):
    """As extensions in Rust raise it."""


class Trap:
    """An answer that raises whatever is done with it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # Python's own isinstance asks for it
            return Trap
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")


errors: st.SearchStrategy[Any] = st.builds(RuntimeError, st.text()) | st.builds(UnshowableError) | st.builds(KeyError)
numbers: st.SearchStrategy[Any] = st.integers() | st.floats() | st.booleans()
junk: st.SearchStrategy[Any] = numbers | st.none() | st.text() | st.lists(st.integers()) | st.builds(Trap)


class Script:
    """Every method answers with the next of `answers`, in turn; exceptions are raised. Nothing is looked at."""

    interval_s = 5.0

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = list(answers)
        self._turn = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *seen: self.answer()

    def answer(self) -> Any:
        """Return or raise the next answer."""
        answer = self._answers[self._turn % len(self._answers)]
        self._turn += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


@dataclass
class View:
    """A worker as policies see it."""

    id: str
    role: Role
    load: WorkerLoad = field(default_factory=lambda: WorkerLoad("w"))
    kv_capacity_tokens: int = 100_000
    tp: int | None = 1
    free_kv_tokens: int | None = None
    capabilities: Capabilities | None = None
    cached_blocks: frozenset[int] = frozenset()


def request(name: str = "r", prompt_tokens: int = 100) -> Request:
    """Return a request called `name`."""
    return Request(name, 0.0, prompt_tokens)


FLEET = (View("p0", Role.PREFILL), View("p1", Role.PREFILL), View("d0", Role.DECODE), View("d1", Role.DECODE))
