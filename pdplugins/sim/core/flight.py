"""One request on its way through the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Placement
from pdplugins.workloads.trace import Round

if TYPE_CHECKING:
    from pdplugins.sim.core.links import Transfer


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload; of a session, one round."""

    arrival_s: float
    isl_tokens: int
    """Length of the prompt, the history of its session included."""
    osl_tokens: int
    blocks: tuple[int, ...] = ()
    session: str | None = None
    history_tokens: int = 0
    """Tokens of the prompt that earlier rounds of the session computed."""
    rounds: tuple[Round, ...] = ()
    """The rounds of the session after this one."""
    cancel_after_s: float | None = None
    """The client goes away that long after the arrival."""

    def following(self, arrival_s: float, session: str, so_far_tokens: int) -> Arrival:
        """Return the next round of the session, after a conversation of so many tokens."""
        following, *later = self.rounds
        history_tokens = following.history(so_far_tokens)
        return Arrival(
            arrival_s,
            history_tokens + following.new_tokens,
            following.osl_tokens,
            session=session,
            history_tokens=history_tokens,
            rounds=tuple(later),
        )


class State:
    """Where a request is."""

    WAITING: Final = 0
    """For a worker, or for history to come."""
    QUEUED: Final = 1
    """For prefill, on an engine."""
    PREFILL: Final = 2
    READY: Final = 3
    """For a place in the decode batch."""
    DECODE: Final = 4
    MOVING: Final = 5
    """For free KV capacity on the next engine, or for its KV cache to get there."""
    OVER: Final = 6


class Flight:
    """One request: what the client saw, where it is, and the work that is left there.

    Tokens are counted along prompt plus output. The last output token is never in the KV cache: it is the input of the
    step that comes next. So with `emitted` output tokens out, a decoding request has ``isl + emitted - 1`` in it.
    Times are in ticks. A request is on one engine at a time, and may have KV capacity reserved on a second one.
    """

    __slots__ = (
        "arrival", "arrived", "block_hits", "cached", "chunk", "done", "emitted", "engine", "error", "expected",
        "first", "first_token", "gap", "history", "id", "index", "isl", "kv", "landing", "last_token", "leave",
        "may_be_cached", "names", "order", "osl", "pins", "placement", "queued", "request", "reserved", "retries",
        "second", "sent", "since", "sink", "state", "stop", "target", "transfer", "waits",
    )  # fmt: skip

    def __init__(self, index: int, arrival: Arrival, arrived: int) -> None:  # noqa: PLR0915 - one line a field
        # Compiled, fields lie in this order. Those that are used together stand together, because each of thousands of
        # open requests has left the processor's caches when its turn comes.
        # What takes it from worker to worker. Workers and engines are Any, as they import this module.
        self.state: int = State.WAITING
        self.isl = arrival.isl_tokens
        self.osl = arrival.osl_tokens
        self.emitted = 0
        """Output tokens so far. Those of a decode batch are counted when the request leaves it."""
        self.stop = 0
        """Tokens emitted when the engine where it is has done its part; 0 when that ends inside the prompt."""
        self.done = 0
        """Tokens in the KV cache of the engine where it prefills."""
        self.target = 0
        """Tokens there when prefill is done."""
        self.kv = 0
        """Private tokens taken on the engine where it is."""
        self.may_be_cached = bool(arrival.blocks or arrival.rounds or arrival.session is not None)
        """Whether its prompt has prefix blocks, or it is a round of a session."""
        self.waits = False
        """Whether it waits for free KV capacity on its next worker."""
        self.queued = 0
        """When it joined the queue of its engine, or began to wait for its next one."""
        self.engine: Any = None
        """Engine where it is."""
        self.first: Any = None
        """Worker of its first part, until it has left it."""
        self.second: Any = None
        """Worker of its second part; the same where all runs on one; None while that is open."""
        self.sink: Any = None
        """Worker where it goes next."""
        self.landing = (0, 0)
        """Tokens that the next worker gets, and those it has when its own prefill is done."""
        self.sent = 0
        """Tokens that the next worker has, or that are on their way there."""
        self.reserved = 0
        """Tokens taken on the engine where it goes next."""
        self.transfer: Transfer | None = None
        """Of its KV cache, to `sink`."""
        self.order = 0
        """Place among all that joined a decode batch."""
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
        """When the last one so far came."""
        self.arrived = arrived
        self.index = index
        """Place in the order of arrival."""
        self.id = str(index)
        self.names: tuple[str | None, str | None] = (None, None)
        """Workers that prefilled and decoded it."""
        self.error: str | None = None
        """Why it failed, or is to be given up."""
        self.arrival = arrival
        # What few requests need.
        self.chunk = 0
        """Tokens that the running step prefills."""
        self.history: Any = None
        """Worker that has the history of its session, as long as that is to be read from there."""
        self.expected = 0
        """Tokens of its prompt that need not be computed, as far as is known while it is queued."""
        self.cached = 0
        """Tokens of its prompt that it did not have to compute, because a KV cache had them."""
        self.pins: Sequence[int] = ()
        """Prefix blocks in use on the engine where it is."""
        self.block_hits = 0
        """How many of them were there before it came."""
        self.retries = 0
        """How often it has started anew because a worker died."""
        self.request: Request | None = None
        """What the router was asked, and has answered, where anybody may want to know it again."""
        self.placement: Placement | None = None

    @property
    def context(self) -> int:
        """Tokens in the KV cache while decoding."""
        return self.isl + self.emitted - 1

    def plan(self, prompt: int, split: int, alone: bool, gives_token: bool) -> None:
        """Set what the first worker does: all of it where it is alone, or up to token `split`.

        :param prompt: what has to be computed, with the tokens that are out already.
        :param gives_token: whether a worker that computes just the prompt gives the client the token after it.
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
        """Return the tokens that the second worker gets, and those it has when its own prefill is done.

        :param computed_twice: tokens at the end of a prompt that the second worker computes again.
        """
        if self.stop:
            tokens = self.isl + self.stop - 1
        elif self.target < self.isl + self.emitted:
            return self.target, self.isl + self.emitted
        else:
            tokens = self.target - computed_twice
        return tokens, tokens

    def token(self, time: int) -> None:
        """Note one output token."""
        if self.emitted:
            self.gap = max(self.gap, time - self.last_token)
        self.emitted += 1
        self.last_token = time
