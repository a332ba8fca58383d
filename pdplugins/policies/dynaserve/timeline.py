"""The execution predictor (section 4.1): what one worker was given, and when it will have done it."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque

from pdplugins.policies.dynaserve.passes import PassCosts
from pdplugins.policies.dynaserve.play import LEAST_SHARE, Leg, Play

DECODES = 0.15
"""Decodes are corrected when a report differs from the prediction by over this share of them, and by over three."""


class Timeline:
    """Follows the work of one worker. All times are absolute, in seconds."""

    def __init__(self, costs: PassCosts) -> None:
        self._costs = costs
        self._now_s = 0.0
        self._pass = 0.0
        """Passes with decodes until now."""
        self._prompts: deque[Leg] = deque()
        self._prompts_s = 0.0
        """Seconds that they add to passes."""
        self._decodes: list[tuple[float, float]] = []
        """Sorted: the pass after which a decode ends, and its context less the number of the pass."""
        self._offset = 0.0
        """Sum of the second."""
        self._later: list[Leg] = []
        """Micro-requests that will arrive, in that order."""
        self._head_s = 0.0
        """When the first prompt began."""
        self._play = Play(costs, 0.0, 0.0, (), 0.0, (), ())
        self._more_s, self._more = 0.0, 0
        """By how much the waiting prompts and the decodes differ from the prediction, as the worker reported last."""
        self._usual = 0
        """Context of a decode that nobody has told of."""
        self.kv_tokens = 0.0
        """KV cache that all work here needs when it ends, as if none were freed until then."""

    @property
    def batch(self) -> int:
        """Decodes now."""
        return len(self._decodes)

    @property
    def context_tokens(self) -> float:
        """Context of the decodes now."""
        return self._offset + self._pass * len(self._decodes)

    @property
    def finish_s(self) -> float:
        """When all work is done, now at the earliest: T of Algorithm 1."""
        return max(self._play.finish()[0], self._now_s) + self._more_s

    def end_s(self, leg: Leg) -> float:
        """Return when `leg` is predicted to end."""
        return self._play.end_s(leg)

    def done_s(self, prompt_s: float, ready_s: float) -> float:
        """Return when a prompt that arrives at `ready_s` would be done."""
        costs = self._costs
        start_s, batch, context_tokens = self._after_prompts()
        if not batch:
            return max(start_s + self._more_s * costs.alone, ready_s) + prompt_s * costs.alone
        alone_s = costs.decode_s(batch, context_tokens)
        share = max(1 - alone_s / costs.slo_s, LEAST_SHARE)
        done_s = max(start_s + self._more_s / share, ready_s)
        return done_s + prompt_s / share + alone_s / 2 if prompt_s else done_s  # it waits for the step in progress

    def finish_with_s(self, leg: Leg) -> float:
        """Return when all work would be done with `leg` besides. Sets when its prompt would be done."""
        costs = self._costs
        leg.done_s = self.done_s(leg.prompt_s, leg.ready_s)
        finish_s = max(self.finish_s + leg.prompt_s, leg.done_s)
        if not leg.tokens:
            return finish_s
        _, batch, context_tokens = self._after_prompts()
        shared = min(leg.tokens, max(self._play.finish()[1] - self._play.pass_at(leg.done_s), 0.0))
        if shared and batch:
            more_s = costs.decode_s(batch + 1, context_tokens + leg.context + shared / 2)
            finish_s += shared * (more_s - costs.decode_s(batch, context_tokens))
        return finish_s + (leg.tokens - shared) * costs.decode_s(1, leg.context + (shared + leg.tokens) / 2)

    def _after_prompts(self) -> tuple[float, int, float]:
        """Return when no prompt waits any more, with the decodes and their context then."""
        clear_s, batch, context_tokens = self._play.clear
        if clear_s <= self._now_s:
            clear_s, batch, context_tokens = self._now_s, len(self._decodes), self.context_tokens
        if more := max(self._more, -batch):
            context_tokens += more * (context_tokens / batch if batch else self._usual)
        return clear_s, batch + more, context_tokens

    # --- what happens ----------------------------------------------------------------------------------------------

    def add(self, leg: Leg) -> None:
        """Add a micro-request."""
        self.kv_tokens += leg.context + leg.tokens
        if leg.ready_s > self._now_s:
            insort(self._later, leg, key=_ready)
        elif leg.prompt_s > 0:
            self._queue(leg, self._now_s)
        else:
            self._join(leg, self._pass)
        self._replay()

    def forget(self, leg: Leg) -> None:
        """Take back a micro-request that will not be done. What decodes is left to the reports of the worker."""
        if leg in self._later:
            self._later.remove(leg)
        elif leg in self._prompts:
            self._prompts.remove(leg)
            self._prompts_s = max(self._prompts_s - leg.prompt_s, 0.0)
        else:
            return
        self.kv_tokens -= leg.context + leg.tokens
        self._replay()

    def advance(self, now_s: float) -> None:
        """Go on to `now_s`, as predicted. A time that is no number, or none to come, changes nothing."""
        if not self._now_s < now_s < math.inf:
            return
        now, prompts, later = self._play.pass_at(now_s), self._prompts, self._later
        while later and later[0].ready_s <= now_s:
            leg = later.pop(0)
            if leg.prompt_s > 0:
                self._queue(leg, leg.ready_s)
            else:
                self._join(leg, leg.last_pass - leg.tokens)
        while prompts and self._play.done_s(prompts[0]) <= now_s:
            leg = prompts.popleft()
            self._prompts_s -= leg.prompt_s
            self._head_s = leg.done_s
            self._join(leg, leg.last_pass - leg.tokens)
        if prompts:
            self._prefill(now_s)
        decodes = self._decodes
        if decodes and decodes[0][0] <= now:
            self._drop(bisect_right(decodes, (now, math.inf)))
        self._now_s, self._pass = now_s, now

    def correct(self, waiting_s: float | None, decodes: float | None, unknown: Leg) -> None:
        """Follow a report of the worker where it differs from the prediction.

        :param waiting_s: seconds that all prompt tokens that wait here add to passes; None for not known.
        :param decodes: requests that decode here; None for not known.
        :param unknown: stands for each decode that should have ended.
        """
        self._more_s, self._more, self._usual = 0.0, 0, unknown.context
        if waiting_s is not None and abs(waiting_s - self._prompts_s) > self._costs.slo_s:
            self._more_s = waiting_s - self._prompts_s
        if decodes is None:
            return
        decodes = min(max(decodes, 0.0), self._costs.most_batch)
        more = decodes - len(self._decodes)
        if abs(more) > max(DECODES * decodes, 3):
            self._drop(int(max(-more, 0)))
            for _ in range(int(more)):
                self._join(unknown, self._pass)
                self.kv_tokens += unknown.context + unknown.tokens
            self._replay()
        else:
            self._more = round(more)

    def _queue(self, leg: Leg, at_s: float) -> None:
        if not self._prompts:
            self._head_s, self._prompts_s = at_s, 0.0
        self._prompts.append(leg)
        self._prompts_s += leg.prompt_s

    def _prefill(self, now_s: float) -> None:
        """Note what the prompts that run have done by `now_s`."""
        done_s, began_s = self._prompts[0].done_s, max(self._head_s, self._now_s)
        if began_s >= now_s:
            return
        did = (now_s - began_s) / (done_s - began_s)
        for leg in self._prompts:
            if leg.done_s > done_s:
                break
            self._prompts_s -= leg.prompt_s * did
            leg.prompt_s -= leg.prompt_s * did

    def _join(self, leg: Leg, after: float) -> None:
        """Let a micro-request decode from the pass `after` on. One that does not has left."""
        if leg.tokens:
            leg.last_pass = after + leg.tokens
            insort(self._decodes, (leg.last_pass, leg.context - after))
            self._offset += leg.context - after
        else:
            self.kv_tokens -= leg.context

    def _drop(self, count: int) -> None:
        """Drop the decodes that have ended."""
        gone = self._decodes[:count]
        del self._decodes[:count]
        offset = sum([offset for _, offset in gone])
        self._offset -= offset
        self.kv_tokens -= offset + sum([last for last, _ in gone])

    def _replay(self) -> None:
        """Play anew, as there is other work to do."""
        self._play = Play(self._costs, self._now_s, self._pass, self._decodes, self._offset, self._prompts, self._later)


def _ready(leg: Leg) -> float:
    return leg.ready_s
