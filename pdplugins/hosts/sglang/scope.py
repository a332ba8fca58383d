"""Keeps the scheduler attributes of three roles, and binds those of one role at a time.

SGLang's scheduler has attributes for one role only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pdplugins.hosts.sglang.roles import EngineRole

T = TypeVar("T")


class Scopes:
    """The attributes of `owner` that differ between roles. Not for use by two threads at once.

    SGLang's own methods read and replace these attributes, such as ``waiting_queue``. Inside ``enter(role)`` they are
    those of `role`, so that the methods work for that role as they are.
    """

    def __init__(self, owner: Any, values: Mapping[EngineRole, Mapping[str, Any]], current: EngineRole) -> None:
        self._owner = owner
        self._parked = {role: dict(attributes) for role, attributes in values.items()}
        self.current = current
        self._bind(current)

    @contextmanager
    def enter(self, role: EngineRole) -> Iterator[None]:
        """Bind the attributes of `role`; what was bound before is back afterwards, with what it was changed to."""
        before = self.current
        self._switch(role)
        try:
            yield
        finally:
            self._switch(before)

    def for_each(self, call: Callable[[], T]) -> list[T]:
        """Return what `call` says with the attributes of each role bound in turn."""
        said = []
        for role in EngineRole:
            with self.enter(role):
                said.append(call())
        return said

    def peek(self, role: EngineRole, name: str) -> Any:
        """Return an attribute of `role` without binding it."""
        return getattr(self._owner, name) if role is self.current else self._parked[role][name]

    def _switch(self, role: EngineRole) -> None:
        if role is not self.current:
            parked = self._parked[self.current]
            for name in parked:
                parked[name] = getattr(self._owner, name)
            self._bind(role)

    def _bind(self, role: EngineRole) -> None:
        for name, value in self._parked[role].items():
            setattr(self._owner, name, value)
        self.current = role
