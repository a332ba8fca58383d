"""Calls of real clients, and what of their answers must be the same: of OpenAI's own client, and of LangChain's.

A call takes an endpoint. All of them are deterministic: greedy, or with a seed beside a filter (`paths.FILTER`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx
import openai
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_openai import ChatOpenAI, OpenAI

from benchmarks.rig.tiny_model import BLANK_ID
from tests.hosts.sglang.paths import KEPT_S

MODEL = "tiny"
DEADLINE_S = 90.0
"""Of each call: one that takes longer hangs."""
ROUNDING = 2e-3
"""By less than this a logprob may differ: a server computes it beside other requests."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "light",
        "description": "Switch a light",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "light", "schema": TOOL["function"]["parameters"], "strict": True},
}
BY_GRAMMAR: dict[str, Any] = {
    "max_tokens": 60,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    "logit_bias": {str(BLANK_ID): -100},
}
"""Else a grammar begins after the reasoning, which this model never ends; no more than it ends blanks within JSON."""
SEEDED = {"temperature": 0.8, "seed": 11, "top_p": 0.9, "extra_body": {"top_k": 50}}
LONG = "a prompt of several sentences, " * 12
IDS = [40 + 3 * number % 90 for number in range(70)]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Endpoint:
    """Where calls go. All of them share its connections, as in an application."""

    url: str

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        limits = httpx.Limits(keepalive_expiry=KEPT_S)
        return openai.DefaultAsyncHttpxClient(timeout=DEADLINE_S, limits=limits)

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    @property
    def openai(self) -> openai.AsyncOpenAI:
        given: Any = {"timeout": DEADLINE_S, "max_retries": 0, "http_client": self._http}
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", **given)

    def langchain(self, **more: Any) -> ChatOpenAI:
        return ChatOpenAI(**self._for_langchain({"max_tokens": 12, **more}))

    def langchain_completions(self, **more: Any) -> OpenAI:
        return OpenAI(**self._for_langchain({"max_tokens": 8, **more}))

    def _for_langchain(self, more: Mapping[str, Any]) -> dict[str, Any]:
        given = {"timeout": DEADLINE_S, "max_retries": 0, "http_async_client": self._http}
        return {"base_url": f"{self.url}/v1", "api_key": "none", "model": MODEL, "temperature": 0, **given, **more}

    async def generate(self, body: Mapping[str, Any]) -> Any:
        """Ask SGLang's own endpoint. Of a stream, return the last event, which holds all, and the end mark."""
        answer = await self._http.post(f"{self.url}/generate", json=body)
        if not answer.is_success:
            raise openai.APIStatusError("refused", response=answer, body=answer.json().get("error"))
        if not body.get("stream"):
            return answer.json()
        *_, last, done = (line for line in answer.text.split("\n") if line)
        return json.loads(last.removeprefix("data: ")), done


Call = Callable[[Endpoint], Awaitable[Any]]


