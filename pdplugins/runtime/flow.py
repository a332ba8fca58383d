"""The safe flow policy: no request is lost and the queue is bounded, even when the flow policy fails.

It keeps its own copy of the queue in the order of arrival. A flow policy that raises, or whose answer cannot be
followed, is replaced for that step by first come first served.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from pdplugins.contracts.flow import Flow, FlowDecision, Go, Hold, Refuse, Waiting
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import HearsOutcomes, Outcome
from pdplugins.contracts.workers import WorkerView
from pdplugins.runtime.decision import Decision, Fault, Journal
from pdplugins.runtime.faults import SafePolicy, Tally, implements, one_line

LEAST_RETRY_S = 1.0
MOST_RETRY_S = 3600.0
"""Bounds of the time after which a refused client is told to try again."""
LEAST_HOLD_S = 0.001
MOST_HOLD_S = 3600.0
"""Bounds of the time until a flow policy that holds is asked again: a host must neither spin nor wait for ever."""

HOLD = Hold()


class SafeFlow(SafePolicy[Flow]):
    """A flow policy that never raises and loses nothing. Every call costs O(1), beside the policy's own cost.

    The host calls `next` until the answer is `Hold`. Each `Go` and `Refuse` takes one request out of the queue, so that
    ends after at most as many calls as requests wait.

    :param most_waiting: requests that may wait; what comes on top is refused, whatever the policy says.
    """

    __slots__ = ("_learner", "_most_waiting", "_unheard", "_waiting")

    def __init__(
        self, flow: Flow, *, most_waiting: int, journal: Journal | None = None, tally: Tally | None = None
    ) -> None:
        super().__init__(Kind.FLOW, flow, journal, tally)
        more: Any = flow
        self._learner: HearsOutcomes | None = more if implements(more, HearsOutcomes) else None
        self._most_waiting = most_waiting
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._unheard: OrderedDict[str, None] = OrderedDict()
        """Waiting requests that the policy does not have, because it failed when they came: they go on at once."""

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    def arrived(self, waiting: Waiting, now_s: float) -> Refuse | None:
        """Take in a request; returns a refusal when the queue is full. Never raises.

        A request whose id waits already is refused too, as two of one id could not be told apart.
        """
        request_id = waiting.request.id
        if request_id in self._waiting:
            return self._turned_away(waiting, now_s, f"a request of this id waits already: {one_line(request_id)}")
        if len(self._waiting) >= self._most_waiting:
            return self._turned_away(waiting, now_s, f"{len(self._waiting)} requests wait already")
        self._waiting[request_id] = waiting
        if not self._told(lambda: self.policy.on_arrival(waiting, now_s)):
            self._unheard[request_id] = None
        return None

    def next(self, workers: tuple[WorkerView, ...], now_s: float, in_service: int) -> FlowDecision:
        """Say what happens next. Never raises.

        :param workers: those that take new work; without any, nothing goes on.
        :param in_service: requests that went on and have not ended; while there are some, the host will ask again.
        """
        if not self._waiting:
            return HOLD
        if self._unheard and workers:
            return self._first(next(iter(self._unheard)), workers, now_s, in_service, Fault.POLICY_ERROR, 0)
        decision: FlowDecision | None = None
        answer, fault, took = self._asked(lambda: self.policy.next(workers, now_s))
        if fault is None:
            decision, why = self._followed(answer, now_s, bool(workers), in_service)
            if why is not None:
                fault = self._unsafe(f"{type(self.policy).__name__}: {why}")
        if decision is None:
            return self._first(next(iter(self._waiting)), workers, now_s, in_service, fault, took)
        return self._decided(decision, fault, took, workers, now_s, in_service)

    def left(self, request_id: str) -> None:
        """Take out a waiting request whose client has gone away. Never raises."""
        if self._waiting.pop(request_id, None) is not None:
            self._unheard.pop(request_id, None)
            self._told(lambda: self.policy.on_left(request_id))

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Tell a policy that learns from outcomes how a request ended. Never raises."""
        if (learner := self._learner) is not None:
            self._told(lambda: learner.on_ended(request, outcome))

    def _followed(
        self, answer: object, now_s: float, workers: bool, in_service: int
    ) -> tuple[FlowDecision | None, str | None]:
        """Return what to do (None: first come first served) and what is wrong with `answer`, if anything."""
        try:
            if isinstance(answer, Go):
                return self._gone_on(answer, workers)
            if isinstance(answer, Refuse):
                return self._refused(answer)
            if isinstance(answer, Hold):
                return self._held(answer, now_s, workers, in_service)
            return None, f"the answer is {type(answer).__name__}, not Go, Refuse or Hold"
        except Exception as error:  # an answer whose fields are not what they should be
            return None, one_line(error)

    def _gone_on(self, answer: Go, workers: bool) -> tuple[FlowDecision | None, str | None]:
        if answer.request_id not in self._waiting:
            return None, f"request {one_line(answer.request_id)} does not wait"
        if not workers:  # the policy does not have it any more, but it still waits
            self._unheard[answer.request_id] = None
            return HOLD, "a request was to go on where no worker takes work"
        return Go(self._taken_out(answer.request_id), one_line(answer.reason)), None

    def _taken_out(self, request_id: str) -> str:
        self._unheard.pop(request_id, None)
        return self._waiting.pop(request_id).request.id

    def _refused(self, answer: Refuse) -> tuple[FlowDecision | None, str | None]:
        if answer.request_id not in self._waiting:
            return None, f"request {one_line(answer.request_id)} does not wait"
        retry_after_s, why = LEAST_RETRY_S, None
        if isinstance(answer.retry_after_s, int | float) and math.isfinite(answer.retry_after_s):
            retry_after_s = min(max(float(answer.retry_after_s), LEAST_RETRY_S), MOST_RETRY_S)
        else:
            why = f"retry_after_s is {one_line(answer.retry_after_s)}"
        return Refuse(self._taken_out(answer.request_id), retry_after_s, one_line(answer.reason)), why

    @staticmethod
    def _held(answer: Hold, now_s: float, workers: bool, in_service: int) -> tuple[FlowDecision | None, str | None]:
        until_s = answer.until_s
        if until_s is not None and math.isfinite(until_s) and until_s > now_s:
            return Hold(min(max(until_s, now_s + LEAST_HOLD_S), now_s + MOST_HOLD_S)), None
        why = None if until_s is None else f"holds until {until_s}, which is not a time to come"
        if workers and not in_service:
            return None, why or "deadlock: nothing is in service, and the policy holds everything for no stated time"
        return HOLD, why

    def _first(
        self,
        request_id: str,
        workers: tuple[WorkerView, ...],
        now_s: float,
        in_service: int,
        fault: Fault | None,
        took_ns: int,
    ) -> FlowDecision:
        """Let the request go on that is first in the order of arrival, and let the policy forget it."""
        if not workers:
            return self._decided(HOLD, fault, took_ns, workers, now_s, in_service)
        self.left(request_id)
        return self._decided(Go(request_id), fault, took_ns, workers, now_s, in_service)

    def _turned_away(self, waiting: Waiting, now_s: float, why: str) -> Refuse:
        refusal = Refuse(waiting.request.id, LEAST_RETRY_S, why)
        self._decided(refusal, None, 0, (), now_s, None)
        return refusal

    def _decided(
        self,
        decision: FlowDecision,
        fault: Fault | None,
        took_ns: int,
        workers: tuple[WorkerView, ...],
        now_s: float,
        in_service: int | None,
    ) -> FlowDecision:
        journal = self._journal
        if journal is None:
            return decision
        refuses = decision.__class__ is Refuse
        if fault is not None or refuses or not journal.skips(Kind.FLOW, took_ns * 1e-9):
            seen = {
                "waiting": len(self._waiting),
                "head": next(iter(self._waiting.values()), None),
                "workers": workers,
                "now_s": now_s,
                "in_service": in_service,
            }
            journal.decided(Decision(Kind.FLOW, decision, fault, took_ns / 1e9), seen)
        return decision
