"""Fields that a client may write in several ways: the gateway reads them as workers do, or refuses them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pdplugins.gateway.engines.sglang.calls import parse
from pdplugins.gateway.engines.sglang.protocol import CHAT, COMPLETIONS, GENERATE
from pdplugins.gateway.errors import GatewayError
from pdplugins.limits import TermsConfig
from tests.gateway.rig import Fixed, ask, config, stand


def read(path: str, **fields: Any) -> Any:
    return parse(path, json.dumps(fields).encode(), "r")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("two", [2, 2.0, "2", "2.0"])
def test_a_whole_number_is_read_as_sglang_reads_it(path: str, two: Any) -> None:
    call = read(path, prompt="a", n=two, max_tokens=two)
    assert (call.answers, call.whole, call.max_tokens) == (2, "n", 2)
    assert json.loads(call.body)["n"] == 2, "workers get the number that the gateway has read"


@pytest.mark.parametrize("name", ["n", "max_tokens", "max_completion_tokens", "min_tokens"])
@pytest.mark.parametrize("odd", ["two", 1.5, [1], {}, "nan", 1e999, 1e300])
def test_what_is_no_whole_number_is_refused(name: str, odd: Any) -> None:
    with pytest.raises(GatewayError, match=f"{name} is no whole number"):
        read(COMPLETIONS, prompt="a", **{name: odd})


def test_a_limit_of_answers_holds_in_every_form() -> None:
    with pytest.raises(GatewayError, match="prompts or answers"):
        read(COMPLETIONS, prompt="a", n="5000.0")


@pytest.mark.parametrize("odd", ["false", "no", 2, [True], {}])
def test_a_stream_is_asked_for_with_true_or_false(odd: Any) -> None:
    """SGLang reads ``"no"`` as false. What the gateway reads as true then would be an answer of the wrong form."""
    with pytest.raises(GatewayError, match="stream is not true or false"):
        read("/generate", text="a", stream=odd)
    assert [read("/generate", text="a", stream=plain).stream for plain in (True, False, None, 1, 0)] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_workers_get_no_priority_that_a_client_may_not_ask_for() -> None:
    """Nothing as shipped; within its bounds where the operator allows some."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed())
            await it.post("/generate", ask(priority="EVIL"))
            assert [body.get("priority") for worker in it.workers for body in worker.seen] == [None, None]

    asyncio.run(run())


def test_a_priority_within_its_bounds_reaches_the_workers() -> None:
    cfg = config().model_copy(update={"terms": TermsConfig(most_priority=2)})

    async def run() -> None:
        async with stand("dual", "dual", cfg=cfg) as it:
            router = it.route(Fixed())
            for split in (60, 30, 63):
                router.split = split
                await it.post("/generate", ask(priority=9))
            assert {body.get("priority") for worker in it.workers for body in worker.seen} == {2}

    asyncio.run(run())


def test_an_answer_without_a_limit_of_its_own_is_given_by_one_worker() -> None:
    """Null means to the end of the context: nobody could tell the next worker how much is left."""
    for sampling, most in (({"max_new_tokens": None}, None), ({}, 128)):
        call = read(GENERATE, text="a", sampling_params=sampling)
        assert (call.max_tokens, call.continuable) == (most, most is not None)
