"""One worker as the router sees it: its view, and the timeline of what it was given."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.workers import ANYTHING, Role, WorkerView
from pdplugins.policies.dynaserve.passes import PassCosts
from pdplugins.policies.dynaserve.play import Leg
from pdplugins.policies.dynaserve.timeline import Timeline

LONGEST = 10_000_000
"""Longer prompts and predictions are cut to this, so that sums stay finite. No model has such a long context."""
TOO_MUCH_KV = 2.0
"""A worker gets no more decodes when their final contexts sum to this many KV caches. They never all end at once, and
a request that finds its second worker full decodes on where it is."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request as its placement sees it."""

    request: str
    """Its id."""
    prompt: int
    tokens: int
    """Output tokens, as predicted, with the margin."""
    prompt_s: float
    """Seconds that its prompt adds to passes."""
    now_s: float
    history: int = 0
    """Tokens of the prompt that its first worker has in its KV cache."""
    own_s: float | None = None
    """Its own TPOT, where that is below the deployment's."""

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return self.prompt + self.tokens


class Server:
    """One worker."""

    __slots__ = ("_usual_kv_tokens", "strict", "timeline", "view")

    def __init__(self, view: WorkerView, costs: PassCosts) -> None:
        self.view = view
        self.timeline = Timeline(costs)
        self._usual_kv_tokens = costs.kv_tokens
        self.strict = 0
        """Requests in service that decode here within a TPOT of their own."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache holds; the deployment's number until the host says one."""
        return self.view.kv_capacity_tokens or self._usual_kv_tokens

    def follow(self, costs: PassCosts, job: Job) -> None:
        """Bring the timeline to the present, and correct it by what the worker reports. NaN corrects nothing."""
        self.timeline.advance(job.now_s)
        load = self.view.load
        requests, tokens, decodes = load.queued_requests, load.queued_tokens, load.decode_requests
        waiting_s = None
        if is_number(requests) and is_number(tokens):
            count = max(requests, 1.0)
            waiting_s = count * costs.prompt_s(0, int(min(max(tokens, 0.0) / count, LONGEST)))
        unknown = Leg(0.0, max(job.tokens // 2, 1), job.prompt, job.now_s)
        self.timeline.correct(waiting_s, decodes if is_number(decodes) else None, unknown)

    def can(self, phase: Role) -> bool:
        """Return whether the worker can do `phase`. What a host does not say is assumed, here and below."""
        return phase in (self.view.capabilities or ANYTHING).phases

    @property
    def alone(self) -> bool:
        """Whether the worker can serve a whole request."""
        return (self.view.capabilities or ANYTHING).alone

    @property
    def splits(self) -> bool:
        """Whether the worker can take part in a request that is cut at any token."""
        return (self.view.capabilities or ANYTHING).splits

    def holds(self, tokens: int) -> bool:
        """Return whether the KV cache can hold a request of `tokens` tokens."""
        return self.kv_capacity_tokens >= tokens

    def takes(self, job: Job, costs: PassCosts) -> bool:
        """Return whether one more decode fits: into the batch, the KV cache and the TBT SLO."""
        timeline = self.timeline
        batch = timeline.batch + 1
        if batch > costs.most_batch or timeline.kv_tokens + job.length > TOO_MUCH_KV * self.kv_capacity_tokens:
            return False
        return costs.decode_s(batch, timeline.context_tokens + job.length) <= (job.own_s or costs.slo_s)

    def fill(self) -> float:
        """Return how full of decodes the worker is: the KV cache that they need, over its size."""
        return self.timeline.kv_tokens / max(self.kv_capacity_tokens, 1)
