"""What placements come to on the servers: pair, push, local, and what is begun on one and ended on another."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from tests.gateway.fake import answer_of, settled, text_of, tokenize
from tests.gateway.rig import PROMPT, Fixed, ask, config, stand

KINDS = {"pair": (0, 1, None), "local": (1, 1, None), "push": (0, 1, 23), "head": (0, 1, 65), "backwards": (1, 0, None)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_primitive_gives_the_tokens_of_one_server(kind: str, stream: bool) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            router.first, router.second, router.split = KINDS[kind]
            if stream:
                events = await it.stream("/generate", ask())
                lengths = [len(event["output_ids"]) for event in events]
                assert lengths == sorted(lengths)
                assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
                answer = events[-1]
            else:
                status, answer = await it.post("/generate", ask())
                assert status == 200
            assert answer["output_ids"] == answer_of(PROMPT, 9)
            assert answer["text"] == text_of(answer["output_ids"])
            meta = answer["meta_info"]
            assert (meta["prompt_tokens"], meta["completion_tokens"]) == (60, 9)
            assert meta["finish_reason"] == {"type": "length", "length": 9}
            assert meta["weight_versions"] == [{"version": "w1", "start": 0, "end": 9}]
            assert router.finished == [9]
            assert await settled(it.idle)
            served = [dict(worker.served) for worker in it.workers]
            assert (
                served
                == {
                    "pair": [{"prefill": 1}, {"decode": 1}],
                    "local": [{}, {"local": 1}],
                    "push": [{"prefill": 1}, {"decode": 1, "local": 1}],
                    "head": [{"local": 1, "prefill": 1}, {"decode": 1}],
                    "backwards": [{"decode": 1}, {"prefill": 1}],
                }[kind]
            )

    asyncio.run(run())


def test_a_pushed_prefix_is_found_by_the_worker_that_goes_on() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = 23
            await it.post("/generate", ask())
            assert it.workers[1].cached[-1] == 22 + 1
            assert it.workers[0].seen[0]["sampling_params"]["max_new_tokens"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("split", [-3, 0, 1, 59, 60, 61, 68, 69, 10_000])
def test_a_split_anywhere_gives_the_same_tokens(split: int) -> None:
    async def run() -> None:
        async with stand("dual", "dual", incremental=split % 2 == 0) as it:
            it.route(Fixed()).split = split
            events = await it.stream("/generate", ask())
            ids = [event["output_ids"] for event in events]
            whole = [token for part in ids for token in part] if split % 2 == 0 else ids[-1]
            assert whole == answer_of(PROMPT, 9)
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("split", [None, 7, 10])
def test_openai_bodies_pass_through_with_unknown_fields(path: str, split: int | None) -> None:
    """Text is tokenised by a worker when a split needs ids; a split inside decode becomes a pair."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = split
            text = "Tell me about prefill and decode."
            prompt = {"prompt": text} if path.endswith("/completions") and "chat" not in path else {}
            body = prompt or {"messages": [{"role": "user", "content": text}]}
            body |= {"model": "fake", "max_tokens": 5, "temperature": 0, "vendor_field": {"deep": [1, 2]}}
            status, answer = await it.post(path, body)
            assert status == 200
            choice = answer["choices"][0]
            said = choice["text"] if "text" in choice else choice["message"]["content"]
            assert said == text_of(answer_of(tokenize(text), 5))
            assert it.workers[1].seen[-1]["vendor_field"] == {"deep": [1, 2]}
            assert len(await it.stream(path, body)) == 5
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize("incremental", [False, True])
def test_a_plain_completion_can_be_split_inside_decode(incremental: bool) -> None:
    """Its first worker is asked for token ids, on /generate; the client sees a completion."""

    async def run() -> None:
        async with stand("dual", "dual", "dual", incremental=incremental) as it:
            it.route(Fixed()).split = len(PROMPT) + 4
            body = {"model": "fake", "prompt": PROMPT, "max_tokens": 9, "temperature": 0}
            want = answer_of(PROMPT, 9)
            usage = {"prompt_tokens": 60, "completion_tokens": 9, "total_tokens": 69}
            usage |= {"prompt_tokens_details": None, "reasoning_tokens": 0}
            status, whole = await it.post("/v1/completions", body)
            assert (status, whole["object"], whole["usage"]) == (200, "text_completion", usage)
            assert whole["metadata"] == {"weight_versions": [{"version": "w1", "start": 0, "end": 9}]}
            assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (text_of(want), "length")
            for deaths in (0, 1):
                it.workers[0].faults.die_after_tokens, it.workers[0].faults.times = 2, deaths
                *chunks, last = await it.stream("/v1/completions", body | {"stream_options": {"include_usage": True}})
                assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text_of(want)
                assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [
                    "length"
                ]
                assert (last["choices"], last["usage"]) == ([], usage)
            assert it.workers[0].served["local"] == 3
            assert it.faults["resumed"] == 1
            status, _ = await it.post("/v1/completions", body | {"vendor_field": 1})
            assert it.faults["refused_decode_split"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("deaths", [0, 1])
def test_an_answer_of_servers_with_different_streams_has_the_form_of_the_first(first: bool, deaths: int) -> None:
    """Events of one hold all so far, those of the other one new tokens only: every token comes once."""

    async def run() -> None:
        async with stand("dual", "dual", "dual", incremental=[first, not first, first]) as it:
            it.route(Fixed()).split = len(PROMPT) + 4
            faults = it.workers[1].faults
            faults.die_after_tokens, faults.times = 2, deaths
            events = await it.stream("/generate", ask())
            ids, texts = [event["output_ids"] for event in events], [event["text"] for event in events]
            want = answer_of(PROMPT, 9)
            assert (list(chain.from_iterable(ids)) if first else ids[-1]) == want
            assert ("".join(texts) if first else texts[-1]) == text_of(want)
            faults.times = deaths
            body = {"model": "fake", "prompt": PROMPT, "max_tokens": 9, "temperature": 0}
            chunks = await it.stream("/v1/completions", body)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text_of(want)
            assert it.faults["resumed"] == deaths  # afterwards it rests

    asyncio.run(run())


@pytest.mark.parametrize("more", [{"model": "fake:adapter"}, {"cache_salt": "a tenant's"}])
@pytest.mark.parametrize("split", [30, 63])
def test_a_prompt_whose_kv_cache_is_kept_apart_is_not_split(more: dict[str, str], split: int) -> None:
    """On /generate, and in a push, nothing would say which adapter, or whose KV cache, it is."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = split
            body = {"model": "fake", "prompt": PROMPT, "max_tokens": 9, "temperature": 0, **more}
            status, whole = await it.post("/v1/completions", body)
            assert (status, whole["choices"][0]["text"]) == (200, text_of(answer_of(PROMPT, 9)))
            assert [len(worker.seen) for worker in it.workers] == [1, 1]
            assert all(more.items() <= seen.items() for worker in it.workers for seen in worker.seen)
            assert it.faults["refused_kept_apart" if split < len(PROMPT) else "refused_decode_split"] == 1

    asyncio.run(run())


def test_a_router_may_leave_the_second_worker_open_until_prefill_is_done() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            router.second = None
            for later in (0, 1):
                router.later = later
                prompt = [later, *PROMPT]
                events = await it.stream("/generate", ask(prompt))
                assert events[-1]["output_ids"] == answer_of(prompt, 9)
            assert it.workers[0].served == {"local": 3, "prefill": 1}
            assert it.workers[1].served == {"decode": 1}
            assert it.workers[0].cached[-1] == len(PROMPT)

    asyncio.run(run())


def test_stock_servers_serve_pairs_and_refuse_the_rest() -> None:
    async def run() -> None:
        async with stand("prefill", "decode", cfg=config(dual=False)) as it:
            router = it.route(Fixed())
            router.later = 1
            for first, second, split in [*KINDS.values(), (0, None, None)]:
                router.first, router.second, router.split = first, second, split
                _, answer = await it.post("/generate", ask())
                assert answer["output_ids"] == answer_of(PROMPT, 9)
            assert it.workers[0].served == {"prefill": 6}
            assert it.workers[1].served == {"decode": 6}
            refused = {name: count for name, count in it.faults.items() if name.startswith("refused")}
            assert refused == {
                "refused_local": 1,
                "refused_stock_split": 2,
                "refused_roles": 1,
                "refused_open_second": 1,
            }

    asyncio.run(run())


def test_unified_servers_serve_alone() -> None:
    async def run() -> None:
        async with stand("unified", "unified", cfg=config(dual=False)) as it:
            it.route(Fixed())
            for _ in range(4):
                assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert sum(worker.served["local"] for worker in it.workers) == 4

    asyncio.run(run())


def test_a_batch_gets_a_room_for_each_prompt() -> None:
    async def run() -> None:
        async with stand("prefill", "decode", cfg=config(dual=False)) as it:
            seen = it.workers[1].seen
            it.workers[0].faults.status = it.workers[1].faults.status = 400
            await it.post("/generate", {"input_ids": [[1, 2], [3, 4]], "sampling_params": {}})
            assert len(set(seen[0]["bootstrap_room"])) == len(seen[0]["bootstrap_host"]) == 2

    asyncio.run(run())


def test_logprobs_of_the_prompt_come_from_the_worker_that_prefilled() -> None:
    async def run() -> None:
        async with stand("prefill", "decode", cfg=config(dual=False)) as it:
            _, answer = await it.post("/generate", ask(return_logprob=True, logprob_start_len=0))
            assert len(answer["meta_info"]["input_token_logprobs"]) == len(PROMPT)
            assert len(answer["meta_info"]["input_top_logprobs"]) == len(PROMPT)
            for event in await it.stream("/generate", ask(return_logprob=True, logprob_start_len=0)):
                assert [row[1] for row in event["meta_info"]["input_token_logprobs"]] == PROMPT

    asyncio.run(run())
