"""The interface to a kind of server: how to query it, send it a request and read its answer.

`Executor` is what a host needs that sends requests to workers; `Engine` is an executor over HTTP servers. The rest of
the gateway (HTTP side, routing, flow control, sessions, books) is the same for every engine.
`pdplugins.gateway.engines.sglang` implements `Engine` for SGLang's servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pdplugins.contracts.request import Terms
from pdplugins.contracts.workers import ANYTHING, Capabilities, Role
from pdplugins.gateway.primitive import Splittable
from pdplugins.gateway.reading import Room

if TYPE_CHECKING:
    from pdplugins.gateway.backends import Backend


class ServerKind(StrEnum):
    """What a server can do."""

    DUAL = "dual"
    """Prefill for others, decode for others, and serve alone, at once: SGLang with the plugin of pdplugins."""
    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"
    """Serves alone only."""

    @property
    def capabilities(self) -> Capabilities:
        """What routers are told of such a server."""
        return _CAPABILITIES[self]


_CAPABILITIES = {
    ServerKind.DUAL: ANYTHING,
    ServerKind.PREFILL: Capabilities(frozenset({Role.PREFILL}), alone=False, splits=False),
    ServerKind.DECODE: Capabilities(frozenset({Role.DECODE}), alone=False, splits=False),
    ServerKind.UNIFIED: Capabilities(frozenset(), alone=True, splits=False),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server is, as it says itself."""

    kind: ServerKind
    kv_capacity_tokens: int
    tp: int | None = None
    """Its tensor-parallel size."""
    bootstrap_port: int | None = None
    """Where its peers arrange transfers of KV cache."""
    incremental: bool = False
    """Whether its streams hold new tokens only, and not all so far."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a server says of its load."""

    running_requests: int
    waiting_requests: int
    waiting_tokens: int
    kv_capacity_tokens: int
    """0 when it does not say."""
    used_kv_tokens: int | None
    """KV cache that is in use and cannot be evicted; None when it does not say."""
    stamps: tuple[object, ...] = ()
    """When its engines made this report; the same ones again mean that the report is an old one."""


class Call(Splittable, Protocol):
    """One request of a client, as the engine reads it."""

    @property
    def path(self) -> str:
        """Where the client sent it."""
        ...

    @property
    def body(self) -> Any:
        """What the client sent, in the engine's own form: the JSON of an HTTP request."""
        ...

    @property
    def rid(self) -> str:
        """The client's name for it, or a random one."""
        ...

    @property
    def model(self) -> str | None:
        """The model that the client names."""
        ...

    @property
    def session(self) -> str | None:
        """The conversation that it belongs to."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """What the workers get of the client's headers."""
        ...

    @property
    def asks(self) -> Mapping[str, Any]:
        """The fields of the body in which it asks for terms of its own."""
        ...

    terms: Terms | None
    """What of that it gets."""

    @property
    def stream(self) -> bool:
        """Whether the client wants the answer token by token."""
        ...

    @property
    def prompt(self) -> list[int] | str | None:
        """Token ids or text of the prompt; None for a batch, and for a chat, whose template only workers know."""
        ...

    @property
    def messages(self) -> bytes:
        """The messages of a chat, as its body has them; nothing for anything else."""
        ...

    @property
    def batch(self) -> int | None:
        """Number of prompts of a batch; None for a single prompt."""
        ...

    @property
    def pinned_tokens(self) -> int | None:
        """Output tokens where the request itself fixes them; None where only the answer will tell."""
        ...

    @property
    def continuable(self) -> bool:
        """Whether another worker can go on in the middle of the answer, given the tokens so far."""
        ...

    @property
    def goes_on_elsewhere(self) -> str:
        """Which requests those are, for errors."""
        ...

    @property
    def logprobs(self) -> bool:
        """Whether the client wants logprobs: those of the prompt come from the worker that prefills."""
        ...

    def limited(self, tokens: int) -> Any:
        """Return the body of a request for at most `tokens` of the answer."""
        ...

    def prefill_only(self) -> Any:
        """Return the body of a request that computes the prompt and no more than one token."""
        ...

    def continued(self, ids: list[int], done: int) -> Any:
        """Return the body for the rest of the answer: `ids` are the prompt and the `done` tokens so far."""
        ...


CallT = TypeVar("CallT", bound=Call)
"""The engine's own requests."""


@dataclass(slots=True)
class Work(Generic[CallT]):
    """One request as a worker gets it, but for the fields that tie its legs together."""

    call: CallT
    body: Any
    prompt_tokens: int
    new_tokens: int
    """Prompt tokens that have to be computed; the others are cached."""
    arrived_s: float
    computed: Callable[[], None] = lambda: None
    """Is called when the prompt of a pair has been computed."""


class Started(Protocol):
    """Where an answer goes."""

    @property
    def started(self) -> bool:
        """Whether the client has got anything, so that the request cannot start anew unnoticed."""
        ...


