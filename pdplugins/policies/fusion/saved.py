"""Time that the decodes of an engine have saved against their TPOT, which a step with a larger chunk spends.

TPOT is a mean over an answer. After steps that were quicker, one may be slower. That pays where a large chunk costs
less than the small ones that fit into each step: mixtures of experts read most weights whatever a step has, and where
decodes leave little of the TPOT, what fits is tiny. Where answers are long it pays on any engine: a prompt has its
first token after one step instead of several. What is saved has a cap, so that no answer pays by more than that
for what others saved before it began. Beside a request with a TPOT of its own nothing is saved or spent.

The other way round, real steps take longer than was predicted now and then, on any engine. That is owed: the next ones
are shorter until it is made up for. Else the mean of an answer would be as far beyond the TPOT as the errors are in the
mean, and on an H100 they were: `benchmarks/gpu_live.py`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pdplugins.contracts.batching import BatchPlan, BatchView
from pdplugins.policies.fusion.costs import Costs, WorkerPace

MOST_OWED = 1.0
"""The most that is owed, in steps within the TPOT."""
PAID = 0.25
"""Part of what is owed by which the next step is shorter. An engine composes a step while the one before runs, so it
learns late how long that took: with this part, lengths come to rest the fastest, without swinging."""
MOST_AHEAD = 2
"""Steps that an engine composes before it reports the first of them."""
EXACT = 0.005
"""Part of a step by which predictions are off anyhow."""
WORTH = 0.7
"""A chunk is run before the most is saved if its tokens take at most one over this as long as those of the largest."""


class Ahead(NamedTuple):
    """A step that is composed."""

    requests: frozenset[str]
    """Whose prompts it has."""
    until_s: float
    """When it counts no longer."""
    spends_s: float
    """Seconds beyond the TPOT SLO."""


class Saved:
    """What one engine has saved, in seconds; less than none is owed."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._s = self._most_s = 0.0
        self._pace: WorkerPace | None = None
        """Of the decodes of the next step."""
        self._asked_s = 0.0
        self._reported_s = 0.0
        """Seconds of the steps since then that were reported."""
        self.composes_ahead = False
        """Whether the host composes a step while another one runs. Such a host reports steps that only decode, too."""
        self._ahead = deque[Ahead](maxlen=MOST_AHEAD)
        """The steps that are composed and not reported yet."""
        self._waits_since_s: float | None = None

    @property
    def saves(self) -> bool:
        """Whether time is saved for the next steps."""
        return self._pace is not None and self._pace.saves

    def before(self, view: BatchView, now_s: float, slow: float) -> float:
        """Return the seconds that the next step may take beyond the TPOT SLO, or by how many it has to be shorter.

        Where a host reports steps with prompts only, the engine only decodes in the rest of the time between two calls.
        Where it composes ahead, what a step spends is gone before that is reported.

        :param slow: how many times as long as the profile says the engine's steps take.
        """
        quiet_s = max(now_s - self._asked_s - self._reported_s, 0.0)
        self._asked_s, self._reported_s, self._pace = now_s, 0.0, None
        self._keep(lambda ahead: ahead.until_s >= now_s)
        if view.decode_requests > 0 and not view.decode_tpots_s:
            self._pace = self._costs.pace(view.decode_requests, view.decode_context_tokens, None, slow)
            if self._pace.saves or self._s < 0:
                mean_context = view.decode_context_tokens / view.decode_requests
                alone_s = self._costs.decode_s(view.decode_requests, mean_context) * slow
                self._save(0.0 if self.composes_ahead else quiet_s, alone_s, saves=self._pace.saves)
                left_s = self._s - sum([ahead.spends_s for ahead in self._ahead])
                return left_s if left_s > 0 else PAID * min(self._s, 0.0)
        self._s = self._most_s = 0.0
        return 0.0

    def _save(self, quiet_s: float, alone_s: float, *, saves: bool) -> None:
        """Count `quiet_s` of steps that only decode, and take `alone_s` each."""
        step_s = self._costs.step_s
        self._most_s = self._costs.most_saved_s(alone_s, step_s) if saves else 0.0
        self._s = min(self._s + quiet_s * max(step_s / alone_s - 1, 0.0), self._most_s)
        if alone_s >= step_s:  # these decodes can make up for nothing
            self._s = max(self._s, 0.0)

    def waits(self, view: BatchView, budget: int, now_s: float) -> bool:
        """Tell whether to save on for a larger chunk than `budget` tokens.

        Never for longer than the prompts of one chunk may take to come together: what is saved may not grow as the
        profile says.
        """
        if not self._should_wait(view, budget):
            self._waits_since_s = None
            return False
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        return now_s - self._waits_since_s <= self._costs.gather_s

    def _should_wait(self, view: BatchView, budget: int) -> bool:
        if self._pace is None or not self._pace.saves or self._s >= 0.99 * self._most_s:
            return False
        enough = min(sum(prefill.remaining_tokens for prefill in view.queue), self._pace.most)
        if budget >= enough:
            return False
        return budget <= 0 or self._speed(view, budget) < WORTH * self._speed(view, enough)

    def _speed(self, view: BatchView, tokens: int) -> float:
        """Return the prompt tokens for each second that they add to the step."""
        done = view.queue[0].done_tokens or 0
        return tokens / max(self._costs.added_s(tokens, done, view.decode_requests), 1e-9)

    def composed(self, plan: BatchPlan, predicted_s: float, now_s: float) -> None:
        """Note what the step that was composed will take. One that is never run counts for twice that time."""
        if self._pace is not None and plan.prefill_tokens:
            spends_s = max(predicted_s - self._costs.step_s, 0.0)
            self._ahead.append(Ahead(frozenset(plan.prefill_tokens), now_s + 2 * predicted_s, spends_s))

    def _keep(self, counts: Callable[[Ahead], bool]) -> None:
        if self._ahead:
            self._ahead = deque(filter(counts, self._ahead), MOST_AHEAD)

    def after(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Count a step that was reported."""
        if not math.isfinite(took_s):
            return
        self._reported_s += took_s
        if not plan.prefill_tokens:
            self.composes_ahead = True
        else:
            self._keep(lambda ahead: ahead.requests.isdisjoint(plan.prefill_tokens))
        if view.decode_requests > 0:
            step_s = self._costs.step_s
            self._s += step_s - took_s
            if self._s < 0:
                self._s = min(max(self._s + EXACT * step_s, -MOST_OWED * step_s), 0.0)
