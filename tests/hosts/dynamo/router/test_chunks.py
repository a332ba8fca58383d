"""Chunks that wait for a frontend are joined, and nothing of them is lost."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdplugins.hosts.dynamo.router.chunks import take


def chunk(ids: list[int], **more: Any) -> dict[str, Any]:
    """A chunk as Dynamo's mocker sends it."""
    plain = {"tokens": [f"t{one}" for one in ids], "text": "".join(f"t{one}" for one in ids) or None}
    return {"token_ids": ids, **plain, "log_probs": None, "finish_reason": None, "index": None, **more}


def taken(*chunks: dict[str, Any]) -> list[dict[str, Any]]:
    waiting, out = deque(chunks), []
    while waiting:
        out.append(take(waiting))
    return out


def test_chunks_that_wait_become_one_which_ends_as_the_last_one() -> None:
    last = chunk([], finish_reason="stop", completion_usage={"completion_tokens": 3})
    (one,) = taken(chunk([1]), chunk([2, 3]), last)
    assert one == chunk([1, 2, 3], finish_reason="stop", completion_usage={"completion_tokens": 3})


def test_what_says_more_than_tokens_is_not_joined_to_what_follows() -> None:
    told = chunk([1], disaggregated_params={"room": 1})
    assert taken(told, chunk([2]), chunk([3])) == [told, chunk([2, 3])]


def test_log_probabilities_stay_with_their_tokens() -> None:
    apart = [chunk([1], log_probs=[-0.1]), chunk([2], log_probs=[-0.2])]
    assert taken(*apart) == apart
    assert taken(chunk([1]), apart[1]) == [chunk([1]), apart[1]]


def test_several_answers_to_one_request_stay_apart() -> None:
    apart = [chunk([1], index=0), chunk([2], index=1)]
    assert taken(*apart) == apart


def test_one_chunk_is_passed_on_as_it_is() -> None:
    one = chunk([1])
    assert taken(one)[0] is one


EXTRAS = st.sampled_from([{}, {"log_probs": [-1.0]}, {"finish_reason": "length"}, {"index": 1}])


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), EXTRAS), max_size=12))
def test_no_token_is_lost_or_moved(parts: list[tuple[list[int], dict[str, Any]]]) -> None:
    chunks = [chunk(ids, **more) for ids, more in parts]
    out = taken(*chunks)
    for name in ("token_ids", "tokens"):
        assert [one for each in out for one in each[name]] == [one for each in chunks for one in each[name]]
    assert "".join(each["text"] or "" for each in out) == "".join(each["text"] or "" for each in chunks)
    for name in ("log_probs", "finish_reason"):
        said = [[each[name] for each in some if each[name] is not None] for some in (chunks, out)]
        assert said[0] == said[1]
