"""One simulated request and its state, from arrival to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdplugins.contracts.request import Request, Terms
from pdplugins.contracts.router import Placement
from pdplugins.workloads.trace import Round

if TYPE_CHECKING:
    from pdplugins.sim.core.links import Transfer


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload, or one round of a session."""

    arrival_s: float
    isl_tokens: int
    """Length of the prompt, including the history of its session."""
    osl_tokens: int
    blocks: tuple[int, ...] = ()
    session: str | None = None
    history_tokens: int = 0
    """Tokens of the prompt that earlier rounds of the session computed."""
    rounds: tuple[Round, ...] = ()
    """The rounds of the session after this one."""
    cancel_after_s: float | None = None
    """Seconds from the arrival until the client cancels; None when it does not."""
    terms: Terms | None = None
    """What it asks for itself."""

    def following(self, arrival_s: float, session: str, so_far_tokens: int) -> Arrival:
        """Return the next round of the session.

        :param so_far_tokens: length of the conversation before it.
        """
        following, *later = self.rounds
        history_tokens = following.history(so_far_tokens)
        return Arrival(
            arrival_s,
            history_tokens + following.new_tokens,
            following.osl_tokens,
            session=session,
            history_tokens=history_tokens,
            rounds=tuple(later),
            terms=self.terms,
        )


class State:
    """The stages of a request."""

    WAITING: Final = 0
    """Waits for a worker."""
    QUEUED: Final = 1
    """Waits for prefill on an engine."""
    PREFILL: Final = 2
    READY: Final = 3
    """Waits for the next step, to join the decode batch."""
    DECODE: Final = 4
    MOVING: Final = 5
    """Waits for free KV capacity on the next engine, or for its KV cache to arrive there."""
    OVER: Final = 6