def chat(text: Any = LONG, **more: Any) -> Call:
    """A chat of one message, or of those in `more`."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0, **more}
    return lambda it: it.openai.chat.completions.create(**body)


def completion(prompt: Any = LONG, **more: Any) -> Call:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, **more}
    return lambda it: it.openai.completions.create(**body)


def generate(prompt: Any = IDS, sampling: Any = None, **more: Any) -> Call:
    """SGLang's own endpoint, which no client of OpenAI's knows."""
    params = {"max_new_tokens": 9, "temperature": 0, **(sampling or {})}
    name = "text" if isinstance(prompt, str) or isinstance(prompt[0], str) else "input_ids"
    body = {name: prompt, "sampling_params": params, **more}
    return lambda it: it.generate(body)


async def _streamed(it: Endpoint) -> Any:
    """What LangChain puts together of a stream."""
    whole = None
    async for chunk in it.langchain(stream_usage=True).astream(LONG):
        whole = chunk if whole is None else whole + chunk
    return whole


async def _two_rounds(it: Endpoint) -> Any:
    """The second answer of a conversation, which the gateway knows by its user."""
    talk: list[Any] = [{"role": "user", "content": LONG}]
    first: Any = await chat(messages=talk, user=f"{it.url} someone")(it)
    talk += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "more"}]
    return await chat(messages=talk, user=f"{it.url} someone")(it)


async def _first_model(it: Endpoint) -> Any:
    return await it.openai.models.retrieve((await it.openai.models.list()).data[0].id)


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": [{"type": "text", "text": "how "}, {"type": "text", "text": "are you"}]},
]
ASKED = [
    {"role": "user", "content": "light, please"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function"} | {"function": {
        "name": "light", "arguments": '{"on": true}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
]  # fmt: skip

CALLS: Mapping[str, Call] = {
    # --- chats
    "chat": chat(),
    "chat, streamed with usage": chat(**USAGE),
    "chat of several turns and parts": chat(messages=TALK),
    "chat, sampled with a seed": chat(**SEEDED),
    "chat, `n=2`": chat(n=2, **SEEDED),
    "chat, `n=3`, streamed": chat(n=3, **SEEDED, **USAGE),
    "chat, `logprobs`, `top_logprobs=3`": chat(logprobs=True, top_logprobs=3),
    # Without top_logprobs: SGLang 0.5.16 gives all tokens of one event those of its first token.
    "chat, `logprobs`, streamed": chat(logprobs=True, **USAGE),
    "chat, `max_completion_tokens=1`": chat(max_tokens=None, max_completion_tokens=1),
    "chat, `stop` strings": chat(stop=["<x3", "<x2"]),
    "chat, `stop` strings, streamed": chat(stop=["<x3"], **USAGE),
    "chat, penalties": chat(frequency_penalty=1.5, presence_penalty=1.0, max_tokens=30),
    # Without min_p: beside sampled requests it ends a server that runs deterministically with PyTorch's sampling.
    "chat, `repetition_penalty`": chat(extra_body={"repetition_penalty": 1.3}, max_tokens=30),
    "chat, `logit_bias`": chat(logit_bias={"40": 30, "41": 29}),
    "chat, `min_tokens`, `ignore_eos`": chat(extra_body={"min_tokens": 8, "ignore_eos": True}),
    "chat, `tools`": chat(tools=[TOOL]),
    "chat, `tools`, streamed": chat(tools=[TOOL], **USAGE),
    'chat, `tool_choice="required"`': chat(tools=[TOOL], tool_choice="required", **BY_GRAMMAR),
    "chat, one tool by name, streamed": chat(
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "light"}},
        **BY_GRAMMAR,
        **USAGE,
    ),
    "chat with a tool's answer": chat(messages=ASKED, tools=[TOOL]),
    "chat, `response_format` of a schema": chat(response_format=SCHEMA, **BY_GRAMMAR),
    "chat, `response_format` of a schema, streamed": chat(response_format=SCHEMA, **BY_GRAMMAR, **USAGE),
    "chat, a schema after reasoning": chat(response_format=SCHEMA, max_tokens=30),
    "chat, `reasoning_effort`": chat(reasoning_effort="low"),
    "chat, reasoning not separated": chat(extra_body={"separate_reasoning": False}),
    "chat, two rounds of a `user`": _two_rounds,
    # --- completions
    "completion": completion(),
    "completion, streamed with usage": completion(**USAGE),
    "completion of token ids": completion(IDS),
    "completion, sampled with a seed": completion(IDS, **SEEDED),
    "completion, `n=2`": completion(n=2, **SEEDED),
    "completion, `n=3`, streamed": completion(n=3, **SEEDED, **USAGE),
    "completion of two texts": completion(["hello", LONG]),
    "completion of two texts, streamed": completion(["hello", LONG], **USAGE),
    "completion of one text in a list": completion([LONG]),
    "completion of three lists of token ids": completion([IDS, IDS[:9], IDS[3:]]),
    "completion of two texts, `n=2`": completion(["hello", LONG], n=2, **SEEDED),
    "completion, `best_of=2`": completion(best_of=2),
    "completion, `echo`": completion(echo=True),
    "completion, `echo`, streamed": completion(echo=True, **USAGE),
    "completion, `echo` with `logprobs`": completion(IDS, echo=True, logprobs=2),
    "completion, `echo` with `logprobs`, streamed": completion("hello you", echo=True, logprobs=1, **USAGE),
    "completion of two texts, `echo` with `logprobs`": completion(["hello", "you"], echo=True, logprobs=1),
    "completion, `logprobs=2`": completion(logprobs=2),
    "completion of two texts, `logprobs=1`": completion(["hello", LONG], logprobs=1),
    "completion, `logprobs`, streamed": completion(logprobs=1, **USAGE),
    "completion, `stop`": completion(stop=["<x3", "<x2"]),
    "completion, penalties, `logit_bias`": completion(
        frequency_penalty=1.5, presence_penalty=1.0, logit_bias={"40": 5}, max_tokens=30
    ),
    "completion, `regex`": completion(extra_body={"regex": "[ab]{5,9}"}),
    "completion, `max_tokens=1`": completion(max_tokens=1),
    # --- refusals of the servers
    "a prompt beyond the context": completion("h" * 9000),
    "a prompt beyond the context, streamed": completion("h" * 9000, **USAGE),
    "`max_tokens=-1`": chat(max_tokens=-1),
    "`n=0`": chat(n=0),
    "`top_p=2`": completion(top_p=2),
    "an unknown role": chat(messages=[{"role": "nobody", "content": "hello"}]),
    "no messages": chat(messages=[]),
    # --- models, and what is not served
    "list of models": lambda it: it.openai.models.list(),
    "one model": _first_model,
    "one model that is not there": lambda it: it.openai.models.retrieve("a/b"),
    "embeddings": lambda it: it.openai.embeddings.create(model=MODEL, input="hello"),
    "responses": lambda it: it.openai.responses.create(model=MODEL, input="hello", max_output_tokens=5),
    "files": lambda it: it.openai.files.list(),
    "moderations": lambda it: it.openai.moderations.create(input="hello"),
    # --- SGLang's own API
    "`/generate`": generate(),
    "`/generate`, streamed": generate(LONG, stream=True),
    "`/generate`, sampled with a seed": generate(
        sampling={"temperature": 0.8, "sampling_seed": 11, "top_p": 0.9, "top_k": 50}
    ),
    "`/generate`, `n=2`": generate(sampling={"n": 2}),
    "`/generate`, all logprobs of prompt and answer": generate(
        return_logprob=True, logprob_start_len=0, top_logprobs_num=2
    ),
    "`/generate`, `token_ids_logprob`": generate(return_logprob=True, token_ids_logprob=[40, 41]),
    "`/generate`, logprobs of the answer": generate(return_logprob=True, top_logprobs_num=2),
    "`/generate` of two texts, logprobs of the answers": generate(["hello", LONG], return_logprob=True),
    "`/generate` of two texts, logprobs of the prompts": generate(
        ["hello", LONG], return_logprob=True, logprob_start_len=0
    ),
    # --- LangChain
    "LangChain: `invoke`": lambda it: it.langchain().ainvoke(LONG),
    "LangChain: `stream`": _streamed,
    "LangChain: `batch` of three": lambda it: it.langchain().abatch(["hello", LONG, "you"]),
    "LangChain: `generate`, `n=2`": lambda it: it.langchain(n=2, seed=11).agenerate([[HumanMessage(LONG)]]),
    "LangChain: `logprobs`": lambda it: it.langchain(logprobs=True, top_logprobs=2).ainvoke(LONG),
    "LangChain: `stop`": lambda it: it.langchain().ainvoke(LONG, stop=["<x3"]),
    "LangChain: `bind_tools`": lambda it: (
        it.langchain(**BY_GRAMMAR).bind_tools([TOOL], tool_choice="required").ainvoke(LONG)
    ),
    "LangChain: `with_structured_output`": lambda it: (
        it.langchain(**BY_GRAMMAR)
        .with_structured_output(TOOL["function"] | {"title": "light"}, method="json_schema", include_raw=True)
        .ainvoke(LONG)
    ),
    "LangChain: completions, a batch, `n=2`": lambda it: it.langchain_completions(n=2).agenerate(["hello", LONG]),
    "LangChain: refused by the server": lambda it: it.langchain(max_tokens=-1).ainvoke(LONG),
}
NOT_SERVED = ("embeddings", "responses", "files", "moderations")
"""The gateway refuses these itself."""
DEADLY = {"0.5.16": ("`/generate`, `token_ids_logprob`",)}
"""Calls that end any server of a version, a unified one too, when they run beside others. They are not made there."""
Place = tuple[str | int, ...]
"""Where in an answer a value is: names of fields, and indices."""
NO_ANSWER = -1
"""In place of a status: the connection failed."""
HANGS = -2
"""In place of a status: the call took longer than its deadline."""


@dataclass(frozen=True)
class Outcome:
    """What a client got: the data of an answer, or an error with its status and body."""

    said: Any
    status: int | None = None
    """Of an error; 0 for one that the client itself raises, or that came in a stream."""

    @property
    def broken(self) -> bool:
        """Whether there was no answer at all."""
        return self.status in (NO_ANSWER, HANGS)

    def differences(self, other: Outcome) -> frozenset[Place]:
        """Return where two outcomes differ, numbers but for rounding."""
        if self.status != other.status:
            return frozenset({("status",)})
        return frozenset(_differences(self.said, other.said))


async def outcome_of(call: Call, endpoint: Endpoint) -> Outcome:
    """Make a call."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            return Outcome(_data(await _gathered(await call(endpoint))))
    except (TimeoutError, openai.APITimeoutError, httpx.TimeoutException):
        return Outcome(None, HANGS)
    except (openai.APIConnectionError, httpx.HTTPError) as error:
        return Outcome(repr(error), NO_ANSWER)
    except openai.APIStatusError as error:
        return Outcome({"error": type(error).__name__, "body": error.body}, error.status_code)
    except (openai.OpenAIError, ValueError) as error:
        return Outcome({"error": type(error).__name__, "message": str(error)}, 0)


