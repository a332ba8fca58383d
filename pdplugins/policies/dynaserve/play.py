"""The virtual passes of one worker (section 4.1).

Each pass gives every decode one token. While prompts wait, it also has as many of their tokens as keep the SLO
(Algorithm 2), first come, first served. Where nothing decodes, prompts run one after the other. Between two events (a
prompt is done, a decode ends, a micro-request arrives) only the context changes, by one token for each decode and pass.
So the time between events has a closed form, and no loop runs over tokens:

* no prompt waits: a pass takes what its decodes take at their mean context;
* prompts wait: a pass takes the SLO, and the decodes leave the rest of it to the prompts.

A decode that joins after pass k with n tokens ends after pass k + n, whatever else the worker does. So the decodes are
a list sorted by the pass after which they end, and each one's context is the number of the pass plus a constant.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdplugins.policies.dynaserve.passes import PassCosts

PIECES = 8
"""Decodes that end one after the other are taken together where there are more, so that few pieces reach far."""
SINGLE_PROMPTS = 16
"""Prompts are taken together where there are more."""
SHORTEST_S = 1e-6
"""Shortest pass, where a profile has decodes for nothing."""
LEAST_SHARE = 0.02
"""Least share of a pass that prompts get in a prediction, so that it ends where decodes alone break the SLO."""


@dataclass(slots=True, eq=False)
class Leg:
    """One micro-request on one worker: its part of the prompt, then the tokens that it decodes."""

    prompt_s: float
    """Seconds that its prompt tokens still add to passes."""
    tokens: int
    """Tokens to decode."""
    context: int
    """Tokens in the KV cache when it begins to decode."""
    ready_s: float
    """When it arrives on the worker."""
    done_s: float = math.inf
    """Predicted: when its prompt is done; infinite as long as nobody has asked."""
    last_pass: float = 0.0
    """Predicted: the pass after which its last token is decoded."""


class Play:
    """The passes from now on, played piece by piece as far as someone asks; a piece ends with the next event."""

    def __init__(
        self,
        costs: PassCosts,
        now_s: float,
        now: float,
        decodes: Sequence[tuple[float, float]],
        offset: float,
        prompts: Iterable[Leg],
        later: Sequence[Leg],
    ) -> None:
        self._costs = costs
        self._time_s, self._pass = now_s, now
        self._decodes, self._offset = list(decodes), offset
        self._first = 0
        """Index of the decode that ends next."""
        self._waiting, self._later, self._coming = deque(prompts), tuple(later), 0
        for leg in self._later:
            leg.done_s = math.inf  # an earlier play may have set it
        self._together = max(len(self._waiting) // SINGLE_PROMPTS, 1)
        self._head: list[Leg] = []
        """Prompts that run next, taken together."""
        self._left_s = 0.0
        """Seconds that are left of them."""
        self._times, self._passes = [now_s], [now]
        """Passes so far at each time."""
        while self._waiting or self._head:
            self._piece()
        batch = len(self._decodes) - self._first
        self.clear = (self._time_s, batch, self._offset + self._pass * batch)
        """When the prompts that wait now are done, with the decodes and their context at that time."""

    def pass_at(self, time_s: float) -> float:
        """Return the number of passes by `time_s`."""
        while self._time_s <= time_s and self._piece():
            pass
        return _between(bisect_right(self._times, time_s), time_s, self._times, self._passes)

    def done_s(self, leg: Leg) -> float:
        """Return when the prompt of `leg` is done."""
        while leg.done_s == math.inf and self._piece():
            pass
        return leg.done_s

    def end_s(self, leg: Leg) -> float:
        """Return when the last token of `leg` comes."""
        done_s = self.done_s(leg)
        if not leg.tokens:
            return done_s
        while self._pass < leg.last_pass and self._piece():
            pass
        return _between(bisect_left(self._passes, leg.last_pass), leg.last_pass, self._passes, self._times)

    def finish(self) -> tuple[float, float]:
        """Return when all work is done, and the number of passes by then."""
        while self._piece():
            pass
        return self._time_s, self._pass

    def _piece(self) -> bool:
        """Play one more piece. Return False when nothing is left to do."""
        ready_s = self._arrivals()
        if not self._head and self._waiting:
            self._head = [self._waiting.popleft() for _ in range(min(self._together, len(self._waiting)))]
            self._left_s = sum([leg.prompt_s for leg in self._head])
        batch = len(self._decodes) - self._first
        if self._head and not (batch and self._full(batch)):
            self._mixed(batch, ready_s)
        elif batch:
            self._decode(batch, ready_s)
        elif ready_s < math.inf:
            self._time_s = ready_s
        else:
            return False
        self._times.append(self._time_s)
        self._passes.append(self._pass)
        return True

    def _arrivals(self) -> float:
        """Take in the micro-requests that have arrived, and return when the next one does."""
        while self._coming < len(self._later):
            leg = self._later[self._coming]
            if leg.ready_s > self._time_s:
                return leg.ready_s
            self._coming += 1
            if leg.prompt_s > 0:
                self._waiting.append(leg)
            else:
                self._join(leg)
        return math.inf

    def _full(self, batch: int) -> bool:
        """Return whether the next prompts have to wait for a place among the decodes, or for KV cache."""
        need = self._head[0].context + self._offset + batch * self._pass
        return batch >= self._costs.most_batch or need > self._costs.kv_tokens

    def _mixed(self, batch: int, ready_s: float) -> None:
        """Play until the next prompts are done, a decode ends, or `ready_s`."""
        costs, until_s = self._costs, ready_s - self._time_s
        if batch:
            alone_s = costs.decode_s(batch, self._offset + batch * self._pass)
            pass_s = max(costs.slo_s, alone_s)
            share = max(1 - alone_s / costs.slo_s, LEAST_SHARE)
            took_s = self._go(min(self._left_s / share, until_s) / pass_s) * pass_s
        else:
            share = 1 / costs.alone
            took_s = min(self._left_s / share, until_s)
        self._time_s += took_s
        self._left_s -= took_s * share
        if self._left_s <= 1e-9:
            for leg in self._head:
                self._join(leg)
            self._head = []

    def _decode(self, batch: int, ready_s: float) -> None:
        """Play until decodes end, or `ready_s`."""
        together = max(batch // PIECES, 1)
        mean = batch - (together - 1) // 2
        most = self._decodes[self._first + together - 1][0] - self._pass
        pass_s = max(self._costs.decode_s(mean, mean * (self._offset / batch + self._pass + most / 2)), SHORTEST_S)
        self._time_s += self._go((ready_s - self._time_s) / pass_s) * pass_s

    def _go(self, passes: float) -> float:
        """Go on by `passes`, at most until the next decodes end. Return by how many it was."""
        stop = self._first + max((len(self._decodes) - self._first) // PIECES, 1)
        last = self._decodes[stop - 1][0]
        if passes < last - self._pass:
            self._pass += passes
            return passes
        passes, self._pass = last - self._pass, last
        self._offset -= sum([offset for _, offset in self._decodes[self._first : stop]])
        self._first = stop
        return passes

    def _join(self, leg: Leg) -> None:
        leg.done_s, leg.last_pass = self._time_s, self._pass + leg.tokens
        if leg.tokens:
            insort(self._decodes, (leg.last_pass, leg.context - self._pass), lo=self._first)
            self._offset += leg.context - self._pass


def _between(index: int, at: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the value at `at` of the line through `xs` and `ys`; `index` is the first of `xs` beyond it."""
    if index >= len(xs):
        return ys[-1]
    low, high = xs[index - 1 if index else 0], xs[index]
    if high <= low:
        return ys[index]
    return ys[index - 1] + (at - low) / (high - low) * (ys[index] - ys[index - 1])