class Flight:
    """One request: what its client saw, which engine it is on, and the work that is left there.

    Token positions run through the prompt and then the output. The last output token is never in the KV cache, because
    it is the input of the next step. So a decoding request with `emitted` output tokens has ``isl + emitted - 1`` of
    them in the KV cache. A request is on one engine at a time, and may reserve KV capacity on another. Times are in
    ticks.
    """

    __slots__ = (
        "arrival", "arrived", "block_hits", "cached", "chunk", "done", "emitted", "engine", "error", "expected",
        "first", "first_token", "gap", "history", "id", "index", "isl", "kept", "kv", "landing", "last_token", "late",
        "late_work", "leave", "may_be_cached", "names", "order", "osl", "pins", "placement", "queued", "read_from",
        "request", "reserved", "retries", "second", "sent", "since", "sink", "state", "stop", "target", "tpot_s",
        "transfer", "waits",
    )  # fmt: skip

    def __init__(self, index: int, arrival: Arrival, arrived: int) -> None:  # noqa: PLR0915 - one line a field
        # Compiled code lays fields out in this order, and fields used together stand together. With thousands of open
        # requests, each one has left the processor's caches before it is used again, so fewer cache lines are faster.
        # Fields that take the request from worker to worker. Workers and engines are Any, as they import this module.
        self.state: int = State.WAITING
        self.isl = arrival.isl_tokens
        self.osl = arrival.osl_tokens
        self.emitted = 0
        """Output tokens so far. Tokens from a decode batch are counted when the request leaves it."""
        own = None if arrival.terms is None else arrival.terms.tpot_s
        self.tpot_s = 0.0 if own is None else own
        """Its own TPOT; 0 for that of the deployment."""
        self.stop = 0
        """Output tokens after which the part on the current engine ends; 0 when it ends inside the prompt."""
        self.done = 0
        """Tokens in the KV cache of the engine where it prefills."""
        self.target = 0
        """Tokens in that KV cache when prefill is done."""
        self.kv = 0
        """Private tokens that it holds on its current engine."""
        self.may_be_cached = bool(arrival.blocks or arrival.rounds or arrival.session is not None)
        """Whether its prompt has prefix blocks, or it is a round of a session."""
        self.waits = False
        """Whether it waits for free KV capacity on its next worker."""
        self.late = False
        """Whether its hand-over has been asked for after prefill, and waits for its step."""
        self.late_work = 0
        """Ticks that this step takes beyond one of a token."""
        self.queued = 0
        """When it joined the queue of its engine, or began to wait for its next one."""
        self.engine: Any = None
        """The engine that it is on."""
        self.first: Any = None
        """Worker of its first part; None once it has left that worker."""
        self.second: Any = None
        """Worker of its second part; the first worker where one does all; None while the router has not chosen it."""
        self.sink: Any = None
        """The worker that it moves to."""
        self.landing = (0, 0)
        """Tokens that `sink` receives, and tokens that it has once its own prefill is done."""
        self.sent = 0
        """Tokens that `sink` has, or that are on their way there."""
        self.reserved = 0
        """Tokens reserved on the engine of `sink`."""
        self.transfer: Transfer | None = None
        """The transfer of its KV cache to `sink`, if one is in progress."""
        self.order = 0
        """Its number among all requests that joined a decode batch."""
        self.leave = 0
        """Step of the engine's decode batch after which its part is done."""
        self.since = 0
        """Step of the engine's decode batch that gave this request its first token there."""
        # What its client saw.
        self.gap = 0
        """Largest time between two tokens so far."""
        self.first_token = 0
        """When the first output token came."""
        self.last_token = 0
        """When the latest output token came."""
        self.arrived = arrived
        self.index = index
        """Place in the order of arrival."""
        self.id = str(index)
        self.names: tuple[str | None, str | None] = (None, None)
        """Workers that prefill and decode it."""
        self.error: str | None = None
        """Why it failed, or is to be given up."""
        self.arrival = arrival
        # Fields that few requests need.
        self.chunk = 0
        """Tokens that the running step prefills."""
        self.history: Any = None
        """The worker to read the history of its session from; None when nothing is left to read."""
        self.read_from: Any = None
        """The worker that it is read from now."""
        self.expected = 0
        """Prompt tokens that it will not have to compute, as known while it is queued."""
        self.kept = 0
        """Tokens that earlier rounds of its session had left where KV capacity was reserved for it last."""
        self.cached = 0
        """Prompt tokens that it did not have to compute, because a KV cache had them."""
        self.pins: Sequence[int] = ()
        """Prefix blocks that it uses on its current engine."""
        self.block_hits = 0
        """How many of those blocks were in the cache before it came."""
        self.retries = 0
        """How often it has started again because a worker died."""
        self.request: Request | None = None
        """What the router saw of it. Like `placement`, the answer, it is kept only where it is needed again."""
        self.placement: Placement | None = None

    @property
    def context(self) -> int:
        """Tokens in the KV cache while decoding."""
        return self.isl + self.emitted - 1

    @property
    def has_arrived(self) -> bool:
        """Whether all of its KV cache is with the next engine, which has not looked for it yet."""
        return bool(self.reserved) and self.transfer is None

    def plan(self, prompt: int, split: int, alone: bool, gives_token: bool) -> None:
        """Set what the first worker does: everything where it is alone, else the tokens before `split`.

        :param prompt: tokens to compute before the next output token, earlier output tokens included.
        :param gives_token: whether a worker that computes just the prompt also gives the client the first token.
        """
        self.target, self.done = prompt, 0
        if alone:
            self.stop = self.osl
        elif split == prompt:
            self.stop = self.emitted + 1 if gives_token else 0
        elif split < prompt:
            self.target, self.stop = split, 0
        else:
            self.stop = min(self.osl, split - self.isl + 1)

    def beyond(self, computed_twice: int) -> tuple[int, int]:
        """Return the tokens that the second worker receives, and those it has once its own prefill is done.

        :param computed_twice: tokens at the end of a prompt that the second worker computes again.
        """
        if self.stop:
            tokens = self.isl + self.stop - 1
        elif self.target < self.isl + self.emitted:
            return self.target, self.isl + self.emitted
        else:
            tokens = self.target - computed_twice
        return tokens, tokens
