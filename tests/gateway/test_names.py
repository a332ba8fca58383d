"""Names of clients: of any length, and none is kept or repeated as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdplugins.gateway.names import hashed
from tests.gateway.fake import answer_of
from tests.gateway.rig import JSON, PROMPT, ask, patient, stand


@pytest.mark.parametrize("field", ["user", "session_id"])
def test_a_session_name_of_any_length_is_kept_as_a_short_one(field: str) -> None:
    async def run() -> None:
        async with stand("dual") as it:
            name = "n" * 200_000
            assert (await it.post("/generate", ask(**{field: name})))[0] == 200
            sessions = it.gateway.serving.sessions
            assert list(sessions._sessions) == [hashed(name)]
            assert len(hashed(name)) == 32

    asyncio.run(run())


def test_sessions_are_bounded_and_the_least_recent_goes_first() -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(max_sessions=2)) as it:
            for name in ("a", "b", "a", "c"):
                await it.post("/generate", ask(user=name))
            assert list(it.gateway.serving.sessions._sessions) == [hashed("a"), hashed("c")]

    asyncio.run(run())


def test_a_session_keeps_as_much_of_a_long_prompt_as_of_a_short_one() -> None:
    async def run() -> None:
        async with stand("dual") as it:
            await it.post("/generate", ask(list(range(10_000)), user="a"))
            session = it.gateway.serving.sessions.find(hashed("a"))
            assert session is not None
            assert (session.prefix[0], session.tokens) == (10_000 // 512, 10_009)

    asyncio.run(run())


def test_nothing_is_kept_of_a_request_that_was_not_answered() -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(retries=0)) as it:
            it.workers[0].faults.status = 503
            assert (await it.post("/generate", ask(user="a")))[0] == 503
            it.workers[0].faults.status = 400
            assert (await it.post("/generate", ask(user="b")))[0] == 400
            assert (await it.post("/generate", ask(rid="r" * 1_000, user="c")))[0] == 400
            unreadable = b'{"prompt": "a", "rid": "r", "stop": "\xff"}'  # no UTF-8
            async with it.client.post(it.gateway.url + "/v1/completions", data=unreadable, headers=JSON) as answer:
                assert answer.status == 400
            assert len(it.gateway.serving.sessions) == 0
            assert not it.gateway.routing._asked
            assert not it.gateway.serving._ids

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "more", "why"),
    [
        ("/generate", {"rid": "r" * 257}, "rid is longer than 256 characters"),
        ("/generate", {"rid": "\ud800"}, "rid is not Unicode"),
        ("/v1/completions", {"model": "m" * 257}, "model is longer than 256 characters"),
        ("/v1/completions", {"model": {"a": 1}}, "model is no text"),
        ("/v1/completions", {"model": "\udfff"}, "model is not Unicode"),
        ("/generate", {"user": "u" * 300_000}, "user is longer than 262144 bytes"),
    ],
)
def test_a_name_that_would_go_back_is_short(path: str, more: dict[str, Any], why: str) -> None:
    async def run() -> None:
        async with stand("dual") as it:
            status, answer = await it.post(path, {"prompt": "x", **ask(), **more})
            assert (status, answer["error"]["message"]) == (400, why)
            assert not it.workers[0].seen

    asyncio.run(run())


@pytest.mark.parametrize("rid", ["r" * 256, 'a"b\\c', "\u00e9\u4e2d", ["a", "b"], 5, ""])
def test_names_within_the_limits_come_back(rid: Any) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            for stream in (False, True):
                if stream:
                    answer = (await it.stream("/generate", ask(rid=rid)))[-1]
                else:
                    _, answer = await it.post("/generate", ask(rid=rid))
                assert answer["output_ids"] == answer_of(PROMPT, 9)
                if isinstance(rid, str) and rid:
                    assert answer["meta_info"]["id"] == rid

    asyncio.run(run())
