"""The state of a role is bound while SGLang works for it, and kept while it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.scope import Scopes

LOCAL, PREFILL, DECODE = EngineRole.LOCAL, EngineRole.PREFILL, EngineRole.DECODE


@pytest.fixture
def owner() -> SimpleNamespace:
    return SimpleNamespace(queue=["d"], shared=1)


@pytest.fixture
def scopes(owner: SimpleNamespace) -> Scopes:
    values = {LOCAL: {"queue": ["l"]}, PREFILL: {"queue": ["p"]}, DECODE: {"queue": owner.queue}}
    return Scopes(owner, values, DECODE)


def test_what_a_method_replaces_belongs_to_its_role(owner: SimpleNamespace, scopes: Scopes) -> None:
    with scopes.enter(PREFILL):
        owner.queue = [*owner.queue, "p2"]
        owner.shared = 2
    assert (owner.queue, owner.shared) == (["d"], 2)
    assert scopes.peek(PREFILL, "queue") == ["p", "p2"]
    with scopes.enter(PREFILL):
        assert owner.queue == ["p", "p2"]


def test_scopes_nest(owner: SimpleNamespace, scopes: Scopes) -> None:
    """SGLang queues a request of one role while it composes a batch of another."""
    with scopes.enter(LOCAL):
        owner.queue = ["l1"]
        with scopes.enter(DECODE):
            owner.queue.append("retracted")
            assert scopes.peek(LOCAL, "queue") == ["l1"]
        assert owner.queue == ["l1"]
        with scopes.enter(LOCAL):
            owner.queue.append("l2")
    assert owner.queue == ["d", "retracted"]
    assert scopes.peek(LOCAL, "queue") == ["l1", "l2"]


def test_an_error_leaves_the_role_as_it_was(owner: SimpleNamespace, scopes: Scopes) -> None:
    with pytest.raises(ZeroDivisionError), scopes.enter(PREFILL):  # noqa: PT012
        owner.queue = ["changed"]
        raise ZeroDivisionError
    assert owner.queue == ["d"]
    assert scopes.current is DECODE
    assert scopes.peek(PREFILL, "queue") == ["changed"]


def test_each_role_is_bound_once(owner: SimpleNamespace, scopes: Scopes) -> None:
    assert scopes.for_each(lambda: owner.queue[0]) == ["l", "p", "d"]
    assert owner.queue == ["d"]
