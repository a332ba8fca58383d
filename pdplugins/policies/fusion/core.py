"""What the parts of fusion share in one process: costs, the traffic, and the composition of the pool."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import cached_tokens, reachable
from pdplugins.policies.fusion.composition import MOST_COUNTS, Frontier, Lengths, frontier
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs, decodes_of
from pdplugins.policies.fusion.doubt import Cases
from pdplugins.policies.fusion.drift import BAND, Drift
from pdplugins.policies.fusion.feedback import Feedback
from pdplugins.policies.fusion.handovers import HandOvers
from pdplugins.policies.fusion.lengths import MeanLengths
from pdplugins.policies.fusion.present import Present
from pdplugins.policies.fusion.residents import Residents
from pdplugins.policies.fusion.watts import Powered, powered
from pdplugins.policies.rapid.controller import Caps

MEAN_CELL = 64
"""Change of the mean context, in tokens, after which decode places are counted anew."""
NEVER = (-1, 0.0, 0.0)
AHEAD_SHARE = 0.45
"""Part of the TTFT within which the pool plans, for which prompts may wait on a worker. Beyond capacity they do: what
waits longer there is late."""
SPARE = 1.15
"""Rate that the pool must serve as it is, or with one worker for the longest prompts, over that of the requests."""
LONG_SHARE = 0.1
"""Part of the TTFT. A prompt that takes longer alone is a long one."""
TIGHT = 0.8
"""Part of the KV cache that is planned with. Where decodes fill more of it, places to decode are short."""
ENOUGH_KV, GRAINS = 0.1, 16
"""What part of all KV cache contexts must be before it is learned how much they share, and in which parts."""
LEAST_STEP = 0.5
"""Of what the TPOT SLO allows: the programme's mean is also of steps without prompts."""
RESERVE = 1.05
"""Output that composition plans with, over the mean. Where places to decode are short, all requests wait for one; where
prefill is short, the longest prompts do. So an answer that is taken for too long costs less than one for too short."""