def is_error_object(said: Any) -> bool:
    """Tell whether this is the body of an error of OpenAI's API, as its client shows it."""
    body = said["body"]
    return isinstance(body, dict) and set(body) == {"message", "type", "param", "code"} and bool(body["message"])


async def _gathered(answer: Any) -> Any:
    """Return a stream as one object: texts put together, the last of everything else."""
    if not isinstance(answer, openai.AsyncStream):
        return answer
    choices: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"choices": choices}
    async for chunk in answer:
        data = chunk.model_dump()
        for choice in data.pop("choices"):
            _merge(choices.setdefault(choice["index"], {}), choice)
        whole.update({name: value for name, value in data.items() if value is not None})
    return whole


TEXTS = frozenset({"text", "content", "reasoning_content", "arguments"})
"""Fields that come in parts."""


def _merge(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        known = whole.get(name)
        if isinstance(value, dict):
            known = whole[name] = known or {}
            _merge(known, value)
        elif isinstance(value, list) and name == "tool_calls":
            known = whole[name] = known or {}
            for call in value:
                _merge(known.setdefault(call["index"], {}), call)
        elif known is not None and (isinstance(value, list) or (isinstance(value, str) and name in TEXTS)):
            whole[name] = known + value
        elif value is not None or name not in whole:
            whole[name] = value


RANDOM = frozenset({"id", "created", "tool_call_id", "e2e_latency", "response_sent_to_client_ts"}) | {
    *("cached_tokens", "cached_tokens_details"),
}
"""Fields that differ from one answer to the next."""


def _data(answer: Any) -> Any:
    """Return an answer as plain data without what is random in it."""
    if isinstance(answer, openai.BaseModel | BaseMessage | LLMResult):
        answer = answer.model_dump(exclude={"run"} if isinstance(answer, LLMResult) else None)
    if isinstance(answer, Mapping):
        return {name: _data(value) for name, value in answer.items() if name not in RANDOM}
    if isinstance(answer, list | tuple):
        return [_data(value) for value in answer]
    return str(answer) if isinstance(answer, Exception) else answer


def _differences(one: Any, other: Any, at: Place = ()) -> Iterator[Place]:
    if isinstance(one, dict) and isinstance(other, dict):
        yield from ((*at, name) for name in one.keys() ^ other.keys())
        for name in one.keys() & other.keys():
            yield from _differences(one[name], other[name], (*at, name))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (its, others) in enumerate(zip(one, other, strict=True)):
            yield from _differences(its, others, (*at, index))
    elif isinstance(one, float) and isinstance(other, float):
        if abs(one - other) >= ROUNDING:
            yield at
    elif one != other:
        yield at
