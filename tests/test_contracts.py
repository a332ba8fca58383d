"""What crosses between policies and hosts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from pdplugins.contracts.request import Request, Terms, swift_request
from pdplugins.contracts.router import Placement, swift_placement


@pytest.mark.parametrize(
    ("made", "swift", "values", "least"),
    [
        (
            Request,
            swift_request,
            ("r1", 2.5, 100, 20, 40, "session", "w1", (7, 8), Terms(priority=1)),
            ("r1", 0.0, 5),
        ),
        (Placement, swift_placement, ("w1", "w2", 100, "why"), ("w1", None, 100)),
    ],
)
def test_what_is_made_swiftly_is_as_any_other(
    made: Any, swift: Callable[..., Any], values: tuple[object, ...], least: tuple[object, ...]
) -> None:
    fast, plain = swift(*values), made(*values)
    assert type(fast) is made
    assert (fast, hash(fast), repr(fast)) == (plain, hash(plain), repr(plain))
    assert pickle.loads(pickle.dumps(fast)) == plain  # noqa: S301 - made here
    first = fields(made)[0].name
    assert replace(fast, **{first: "r2"}) == replace(plain, **{first: "r2"})
    assert swift(*least) == made(*least)
    with pytest.raises(FrozenInstanceError):
        setattr(fast, first, "r2")
