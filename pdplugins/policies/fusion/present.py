"""Loads of now, where a host's reports are of some time ago: what has happened since is added to them.

A report that says of which time it is (`DatedLoad`) lacks what this process has placed since, and still has what was
worked off since. From each report on its worker is followed: its queue is worked off in the order of arrival, at the
speed that the costs give beside the decodes; own placements join it; what ends on a worker that does both phases
decodes there from then on; contexts grow by a token each time between tokens. That a prefill is done elsewhere, and
that a request has ended, is known when it happens. A load without a time is one of now, and stays as it is.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence, Set
from enum import Enum, auto
from typing import NamedTuple

from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies.fusion.costs import LARGEST, ahead_tokens, decodes_of

MOST_KNOWN = 4096
"""Events of one worker, and requests, that are remembered; a host that tells of no end must not fill the memory."""
MOST_TBT_S = 1e3
"""A host that reports more has no such number."""
GRAIN_S, COARSE_S = 0.01, 0.05
"""Steps in which workers are followed are at least so long: up to now, and up to what has happened before."""
REPORTED = ""
"""Name of what waited when a report was made, all in one."""

Speed = Callable[[WorkerView, int, int], float]
"""Returns the prompt tokens a second of a worker beside decodes: how many, and their context in all, in tokens."""


class What(Enum):
    """What happens to a request on a worker."""

    PLACED = auto()
    """Its prompt joins the queue."""
    PREFILLED = auto()
    """It decodes elsewhere."""
    BOUND = auto()
    """It decodes here."""
    ENDED = auto()


class Event(NamedTuple):
    """What this process has done or heard of a request on one worker."""

    at_s: float
    what: What
    request: str
    context: float
    """Of its decode here; 0 for one that only prefills here."""
    tokens: float = 0.0
    """Prompt tokens to compute."""


class Prompts(NamedTuple):
    """One prompt that waits or runs, or several equal ones."""

    tokens: float
    """Still to be computed."""
    context: float
    """Of the requests that decode here once they are done."""
    decodes: float
    """Number of these; 0 where they decode elsewhere."""


class Followed:
    """One worker since its report."""

    __slots__ = ("ahead", "at_s", "context", "decodes", "events", "new", "queue", "reported_s")

    def __init__(self) -> None:
        self.reported_s = self.at_s = -LARGEST
        self.events: deque[Event] = deque(maxlen=MOST_KNOWN)
        """All since the report, oldest first."""
        self.new: deque[Event] = deque(maxlen=MOST_KNOWN)
        """Those of them that are not taken in yet."""
        self.queue: OrderedDict[str, Prompts] = OrderedDict()
        """By request."""
        self.ahead = self.decodes = self.context = 0.0

    def noted(self, event: Event) -> None:
        """Keep what has happened."""
        self.events.append(event)
        self.new.append(event)

    def to(self, worker: WorkerView, reported_s: float, now_s: float, speed: Speed) -> None:
        """Follow the worker from its latest report up to now."""
        if reported_s != self.reported_s:
            self._begin(worker, reported_s)
        while self.new:
            event = self.new.popleft()
            if event.at_s - self.at_s >= COARSE_S:
                self._advance(worker, event.at_s, speed)
            self._take(event)
        if now_s - self.at_s >= GRAIN_S:
            self._advance(worker, now_s, speed)

    def _begin(self, worker: WorkerView, reported_s: float) -> None:
        self.reported_s = self.at_s = reported_s
        while self.events and self.events[0].at_s < reported_s:
            self.events.popleft()
        self.new = self.events.copy()
        load, (decodes, context) = worker.load, decodes_of(worker)
        self.decodes, self.context, self.ahead = float(decodes), float(context), ahead_tokens(worker)
        self.queue.clear()
        if self.ahead:
            waiting = load.queued_requests + load.running_requests - decodes
            waiting = waiting if 1 <= waiting <= LARGEST else 1.0
            here = worker.role is Role.DECODE
            self.queue[REPORTED] = Prompts(self.ahead, self.ahead * here, waiting * here)

    def _take(self, event: Event) -> None:
        """Take in what happened at the time up to which the worker is followed."""
        if event.what is What.PLACED:
            self.queue[event.request] = Prompts(event.tokens, event.context, float(event.context > 0))
            self.ahead += event.tokens
        elif event.what is What.BOUND:
            self.decodes += 1
            self.context += event.context
        elif (prompt := self.queue.pop(event.request, None)) is not None:
            self.ahead -= prompt.tokens
        elif event.what is What.ENDED:
            self.decodes = max(self.decodes - 1, 0.0)
            self.context = max(self.context - event.context, 0.0)

    def _advance(self, worker: WorkerView, to_s: float, speed: Speed) -> None:
        left_s, tbt_s = to_s - self.at_s, worker.load.recent_tbt_s
        self.at_s = to_s
        if tbt_s is not None and 0 < tbt_s <= MOST_TBT_S:
            self.context = min(self.context + self.decodes * left_s / tbt_s, LARGEST)
        done = left_s * speed(worker, int(self.decodes), int(self.context)) if self.queue else 0.0
        while self.queue:
            name, first = next(iter(self.queue.items()))
            if done < first.tokens:
                self.queue[name] = first._replace(tokens=first.tokens - done)
                self.ahead -= done
                return
            del self.queue[name]
            done -= first.tokens
            self.ahead -= first.tokens
            self.decodes += first.decodes
            self.context += first.context
        self.ahead = 0.0


class Present:
    """The loads of now of all workers.

    :param speed: how fast a worker prefills.
    """

    def __init__(self, speed: Speed) -> None:
        self.now_s = 0.0
        """Time of the latest call of the policy."""
        self.follows = False
        """Whether any load may be of some time ago. Until then there is nothing to remember."""
        self.decodes: Callable[[WorkerView], tuple[int, int]] = decodes_of
        """Returns how many requests decode on a worker, and their context in all, as far as the host says."""
        self.ahead: Callable[[WorkerView], float] = ahead_tokens
        """Returns the prompt tokens that wait or run on a worker."""
        self._largest = math.inf
        """Tokens that the largest KV cache holds, where all workers say how much theirs does."""
        self._speed = speed
        self._looked: Sequence[WorkerView] | None = None
        self._workers: dict[str, Followed] = {}
        self._places: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """Worker and prompt of each request."""

    def at(self, workers: Sequence[WorkerView], now_s: float) -> None:
        """Take the time of now, and look once at each tuple of workers whether their loads may be of another time."""
        self.now_s = now_s
        if workers is not self._looked:
            self._looked = workers
            told = [worker.kv_capacity_tokens for worker in workers]
            self._largest = max(told) if told and all(told) else math.inf
            self.follows = any(hasattr(worker.load, "reported_s") for worker in workers)
            self.decodes, self.ahead = (self._decodes, self._ahead) if self.follows else (decodes_of, ahead_tokens)

    def holds(self, request: Request) -> bool:
        """Tell whether some worker may hold a prompt and one token in its KV cache, of the workers seen last."""
        return request.prompt_tokens < self._largest

    def _decodes(self, worker: WorkerView) -> tuple[int, int]:
        followed = self._followed(worker)
        return decodes_of(worker) if followed is None else (int(followed.decodes), int(followed.context))

    def _ahead(self, worker: WorkerView) -> float:
        followed = self._followed(worker)
        return ahead_tokens(worker) if followed is None else max(followed.ahead, 0.0)

    def placed(self, request: Request, placement: Placement, known: int) -> None:
        """Note a placement, in place of an earlier one of the same request.

        :param known: tokens of the prompt in the KV cache of its first worker.
        """
        self.left(request.id, 0)
        first, second = placement.first, placement.second
        tokens = max(min(placement.split, request.prompt_tokens) - known, 1)
        context = float(request.prompt_tokens) if first == second else 0.0
        self._note(first, What.PLACED, request.id, context, float(tokens))
        self._places[request.id] = first, request.prompt_tokens
        if second is not None and second != first:
            self._bind(request, second)
        if len(self._places) > MOST_KNOWN:
            self._places.popitem(last=False)

    def bound(self, request: Request, first: str, worker: str) -> None:
        """Note where a request decodes whose prefill is done."""
        if self.follows:
            self._note(first, What.PREFILLED, request.id, 0.0)
            self._bind(request, worker)

    def left(self, request: str, output_tokens: int) -> None:
        """Note that a request has ended. A second call changes nothing."""
        if (place := self._places.pop(request, None)) is not None:
            worker, prompt = place
            self._note(worker, What.ENDED, request, float(prompt + output_tokens))

    def keep(self, workers: Set[str]) -> None:
        """Forget all other workers."""
        self._workers = {name: followed for name, followed in self._workers.items() if name in workers}

    def _bind(self, request: Request, worker: str) -> None:
        self._note(worker, What.BOUND, request.id, float(request.prompt_tokens))
        self._places[request.id] = worker, request.prompt_tokens

    def _note(self, worker: str, what: What, request: str, context: float, tokens: float = 0.0) -> None:
        if (followed := self._workers.get(worker)) is not None:
            followed.noted(Event(self.now_s, what, request, context, tokens))

    def _followed(self, worker: WorkerView) -> Followed | None:
        """Return a worker, followed up to now; None where its load is of now, or says no such time."""
        reported_s: float | None = getattr(worker.load, "reported_s", None)
        if reported_s is None or not -LARGEST < reported_s <= self.now_s:
            return None
        if (followed := self._workers.get(worker.id)) is None:
            followed = self._workers[worker.id] = Followed()
        followed.to(worker, reported_s, self.now_s, self._speed)
        return followed
