"""What crosses between policies and hosts."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from pdplugins.contracts.request import Request, Terms, swift_request


def test_a_request_that_is_made_swiftly_is_as_any_other() -> None:
    values = ("r1", 2.5, 100, 20, 40, "session", "w1", (7, 8), Terms(priority=1))
    swift, plain = swift_request(*values), Request(*values)
    assert type(swift) is Request
    assert (swift, hash(swift), repr(swift)) == (plain, hash(plain), repr(plain))
    assert pickle.loads(pickle.dumps(swift)) == plain  # noqa: S301 - made here
    assert replace(swift, id="r2") == replace(plain, id="r2")
    assert swift_request("r1", 0.0, 5) == Request("r1", 0.0, 5)
    with pytest.raises(FrozenInstanceError):
        swift.id = "r2"  # type: ignore[misc]
