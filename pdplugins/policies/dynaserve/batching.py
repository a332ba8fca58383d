"""The local scheduler (Algorithm 2): each step has all decodes, and as many prompt tokens as keep the TBT SLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.contracts.deployment import Deployment
from pdplugins.policies._common import reachable, tightest_tpot_s
from pdplugins.policies.dynaserve.config import DynaServeBatchSettings
from pdplugins.policies.dynaserve.steps import adder
from pdplugins.policies.dynaserve.table import ProfileTable

CLOSE_TOKENS = 16
"""The search for M ends at most this many tokens below the largest M that keeps the SLO."""


class DynaServeBatchScheduler:
    """Keeps each step of one instance within the TBT SLO."""

    def __init__(self, settings: DynaServeBatchSettings, deployment: Deployment) -> None:
        self._tpot_s = settings.tbt_slo_s or reachable(deployment).slo.tpot_s
        self._share = 1 - settings.headroom
        self._slo_s = self._tpot_s * self._share
        self._most = settings.step_tokens
        self._alone = min(settings.prefill_only_tokens, settings.step_tokens)
        self._table = ProfileTable(deployment, settings.learning_rate)

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step. It has all decodes (line 2), and the plan adds prompt tokens (lines 3 to 8)."""
        if not view.queue:
            return BatchPlan({})
        step, budget = self.begin(view)
        return self.fill(step, view.queue, budget)

    def begin(self, view: BatchView, spare_s: float = 0.0) -> tuple[Step, int]:
        """Return a step with the decodes of `view`, and the prompt tokens that may join it.

        :param spare_s: seconds that the step may take beyond the SLO.
        """
        step = Step(self._table, view, self._slo_s)
        if own := view.decode_tpots_s:
            alone_s = step.predicted_s() / self._share
            step.slo_s = self._share * tightest_tpot_s(own, step.dnum, self._tpot_s, alone_s)
        step.slo_s += spare_s
        waiting = sum([prefill.remaining_tokens for prefill in view.queue])
        step.covered = done_tokens(view.queue[0])
        budget = step.max_prefill_allowed(step.covered, min(waiting, self._most))
        step.alone = step.dnum == 0 and budget < self._alone
        return step, self._alone if step.alone else budget

    def fill(self, step: Step, queue: Sequence[QueuedPrefill], budget: int) -> BatchPlan:
        """Compose a step that has begun: `budget` tokens of the prompts of `queue`, in this order."""
        alone, covered = step.alone, step.covered
        for prefill in queue:
            done = done_tokens(prefill)
            if done > covered and not alone:  # each token attends to more than M assumes
                covered = max(map(done_tokens, queue))
                budget = step.max_prefill_allowed(covered, budget)
            tokens = min(prefill.remaining_tokens, budget)
            if tokens > 0:
                step.add(prefill, tokens)
                budget -= tokens
            if budget <= 0:
                break
        if not alone:
            step.keep_slo()
        return BatchPlan({prefill.request.id: tokens for prefill, tokens, _ in step.chunks})

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Record the step that has completed in the profile table (line 1)."""
        self.learn(view, plan, took_s)

    def learn(self, view: BatchView, plan: BatchPlan, took_s: float) -> float:
        """Record a step, and return the seconds that the profile has for it."""
        step = Step(self._table, view, self._slo_s)
        step.follow(view, plan.prefill_tokens)
        step.record(took_s)
        return step.modelled_s


class Step:
    """One step while it is composed."""

    __slots__ = ("_modelled_s", "_table", "alone", "chunks", "covered", "ctx", "dnum", "plen", "slo_s")

    def __init__(self, table: ProfileTable, view: BatchView, slo_s: float) -> None:
        self._table = table
        self.slo_s = slo_s
        """Seconds that the step may take."""
        self.dnum = max(view.decode_requests, 0)
        self.ctx = max(view.decode_context_tokens, 0) / self.dnum if self.dnum else 0.0
        self.plen = 0
        self.chunks: list[tuple[QueuedPrefill, int, float]] = []
        """Prompt, number of its tokens in the step, and seconds that they add."""
        self._modelled_s = table.decode_s(self.dnum, self.ctx)
        self.covered = 0
        """The most tokens of a prompt before its chunk for which the budget of the step was computed."""
        self.alone = False
        """Whether nothing decodes, so that prompts may take longer than the SLO."""

    def add(self, prefill: QueuedPrefill, tokens: int) -> None:
        """Add a chunk of `tokens` tokens (line 5)."""
        added_s = self._table.steps.added(tokens, done_tokens(prefill), self.plen, self.dnum)
        self.chunks.append((prefill, tokens, added_s))
        self.plen += tokens
        self._modelled_s += added_s

    def follow(self, view: BatchView, prefill_tokens: Mapping[str, int]) -> None:
        """Add the chunks of a plan."""
        for prefill in view.queue:
            if tokens := prefill_tokens.get(prefill.request.id, 0):
                self.add(prefill, tokens)

    @property
    def modelled_s(self) -> float:
        """The time that the profile has for the step, uncorrected."""
        return self._modelled_s

    def record(self, took_s: float) -> None:
        """Record the time that the step took in the profile table."""
        self._table.record(self.plen, self.ctx, self.dnum, self._modelled_s, took_s)

    def predicted_s(self) -> float:
        """Return the time that the profile table predicts for the step."""
        return self._table.ratio(self.plen, self.ctx, self.dnum) * self._modelled_s

    def max_prefill_allowed(self, done: int, most: int) -> int:
        """Return M: the prompt tokens that may join the step within the SLO; at most `most`.

        This is a secant search inside an interval that shrinks with each probe. The result has been probed and fits.

        :param done: the most tokens of a prompt that precede its chunk.
        """
        if most <= 0:
            return 0
        table, plen, before_s, slo_s = self._table, self.plen, self._modelled_s, self.slo_s
        ratio, added = table.ratios(self.ctx, self.dnum), adder(table.steps, done, plen, self.dnum)

        def late_s(tokens: int) -> float:
            return ratio(plen + tokens) * (before_s + added(tokens)) - slo_s

        high, high_s = most, late_s(most)
        if high_s <= 0:
            return most
        low, low_s = 0, ratio(plen) * before_s - slo_s
        if low_s > 0:
            return 0
        while high - low > CLOSE_TOKENS:
            aim = low + int((high - low) * low_s / (low_s - high_s)) - CLOSE_TOKENS // 2
            aim = min(max(aim, low + 1 + (high - low) // 8), high - 1)
            aim_s = late_s(aim)
            if aim_s <= 0:
                low, low_s = aim, aim_s
            else:
                high, high_s = aim, aim_s
        return low

    def keep_slo(self) -> None:
        """Drop the last chunks while the whole step would miss the SLO, which happens where a profile is concave."""
        while len(self.chunks) > 1 and self.predicted_s() > self.slo_s:
            _, tokens, added_s = self.chunks.pop()
            self.plen -= tokens
            self._modelled_s -= added_s


def done_tokens(prefill: QueuedPrefill) -> int:
    """Return the tokens of a prompt in the KV cache, or the most there can be where the host does not say."""
    if prefill.done_tokens is not None:
        return prefill.done_tokens
    return max(prefill.request.prompt_tokens - prefill.remaining_tokens, 0)