class Client(Started, Protocol):
    """Where an answer goes over HTTP."""

    async def send(self, data: bytes, content_type: str) -> None:
        """Send a part of a stream."""
        ...

    async def whole(self, body: bytes, content_type: str) -> None:
        """Answer with one body."""
        ...


class Answer(Protocol):
    """The answer of one worker, of which the beginning has arrived."""

    @property
    def tokens(self) -> int:
        """Output tokens that have come as a stream so far."""
        ...

    @property
    def refused(self) -> int | None:
        """Status of a refusal that came as a stream in place of an answer."""
        ...


AnswerT = TypeVar("AnswerT", bound=Answer)
"""The engine's own answers."""
HeardT_contra = TypeVar("HeardT_contra", bound=Answer, contravariant=True)


class Relay(Protocol[HeardT_contra]):
    """Passes answers on, and remembers what the client has got, so that another worker can go on from there."""

    @property
    def ids(self) -> list[int]:
        """Tokens of the workers before."""
        ...

    @property
    def speaking(self) -> bool:
        """Whether the client has got tokens of the worker that answers now."""
        ...

    @property
    def delivered_tokens(self) -> int:
        """Output tokens that the client has got in all."""
        ...

    async def run(self, answer: HeardT_contra, *, head: bool = False) -> bool:
        """Pass on what a worker says. With `head` another one goes on. Return whether the answer is whole."""
        ...

    async def close(self) -> bool:
        """End a stream of which only the end mark is missing. Return whether that was so."""
        ...

    def fold(self) -> None:
        """Keep what this worker has said, with what those before have said: another one goes on."""
        ...

    def usage(self, name: str) -> int | None:
        """Return ``prompt_tokens`` or ``completion_tokens`` as the worker counted them at the end."""
        ...


class Executor(Protocol[CallT, AnswerT]):
    """What carries out requests on workers of one kind. Workers and clients are those of the host."""

    async def prompt_ids(self, backend: Any, call: CallT) -> list[int]:
        """Return the prompt of `call` as the server's tokenizer splits it. Raises WorkerFailedError or RefusedError."""
        ...

    def relay(self, call: CallT, client: Any, on_tokens: Callable[[int], None]) -> Relay[AnswerT]:
        """Return the relay that passes the answer of `call` on.

        :param on_tokens: is called with the number of new tokens, before the client gets them.
        """
        ...

    def splittable(self, call: CallT, client: Any, first: Any) -> tuple[CallT, Any]:
        """Return `call` in a form whose answer `first` may begin and another server end, and where its answer goes."""
        ...

    def local(self, backend: Any, work: Work[CallT]) -> AbstractAsyncContextManager[AnswerT]:
        """Let one server do all of it. Raises WorkerFailedError or RefusedError, as all that follows."""
        ...

    def pair(self, prefill: Any, decode: Any, work: Work[CallT]) -> AbstractAsyncContextManager[AnswerT]:
        """Prefill on one server and decode on another one, which gets the KV cache."""
        ...

    async def push(self, source: Any, target: Any, ids: Sequence[int], work: Work[CallT]) -> None:
        """Compute the KV cache of `ids` on `source` and leave it in the prefix cache of `target`."""
        ...

    async def warm(self, backend: Any, work: Work[CallT]) -> None:
        """Compute the KV cache of a prompt on a server, for a later pair or for itself."""
        ...


class Engine(Executor[CallT, AnswerT], Protocol[CallT, AnswerT]):
    """One kind of server. Calls to a server may raise aiohttp.ClientError, OSError or TimeoutError."""

    @property
    def paths(self) -> Sequence[str]:
        """Where clients send requests that are routed."""
        ...

    @property
    def passed_gets(self) -> Sequence[str]:
        """What any worker may answer to a GET."""
        ...

    @property
    def passed_posts(self) -> Sequence[str]:
        """What any worker may answer to a POST."""
        ...

    @property
    def models(self) -> str:
        """Where any worker lists its models."""
        ...

    @property
    def room(self) -> Room:
        """The room of all whole answers."""
        ...

    def model_of(self, listed: bytes, name: str) -> bytes | None:
        """Return what such a list says of one model; None when it is not there."""
        ...

    def public(self, path: str, body: bytes) -> bytes:
        """Return what of a server's answer to a question that any server may answer is for clients."""
        ...

    async def describe(self, backend: Backend) -> Facts:
        """Ask a server what it is. Raises ValueError when the answer cannot be read."""
        ...

    async def load(self, backend: Backend) -> LoadReport:
        """Ask a server for its load. Raises as `describe`."""
        ...

    def parse(self, path: str, body: bytes, rid: str, session: str | None, headers: Mapping[str, str]) -> CallT:
        """Parse a request. Raises GatewayError for what is not one.

        :param rid: its name where the client gives none.
        :param session: its session where a header names one; else a field of the body may.
        :param headers: what the workers are to get of the client's headers.
        """
        ...

    def forget(self, backend: Backend) -> None:
        """Let go of what is kept for a server that is asked no more, at least not by its present URL."""
        ...

    async def close(self, within_s: float) -> None:
        """Wait so long for background work, then end it, and close all connections."""
        ...
