"""An answer that changes its worker inside a character of several tokens has the text that one worker gives."""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import Any

import pytest

from pdplugins.gateway.engines.sglang import engine
from pdplugins.gateway.engines.sglang.connections import Connections
from pdplugins.gateway.engines.sglang.seams import MOST_TOKENS, Seam
from tests.gateway.fake import settled, spelled, text_of
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, stand

TEXT = "hi \U0001f600 你好!"
SPEECH = spelled(TEXT)
COUNT = len(SPEECH)
PLACES = range(1, COUNT)
BODY = {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0}


def told(events: list[dict[str, Any]], *, incremental: bool) -> tuple[str, list[int]]:
    """Text and token ids of a stream. What a client has seen may not change any more."""
    texts, ids = [event["text"] for event in events], [event["output_ids"] for event in events]
    if incremental:
        return "".join(texts), [token for part in ids for token in part]
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    return texts[-1], ids[-1]


async def check(it: Stand, *, incremental: bool) -> None:
    events = await it.stream("/generate", ask(count=COUNT))
    assert told(events, incremental=incremental) == (TEXT, SPEECH)
    usage = [event["meta_info"]["completion_tokens"] for event in events]
    assert usage == sorted(usage)
    assert usage[-1] == COUNT


@pytest.mark.parametrize("incremental", [False, True])
def test_an_answer_that_is_split_inside_a_character(incremental: bool) -> None:
    async def run() -> None:
        async with stand("dual", "dual", incremental=incremental) as it:
            router = it.route(Fixed())
            for worker in it.workers:
                worker.speech = SPEECH
            for place in PLACES:
                router.split = len(PROMPT) + place
                await check(it, incremental=incremental)
                _, whole = await it.post("/generate", ask(count=COUNT))
                assert (whole["text"], whole["output_ids"]) == (TEXT, SPEECH)
                _, completion = await it.post("/v1/completions", BODY)
                assert completion["choices"][0]["text"] == TEXT
                chunks = await it.stream("/v1/completions", BODY)
                assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("split", [None, 5])
@pytest.mark.parametrize("deaths", [1, 2])
def test_an_answer_whose_worker_dies_inside_a_character(deaths: int, split: int | None, incremental: bool) -> None:
    """And the next one dies too, maybe inside the same character."""

    async def run() -> None:
        for place in PLACES[:-1]:
            async with stand("dual", "dual", "dual", incremental=incremental) as it:
                it.route(Fixed()).split = None if split is None else len(PROMPT) + split
                for worker in it.workers:
                    worker.speech = SPEECH
                    worker.faults.die_after_tokens, worker.faults.times = 1, 0
                it.workers[1].faults.times = 1
                it.workers[1].faults.die_after_tokens = place if split is None else min(place, COUNT - split - 1)
                it.workers[0].faults.times = it.workers[2].faults.times = int(deaths == 2 and split is None)
                await check(it, incremental=incremental)
                assert it.faults["resumed"] >= 1

    asyncio.run(run())


@pytest.mark.parametrize("says", [b"{}", b'{"text": "one"}', b'{"text": []}', b"["])
def test_a_worker_that_does_not_tell_the_text_of_tokens(says: bytes) -> None:
    """The character is lost, and nothing else."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = len(PROMPT) + 5
            for worker in it.workers:
                worker.speech = SPEECH
                worker.says["/v1/detokenize"] = says
            _, whole = await it.post("/generate", ask(count=COUNT))
            assert (whole["text"], whole["output_ids"]) == (TEXT.replace("\U0001f600", "\ufffd"), SPEECH)

    asyncio.run(run())


@pytest.mark.parametrize("error", [None, OSError(errno.EMFILE, "too many open files")], ids=["hangs", "shortage"])
def test_a_question_for_the_text_that_gets_no_answer(error: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps it from one: the answer of the worker is there, and does not need it."""
    monkeypatch.setattr(engine, "TEXTS_S", 0.05)
    post = Connections.post

    async def asked(self: Connections, url: str, path: str, *rest: Any) -> Any:
        if path != "/v1/detokenize":
            return await post(self, url, path, *rest)
        if error is None:
            await asyncio.sleep(60)
        raise error or TimeoutError

    monkeypatch.setattr(Connections, "post", asked)

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = len(PROMPT) + 5
            for worker in it.workers:
                worker.speech = SPEECH
            _, whole = await it.post("/generate", ask(count=COUNT))
            assert (whole["text"], whole["output_ids"]) == (TEXT.replace("\U0001f600", "\ufffd"), SPEECH)

    asyncio.run(run())


def test_a_tokenizer_that_takes_each_byte_of_an_unfinished_character_for_one() -> None:
    """As byte fallback does: the next worker cuts off more characters than the finished text has."""
    raw = TEXT.encode()

    async def texts(lists: Any) -> list[str]:
        found = []
        for ids in lists:
            data = bytes(ids)
            whole = data.decode(errors="ignore")
            found.append(whole + "\ufffd" * (len(data) - len(whole.encode())))
        return found

    async def run() -> None:
        seam = Seam(list(raw[:5]), "hi ", 2)
        assert await seam.close(list(raw[5:6]), texts, last=False) is None
        assert await seam.close(list(raw[5:7]), texts, last=False) is None, "two characters are cut off, one is there"
        assert await seam.close(list(raw[5:8]), texts, last=False) == "\U0001f600 "
        assert await seam.close(list(raw[5:7]), texts, last=True) == "\U0001f600"

    asyncio.run(run())


def test_bytes_that_never_become_a_character_are_not_waited_for() -> None:
    odd = [*spelled("a"), *[2000 + 0xE4] * (MOST_TOKENS + 1)]

    async def texts(lists: Any) -> list[str]:
        return [text_of(ids) for ids in lists]

    async def run() -> None:
        seam = Seam(odd[:2], "a", 1)
        assert await seam.close([], texts, last=False) is None
        assert await seam.close(odd[2:3], texts, last=False) is None
        assert await seam.close(odd[2:], texts, last=False) == "\ufffd"

    asyncio.run(run())
