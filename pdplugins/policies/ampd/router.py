"""Session binding (§3) and adaptive routing of prefill tasks (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf, isnan

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome, Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import SplitMix64, by_role
from pdplugins.policies.ampd.config import AmpdRouterSettings
from pdplugins.policies.ampd.costs import Costs, known

RECENT_ANSWERS = 200
"""Number of latest answers that the mean output length is taken over."""
ESTIMATED_WORKERS = 16
"""Prefill workers of one degree up to which Eq. 2 is computed for each."""
FIRST_OUTPUT_TOKENS = 100.0
"""Assumed mean output length until the first answer has ended."""


class Pool:
    """Workers of one role and, where it matters, one degree."""

    def __init__(self, workers: Sequence[WorkerView]) -> None:
        self._workers = workers
        capacities = [worker.kv_capacity_tokens for worker in workers]
        self._least_tokens = min(capacities, default=0)
        self.alike = len(set(capacities)) <= 1 and 0 not in capacities
        """Whether all have the same KV capacity. A host that has said none yet, which is 0, may say different ones."""

    def holding(self, tokens: int) -> Sequence[WorkerView]:
        """Return the workers whose KV cache can hold `tokens`; all of them where none can."""
        if self._least_tokens > tokens:
            return self._workers
        return [worker for worker in self._workers if not 0 < worker.kv_capacity_tokens <= tokens] or self._workers


class AmpdRouter:
    """Binds each session to a decode worker, and prefills each of its rounds there or on a prefill worker.

    A decision reads the load of every prefill worker at most twice. It keeps no state that grows with time.
    """

    def __init__(self, settings: AmpdRouterSettings, deployment: Deployment) -> None:
        slo = deployment.slo
        self._costs = Costs(deployment)
        self._ttft_slack_s = settings.ttft_share * slo.ttft_s
        self._itl_slack_s = settings.beta * slo.tpot_s
        self._local = settings.local
        self._route = self._predicted if settings.slack == "predicted" else self._windowed
        self._mean_output_tokens = FIRST_OUTPUT_TOKENS
        self._finished = 0
        self._random = SplitMix64(settings.seed).next
        self._workers: tuple[WorkerView, ...] | None = None
        self._by_id: dict[str, WorkerView] = {}
        self._decode = self._prefill = Pool(())
        self._groups: tuple[tuple[int, Pool], ...] = ()

    # --- the contract ------------------------------------------------------------------------------------------------

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place one round: steps 1 and 2 of §3. Raises ConfigError when there is no worker."""
        if workers is not self._workers:
            self._learn(workers)
        held = None if request.bound_worker is None else self._by_id.get(request.bound_worker)
        if held is None or held.role is not Role.DECODE:
            # The session is new, or its worker no longer decodes, so the whole prompt has to be prefilled.
            worker, history, why = self._bind(request), 0, "bound"
        else:
            worker, history, why = held, request.history_tokens, "session's"
        route, reason = self._route(request, worker, min(history, request.prompt_tokens))
        return Placement(route.id, worker.id, request.prompt_tokens, f"{reason}; {why} decode worker {worker.id}")

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return where the request decodes. The choice changes only if its decode worker has gone since."""
        if workers is not self._workers:
            self._learn(workers)
        if placement.second in self._by_id:
            return placement
        second = self._bind(request)
        return Placement(placement.first, second.id, placement.split, f"its decode worker is gone; bound {second.id}")

    # --- binding -----------------------------------------------------------------------------------------------------

    def _learn(self, workers: tuple[WorkerView, ...]) -> None:
        pools = by_role("ampd", workers)
        self._workers = workers
        self._by_id = {worker.id: worker for worker in workers}
        prefill = pools[Role.PREFILL]
        self._prefill = Pool(prefill)
        self._decode = Pool(pools[Role.DECODE] or workers)
        degrees: dict[int, list[WorkerView]] = {}
        for worker in prefill:
            degrees.setdefault(self._costs.degree(worker), []).append(worker)
        self._groups = tuple((tp, Pool(group)) for tp, group in degrees.items())

    def _bind(self, request: Request) -> WorkerView:
        """Choose the decode worker with the least memory in use; equal ones take turns (§3, step 1)."""
        pool = self._decode.holding(request.prompt_tokens)
        used = _tokens(pool)
        if not self._decode.alike:
            capacities = _capacities(pool)
            used = [tokens / capacity for tokens, capacity in zip(used, capacities, strict=True)]
        least = min(used)
        equals = [worker for worker, share in zip(pool, used, strict=True) if share == least]
        return equals[0] if len(equals) == 1 else equals[self._random() % len(equals)]

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def _windowed(self, request: Request, decode: WorkerView, history: int) -> tuple[WorkerView, str]:
        """Algorithm 1 as printed: return where the prefill task of `request` runs, and why, given its decode worker."""
        prefill = self._prefill.holding(request.prompt_tokens)
        count = len(prefill)
        for step in self._random_steps(count):  # line 1
            if self._has_ttft_slack(worker := prefill[step % count]):  # line 2
                return worker, f"remote: TTFT slack on {worker.id}"  # line 3
        if self._local and self._itl_s(decode) <= self._itl_slack_s:  # line 4
            return decode, "local: ITL slack"  # line 5
        new = request.prompt_tokens - history
        local_s = self._local_s(decode, history, new)  # line 6
        remote, remote_s = self._cheapest_remote(request.prompt_tokens, history, new)  # lines 7, 8
        if remote is None or (self._local and local_s <= remote_s):  # line 9
            return decode, f"local: {local_s:.3f} s, remote {remote_s:.3f} s"
        return remote, f"remote: {remote_s:.3f} s, local {local_s:.3f} s"

    def _predicted(self, request: Request, decode: WorkerView, history: int) -> tuple[WorkerView, str]:
        """Algorithm 1 with predicted slack: Eq. 1 and 2 for this task, instead of the recent TTFT and ITL of others.

        The task runs locally only if no prefill worker meets its TTFT, the decode worker does, and the ITL there stays
        within its slack. A local prefill pauses the decodes, and that pause is spread over an answer of mean length.
        On an idle worker it pauses nobody. A task that would miss its TTFT anyway stays remote, so that it does not
        pause any decodes.
        """
        new = request.prompt_tokens - history
        remote, remote_s = self._cheapest_remote(request.prompt_tokens, history, new)
        if remote_s <= self._ttft_slack_s and remote is not None:  # lines 1-3
            return remote, f"remote: {remote_s:.3f} s"
        if remote is None:
            return decode, "local: no prefill worker"
        if self._local:
            local_s = self._local_s(decode, history, new)
            itl_s = self._itl_s(decode) + (0.0 if _idle(decode) else local_s / self._mean_output_tokens)
            if local_s <= self._ttft_slack_s and itl_s <= self._itl_slack_s:  # lines 4, 5
                return decode, f"local: {local_s:.3f} s and ITL {itl_s:.3f} s, remote {remote_s:.3f} s"
        return remote, f"remote: {remote_s:.3f} s, late anyway"  # lines 6-9

    def _has_ttft_slack(self, worker: WorkerView) -> bool:
        """Line 2. Where no recent TTFT is reported, the queue must be done within the slack.

        A worker that has prefilled nothing recently reports no TTFT.
        """
        ttft_s = worker.load.recent_ttft_s
        if not is_number(ttft_s):
            ttft_s = self._costs.queue_s(worker, self._costs.degree(worker))
        return ttft_s <= self._ttft_slack_s

    def _itl_s(self, worker: WorkerView) -> float:
        """Return the ITL of a decode worker, or T_dec of its batch where the ITL is not reported."""
        itl_s = worker.load.recent_tbt_s
        return itl_s if is_number(itl_s) else self._costs.decode_s(worker, self._costs.degree(worker))

    def _local_s(self, worker: WorkerView, history: int, new: int) -> float:
        """Eq. 1."""
        costs, tp = self._costs, self._costs.degree(worker)
        return costs.prefill_s(history, new, tp) + costs.queue_s(worker, tp)

    def _cheapest_remote(self, prompt: int, history: int, new: int) -> tuple[WorkerView | None, float]:
        """Lines 7 and 8: return the prefill worker with the least t_remote of Eq. 2, and that time in seconds.

        Workers of one degree differ only in their queues. In a large pool only the queue with the fewest tokens is
        looked at, so that a decision over thousands of workers stays fast.
        """
        costs = self._costs
        kv_s = costs.transfer_s(history) + costs.transfer_s(new)
        best, best_s = None, inf
        for tp, group in self._groups:
            pool = group.holding(prompt)
            if len(pool) > ESTIMATED_WORKERS:
                waiting = _tokens(pool)
                pool = (pool[waiting.index(min(waiting))],)
            own_s = costs.prefill_s(history, new, tp) + kv_s
            for worker in pool:
                total_s = own_s + costs.queue_s(worker, tp)
                if total_s < best_s or best is None:
                    best, best_s = worker, total_s
        return best, best_s

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Learn the mean length of answers."""
        if outcome.ending is not Ending.FINISHED:
            return
        self._finished += 1
        share = 1 / min(self._finished, RECENT_ANSWERS)
        self._mean_output_tokens += share * (max(outcome.output_tokens, 1) - self._mean_output_tokens)

    # --- random order ------------------------------------------------------------------------------------------------

    def _random_steps(self, count: int) -> range:
        """Return numbers that, modulo `count`, are 0..count-1 in a random order, with random start and stride."""
        if not count:
            return range(0)
        roll = self._random()
        start, stride = roll % count, 1 + (roll >> 32) % count
        while gcd(stride, count) != 1:
            stride += 1
        return range(start, start + count * stride, stride)


def _idle(worker: WorkerView) -> bool:
    """Tell whether nothing decodes on a worker, and nothing prefills there that decodes next."""
    load = worker.load
    return known(load.queued_requests + load.running_requests) <= 0


def _tokens(pool: Sequence[WorkerView]) -> list[float]:
    """Return the queued and running tokens of each worker: of prompts (prefill), or in its KV cache (decode)."""
    # This runs over thousands of workers for each request. NaN is rare, so only the sum is checked for it.
    tokens = [(load := worker.load).queued_tokens + load.running_tokens for worker in pool]
    return [known(one) for one in tokens] if isnan(sum(tokens)) else tokens


def _capacities(pool: Sequence[WorkerView]) -> list[float]:
    """Return the KV capacity of each worker in tokens. One that is not known yet counts as the mean of the others."""
    capacities = [worker.kv_capacity_tokens for worker in pool]
    known = [tokens for tokens in capacities if tokens > 0]
    mean = sum(known) / len(known) if known else 1.0
    return [tokens if tokens > 0 else mean for tokens in capacities]