class Core:
    """Knows the costs and the lengths, and chooses the composition."""

    def __init__(self, settings: FusionSettings, deployment: Deployment) -> None:
        self.settings = settings
        self.deployment = deployment = reachable(deployment)
        self.costs = Costs(settings, deployment)
        self.lengths = MeanLengths(settings.prior_tokens)
        self.feedback = Feedback(deployment.slo)
        self.residents = Residents()
        self.drift = Drift()
        self.hand_overs = HandOvers(deployment.slo.ttft_s)
        self.present = Present(self._speed)
        self.ahead_s = min(settings.ahead_steps * self.costs.step_s, AHEAD_SHARE * self.costs.due_s)
        """Seconds of prefill that may wait on a worker which decodes."""
        self.sizes_steps = False
        """Whether this process sizes the steps of the engines. Those in processes of their own hear of no answers."""
        self.capacity = 0.0
        """Requests a second that the pool serves at most, by the programme; 0 before its first solution."""
        self.wanted: int | None = None
        """Workers that should prefill only; None before the first solution."""
        self._tight_tokens = math.inf
        """Context of the decodes of one worker from which on places are short."""
        self._tight_step_s = math.inf
        """Seconds that its steps take then."""
        self.longest_wait_s = 0.0
        """The longest wait of a request that went on, over the whole run."""
        self.caps: Caps | None = None
        """Power caps of the last solution; None without a budget of watts."""
        self._next_s: float | None = None
        """When the programme is solved next; None before the first request."""
        self._quiet: tuple[float, ...] | None = None
        """What the last solution was for, if that was silence. Nothing else can follow until something happens."""
        self._news = 0
        """How well the lengths were known at the last solution. Where they are better known, it is solved at once."""
        self._looked_s = 0.0
        self._prefixes = False
        """Whether a prompt had a part in a KV cache that is not its own history."""
        self.shared = 1.0
        """KV cache that requests in service take, over their contexts: less than 1 where prompts share prefixes."""
        self._counted: Sequence[WorkerView] | None = None
        self._caches: Mapping[float, int] = {}
        """Number of decode workers by the size of their KV cache."""
        self._cell = NEVER
        self._most_in_service = 0

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache of one worker of this deployment holds."""
        deployment = self.deployment
        return deployment.kv_tokens or deployment.perf.kv_capacity_tokens(deployment.decode_tp)

    def compose(self, workers: int, present: int, kv_capacity_tokens: int, now_s: float, least: int = 0) -> int | None:
        """Return how many workers should prefill only, when it is time to solve the programme anew; else None.

        :param workers: number of all workers.
        :param present: number of those that prefill only now.
        :param kv_capacity_tokens: KV cache of the smallest worker.
        :param least: number of those that are too slow to decode.
        """
        settings = self.settings
        if not settings.composition or settings.scale or self.lengths.isl is None or workers < 2:
            return None
        if self._next_s is None:
            # Before answers have come, the operator's composition says more than the programme for a guessed length.
            self._next_s = now_s + settings.dwell_s
        if now_s < self._next_s and self.lengths.answered <= self._news:
            return None
        seen = self.lengths.news, self.feedback.asks, workers, present, kv_capacity_tokens, least
        silent = not self.lengths.lately(now_s)[0]
        if silent and seen == self._quiet:
            self._next_s = now_s + settings.interval_s
            return None
        self._quiet = seen if silent else None
        self._news = self.lengths.answered
        isl, osl = self.lengths.isl, RESERVE * max(self.lengths.osl, 1.0)
        cases = Cases(workers, self.lengths.answers, lambda part: self._programme(isl, part * osl, kv_capacity_tokens))
        does, self.capacity = cases.mean, cases.capacity
        content = not self.feedback.misses and self._has_room(cases.least(present), now_s)
        wanted = present if content else self._corrected(cases, present, workers, now_s)
        if settings.long_prompts:
            wanted = wanted or self._for_long(does, workers, present, now_s)
        if self._late_away(isl):
            wanted = 0
        self.wanted = max(wanted, min(least, workers - 1))
        self._tight_tokens = TIGHT * self._usable(kv_capacity_tokens)
        self._tight_step_s = math.inf
        if settings.short_steps and not self.wanted:
            self._tight_step_s = max(does.step_s(workers), LEAST_STEP * self.costs.step_s)
        if isinstance(does, Powered):
            self.caps = does.at(self.wanted, workers - self.wanted)[1]
        self._next_s = now_s + max(settings.interval_s, 0.0 if self.wanted == present else settings.dwell_s)
        return self.wanted

    def limit_s(self, context: int) -> float:
        """Return how long a step may take so that decodes of `context` in all make room soon; inf where there is some.

        A longer step prefills a little more a second, but all decodes stay in the KV cache for so much longer. Where
        every worker does both, the programme knows the step with which most requests are served.
        """
        return self._tight_step_s if context > self._tight_tokens else math.inf

    def look(self, workers: Sequence[WorkerView], now_s: float) -> None:
        """Learn how long the steps of workers take that only decode, and take in how long answers are."""
        self.lengths.decoded(sum(decodes_of(worker)[0] for worker in workers), sum(map(_decodes_s, workers)), now_s)
        if self.sizes_steps:
            self.costs.answers(0.0 if self.feedback.misses_tpot else self.lengths.short)
        self.hand_overs.at(now_s)
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        for worker in workers:
            load, (decodes, context) = worker.load, decodes_of(worker)
            if load.prefill_tokens != 0 or load.queued_tokens:
                self.drift.mixes(worker.id, now_s)
            elif self.drift.only_decodes(worker.id, now_s) and decodes and (tbt_s := load.recent_tbt_s or 0.0) > 0:
                modelled_s = self.costs.decode_s(decodes, context / decodes)
                self.drift.measured(worker.id, modelled_s, tbt_s, max(elapsed_s / tbt_s, 1.0))
        if self._prefixes:
            self._look_for_shared(workers)

    def _look_for_shared(self, workers: Sequence[WorkerView]) -> None:
        """Learn how much of their KV cache requests share, where hosts tell what is free and enough of it is taken."""
        taken = contexts = capacity = 0
        for worker in workers:
            free = worker.free_kv_tokens
            if free is not None and 0 <= free <= worker.kv_capacity_tokens:
                taken += worker.kv_capacity_tokens - free
                contexts += decodes_of(worker)[1]
                capacity += worker.kv_capacity_tokens
        if contexts > ENOUGH_KV * capacity:
            self.shared = min(math.ceil(GRAINS * taken / contexts) or 1, GRAINS) / GRAINS

    def own_tpot_s(self, worker: WorkerView, decodes: int, context: int) -> float | None:
        """Return the tightest TPOT of a worker's `decodes` requests of `context` in all; None for the deployment's."""
        own = self.residents.on(worker.id)
        return self.costs.tightest_s(own, decodes, context) if own else None

    def beside(self, worker: WorkerView) -> float:
        """Return the prompt tokens a second that a worker prefills beside what it decodes now."""
        decodes, context = self.present.decodes(worker)
        return self._speed(worker, decodes, context)

    def _speed(self, worker: WorkerView, decodes: int, context: int) -> float:
        own_s = self.own_tpot_s(worker, decodes, context)
        return self.costs.beside(decodes, context, own_s, self.drift.of(worker.id))

    @property
    def alone(self) -> float:
        """Prompt tokens a second of a typical worker that only prefills."""
        return self.costs.alone / self.drift.typical

    def fits(self, worker: WorkerView, decodes: int, context: int) -> bool:
        """Return whether one more decode keeps the TPOT SLO on a worker; of one as fast as others it is not asked."""
        slow = self.drift.of(worker.id)
        if slow <= self.drift.typical * (1 + BAND):
            return True
        mean = context / decodes if decodes else self.context
        return slow * self.costs.decode_s(decodes + 1, mean) <= self.costs.step_s

    @property
    def context(self) -> float:
        """Mean context of the requests that decode at one time, in tokens."""
        lengths = self.lengths
        return max(self._lengths(lengths.isl or 0.0, lengths.osl, lengths.history).context, 1.0)

    def began(self, request: Request, workers: Sequence[WorkerView], now_s: float) -> None:
        """Learn the length of a prompt that goes on. One that no KV cache holds is no traffic: its host refuses it.

        :param workers: those that may have a part of it in their KV cache.
        """
        if self.present.holds(request):
            self.lengths.began(request, now_s, self.known(request, workers))

    def known(self, request: Request, workers: Sequence[WorkerView]) -> int:
        """Return the tokens of a prompt that need not be computed: its history, or what one of these workers has."""
        if not request.blocks:
            return request.history_tokens
        cached = (cached_tokens(request, worker, self.settings.block_tokens) for worker in workers)
        known = max(request.history_tokens, *cached, 0)
        self._prefixes = self._prefixes or known > request.history_tokens
        return known

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Learn length and latencies of an answer. A second call for the same request changes nothing."""
        self.residents.left(request.id)
        self.present.left(request.id, outcome.output_tokens)
        self.drift.left(request.id)
        self.hand_overs.ended(request, outcome)
        if self.lengths.knows(request):
            self.feedback.heard(request, outcome)
        finished = outcome.ending is Ending.FINISHED
        self.lengths.ended(request, outcome.output_tokens if finished else None, outcome.tpot_s, self.present.now_s)

    def _late_away(self, isl: float) -> bool:
        """Tell whether hand-overs take so long that a mean prompt is late behind one step of a prefill-only worker."""
        if not (delay_s := self.hand_overs.delay_s):
            return False
        tokens = max(int(isl), 1)
        computes_s = (self.costs.prefill_s(tokens) + self.costs.chunk / self.costs.alone) * self.drift.typical
        return computes_s + self.costs.transfer_s(tokens) + delay_s > self.costs.due_s

    def _programme(self, isl: float, osl: float, kv_capacity_tokens: float) -> Frontier | Powered:
        """Return what workers can do, within the budget of watts if there is one."""
        budget_w, table = self.settings.power_budget_w, self.deployment.perf.power()
        if budget_w is None or table is None:
            return self.frontier(isl, osl, kv_capacity_tokens, history=self.lengths.history)
        kv_tokens, most = self._usable(kv_capacity_tokens), self.deployment.max_batch
        lengths, typical = self._lengths(isl, osl, self.lengths.history), self.drift.typical

        def under(prefill: float, decode: float) -> Frontier:
            slow = prefill * typical, decode * typical
            return frontier(self.costs, lengths, kv_tokens, most, slow=slow)

        return powered(table, under, self.deployment.decode_tp, budget_w)

    def _lengths(self, isl: float, osl: float, history: float) -> Lengths:
        return Lengths(isl, osl, history, self.lengths.spread, self.lengths.decoding)

    def frontier(
        self,
        isl: float,
        osl: float,
        kv_capacity_tokens: float,
        *,
        mixes: bool = True,
        history: float = 0.0,
    ) -> Frontier:
        """Return what workers can do for requests of these mean lengths."""
        kv_tokens, most = self._usable(kv_capacity_tokens), self.deployment.max_batch
        slow = self.drift.typical, self.drift.typical
        return frontier(self.costs, self._lengths(isl, osl, history), kv_tokens, most, mixes=mixes, slow=slow)

    def most_in_service(self, workers: Sequence[WorkerView]) -> int:
        """Return how many requests may be in service: the workers' places to decode, within TPOT SLO and KV cache.

        While one is prefilled, some that decode end. By Little's law so many more may be in service as the time before
        it decodes is of the time in which it does.
        """
        if workers is not self._counted:
            self._counted, self._cell = workers, NEVER
            decoding = [worker for worker in workers if worker.role is Role.DECODE] or workers
            self._caches = Counter(worker.kv_capacity_tokens or math.inf for worker in decoding)
        context, slow = self.context, self.drift.typical
        if (cell := (int(context) // MEAN_CELL, slow, self.shared)) != self._cell:
            self._cell = cell
            within = self.costs.most_decodes(context, self.deployment.max_batch, slow)
            fits = {tokens: max(int(min(within, self._usable(tokens) / context)), 1) for tokens in self._caches}
            places = sum(count * fits[tokens] for tokens, count in self._caches.items())
            decodes_s = max(self.lengths.osl, 1.0) * self.costs.step_s
            self._most_in_service = int(places * (1 + self._before_s(slow) / decodes_s))
        return self._most_in_service

    def _usable(self, kv_capacity_tokens: float) -> float:
        """Return the contexts, in tokens, that a KV cache of this size may hold."""
        return self.settings.kv_share * kv_capacity_tokens / self.shared

    def _before_s(self, slow: float) -> float:
        """Return the seconds in service before a request decodes: behind the prefill that may wait, and its own."""
        own_s = self.costs.share_s(max(int(self.lengths.isl or 0.0), 1), int(self.lengths.history))
        return (self.ahead_s + own_s) * slow

    def _has_room(self, served: float, now_s: float) -> bool:
        """Tell whether a pool that serves at most `served` requests a second has room for more than come."""
        rate, _ = self.lengths.lately(now_s)
        return served >= SPARE * rate > 0

    def _for_long(self, does: Frontier | Powered, workers: int, present: int, now_s: float) -> int:
        """Return 1 where the longest prompts are in time only on a worker without decodes, and the load leaves one."""
        rate, prompts = self.lengths.lately(now_s)
        room = does.rate(1, workers - 1) >= rate * (1.0 if present else SPARE)
        if not rate or not room or self.feedback.asks < 0:
            return 0
        costs, slow, ttft_s = self.costs, self.drift.typical, self.deployment.slo.ttft_s
        context = int(self.context)
        decodes = math.ceil(rate * self.lengths.osl * costs.decode_s(1, context) * slow / workers)

        def helped(prompt: int) -> bool:
            away_s = costs.whole_s(prompt) * slow + costs.transfer_s(prompt) + costs.step_s
            if not LONG_SHARE * ttft_s < away_s <= ttft_s:
                return False
            return prompt / costs.pace(decodes, decodes * context, None, slow, prompt // 2).rate > ttft_s

        return int(any(map(helped, prompts)))

    def _corrected(self, cases: Cases, present: int, workers: int, now_s: float) -> int:
        """Return the best number, moved towards what is missed: to the next one that costs little of the capacity.

        Mostly that is one more or one fewer. Where the TTFT is short, a few that prefill only can be worse than many
        and than none: then it is several more or fewer. Several more need a pool with room: beyond its capacity any
        number misses the TTFT, and with few left to decode a mistake costs most.
        """
        chosen, asks = cases.better(present, self.settings.gain), self.feedback.asks
        if not asks:
            return chosen
        towards = range(chosen + 1, workers) if asks > 0 else range(chosen - 1, -1, -1)
        return next(
            (
                moved
                for moved in towards[:MOST_COUNTS]
                if cases.keeps(moved, self.settings.feedback)
                and (moved <= chosen + 1 or self._has_room(cases.least(moved), now_s))
            ),
            chosen,
        )


def _decodes_s(worker: WorkerView) -> float:
    """Return the tokens a second that a worker decodes, as far as its host says."""
    tbt_s = worker.load.recent_tbt_s or 0.0
    return decodes_of(worker)[0] / tbt_s if 0 < tbt_s < math.inf else 0.0
