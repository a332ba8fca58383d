"""What work costs: seconds of prefill, and the prefill that a worker does beside its decodes within the TPOT SLO."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from pdplugins.contracts.batching import BatchView
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import WorkerView
from pdplugins.policies._common import largest_within, tightest_tpot_s
from pdplugins.policies.dynaserve.batching import Step
from pdplugins.policies.dynaserve.steps import Grid
from pdplugins.policies.dynaserve.table import BOUND, ProfileTable
from pdplugins.policies.fusion.config import FusionSettings

STEP_WEIGHT = 0.01
"""Of one measured step in the ratio of measured to modelled time."""
CONTEXT_CELL = 128
BATCH_CELL = 4
DONE_CELL = 4096
"""Rates are remembered by mean context, batch, and tokens of the prompt before a step, rounded down, up and down."""
MOST_CELLS = 65_536
CHUNKS = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Prompt tokens of a step without decodes that are tried."""
USUAL_CHUNK = 2048
"""Smaller ones are for several prompts where the TTFT is too short for this one."""
CHUNK_SHARE = 0.55
"""Part of the TTFT within which the pool plans that a step of several prompts may take, where nothing decodes. A prompt
that comes waits for half a step, and takes one. One that is longer is not cut: several steps would take it longer."""
LARGEST = 1e9
"""Larger loads are no loads: an engine that reports one is taken for an idle one."""
MOST_TPOT_S = 1e3
"""A larger TPOT of a request of its own asks for nothing."""
PAYS = 1.25
"""Time is saved for larger chunks where these are prefilled this many times as fast as what fits into each step."""
LONG, LONG_PAYS = 24.0, 0.9
"""The same where short answers are known to have so many tokens: then a larger chunk delays few of them beyond their
TPOT, and its prompts have their first token after one step instead of several."""
GATHER_SHARE = 0.5
"""Part of the TTFT SLO in which the prompts of one larger chunk come together."""
USUAL = -1
"""Stands for the TPOT of the deployment."""
PaceKey = tuple[int, int, int, int, float, tuple[float, float]]
"""Batch, context and tokens before the step in cells, TPOT in milliseconds, slowness, and what decodes may save."""
LEAST_RATE = 1e-3
"""Tokens a second of a worker whose decodes leave nothing of the step."""


class Costs:
    """Costs on one worker that does both phases."""

    def __init__(self, settings: FusionSettings, deployment: Deployment) -> None:
        self._tpot_s, self._tpot_share = deployment.slo.tpot_s, settings.tpot_share
        self.step_s = self._tpot_s * self._tpot_share
        self.due_s = deployment.slo.ttft_s * settings.ttft_share
        """Seconds within which the pool plans first tokens."""
        self.gather_s = GATHER_SHARE * deployment.slo.ttft_s
        """Seconds in which the prompts of one larger chunk come together."""
        self._saved_share = settings.saved_share
        self._answers = float(settings.prior_tokens), PAYS
        """Length of short answers in tokens, and what pays beside them."""
        self.transfer_s = deployment.perf.transfer_s
        self._table = ProfileTable(deployment, settings.learning_rate)
        self.most_tokens = settings.step_tokens
        """Prompt tokens of one step at most."""
        asked = settings.prefill_only_tokens and min(settings.prefill_only_tokens, settings.step_tokens)
        self.longest = asked or self._fastest()
        """Prompt tokens of one prompt in a step without decodes."""
        self.chunk = asked or self._fastest(CHUNK_SHARE * self.due_s)
        """Prompt tokens of several prompts in a step without decodes."""
        self._longest_s = self._table.steps.prefill([(self.longest, 0)])
        self._longest_attending_s = self._table.steps.attending(self.longest, 0)
        self.whole_s = Grid(lambda tokens: self.prefill_s(int(tokens)))
        """Seconds of a prompt of which nothing is done: `prefill_s`, cheap enough for each of a hundred prompts."""
        self._paces: dict[PaceKey, WorkerPace] = {}
        self._ratios = {True: 1.0, False: 1.0}
        """Measured over modelled time of steps, with decodes and without."""
        self.alone = self.beside(0, 0)
        """Prompt tokens a second of a worker that only prefills."""

    def _fastest(self, within_s: float = math.inf) -> int:
        """Return the chunk that is prefilled at the most tokens a second, of those whose step takes so long at most.

        Dense models gain nothing beyond 2048 tokens, and the next prompt waits longer. Mixtures of experts read most of
        their weights in every step: DeepSeek R1 prefills a third faster in chunks of 8192 than of 2048.
        """
        sizes = sorted(size for size in {*CHUNKS, min(self.most_tokens, USUAL_CHUNK)} if size <= self.most_tokens)
        took_s = {size: self._table.steps.prefill([(size, 0)]) for size in sizes}
        within = [size for size in sizes if took_s[size] <= within_s] or sizes[:1]
        usual = [size for size in within if size >= USUAL_CHUNK] or within[-1:]
        return min(usual, key=lambda size: took_s[size] / size)

    def prefill_s(self, tokens: int, done: int = 0) -> float:
        """Return the seconds that the rest of a prompt takes on a worker that does nothing else, chunk by chunk."""
        steps, left = self._table.steps, tokens - done
        if left <= self.longest:
            return steps.prefill([(left, done)]) if left > 0 else 0.0
        whole, rest = divmod(left, self.longest)
        more_s = max(steps.attending(left, done) - whole * self._longest_attending_s, 0.0)
        return whole * self._longest_s + more_s + (steps.prefill([(rest, 0)]) if rest else 0.0)

    def tokens(self, prompt: int, done: int) -> float:
        """Return the prompt tokens that take as long as the rest of a prompt: attention makes those of long ones dear.

        What fits into one step counts as it is: beside decodes its step costs nothing more.
        """
        left = prompt - done
        return left if left <= self.chunk else self.prefill_s(prompt, done) * self.alone

    def share_s(self, tokens: int, done: int = 0) -> float:
        """Return the seconds of the rest of one prompt, of which many wait: as many share a step as fit.

        :param done: tokens before them, which are fetched from the worker that has them.
        """
        together = self.chunk // tokens
        if together > 1:
            own_s = self._table.steps.prefill([(tokens, done)] * together) / together
        else:
            own_s = self.prefill_s(done + tokens, done)
        return own_s + self.transfer_s(done) if done else own_s

    def measured(self, modelled_s: float, took_s: float, *, decodes: bool) -> None:
        """Learn from a step how long such steps take. A time that is not positive and finite is skipped."""
        if math.isfinite(took_s) and took_s > 0 and modelled_s > 0:
            ratio = min(max(took_s / modelled_s, 1 / BOUND), BOUND)
            self._ratios[decodes] += STEP_WEIGHT * (ratio - self._ratios[decodes])

    def ratio(self, *, decodes: bool) -> float:
        """Return measured over modelled time of steps with decodes, or without."""
        return self._ratios[decodes]

    def added_s(self, tokens: int, done: int, decodes: int) -> float:
        """Return the seconds that `tokens` of a prompt, with `done` before them, add to a step of `decodes`."""
        return self._table.steps.added(tokens, done, 0, decodes)

    def decode_s(self, decodes: int, mean_context: float) -> float:
        """Return the seconds of a step that only decodes."""
        return self._table.decode_s(decodes, mean_context)

    def most_decodes(self, mean_context: float, most: int, slow: float = 1.0) -> int:
        """Return the largest number of decodes whose step, `slow` times as long, keeps the TPOT SLO; at least one."""
        return max(largest_within(self.step_s / slow, most, lambda n: self.decode_s(n, mean_context)), 1)

    def tightest_s(self, own: Sequence[float], decodes: int, context: int) -> float:
        """Return the tightest TPOT of `decodes` requests of `context` in all; some ask for `own`, ascending."""
        alone_s = self.decode_s(decodes, context / decodes) if decodes else 0.0
        least_s = alone_s / self._tpot_share
        first = bisect_left(own, least_s)
        # The tightest that can be kept stands for all of them: there may be hundreds.
        return tightest_tpot_s(own[first : first + 1], decodes - len(own) + 1, self._tpot_s, least_s)

    def limit_s(self, tpot_s: float | None) -> float:
        """Return the seconds that a step may take beside this TPOT; None for that of the deployment."""
        return self.step_s if tpot_s is None else tpot_s * self._tpot_share

    def beside(self, decodes: int, context: int, tpot_s: float | None = None, slow: float = 1.0) -> float:
        """Return the prompt tokens a second that a worker prefills beside `decodes` requests of `context` in all.

        :param tpot_s: their tightest TPOT, which is rounded down to milliseconds; None for that of the deployment.
        :param slow: how many times as long as the profile says the worker's steps take. So many more tokens a second
            would fit into a TPOT that is so much longer.
        """
        return self.pace(decodes, context, tpot_s, slow).rate

    def pace(
        self, decodes: int, context: int, tpot_s: float | None = None, slow: float = 1.0, done: int = 0
    ) -> WorkerPace:
        """Return how fast a worker prefills beside its decodes. The parameters are those of `beside`.

        :param done: tokens of the prompt before those of a step. To attend to many takes most of a small step.
        """
        batch, cell = -(-decodes // BATCH_CELL), context // max(decodes, 1) // CONTEXT_CELL
        ms = USUAL if tpot_s is None else int(min(tpot_s, MOST_TPOT_S) * 1e3)
        key = batch, cell, done // DONE_CELL, ms, slow, self._answers
        return self._paces.get(key) or self._new_pace(key)

    def _new_pace(self, key: PaceKey) -> WorkerPace:
        batch, cell, done, ms, slow, _ = key
        if len(self._paces) >= MOST_CELLS:
            self._paces.clear()
        step_s = self.limit_s(None if ms == USUAL else ms / 1e3) / slow
        rate, most, took_s, saves = self._beside(
            batch * BATCH_CELL, cell * CONTEXT_CELL, step_s, done * DONE_CELL or self.chunk // 2
        )
        pace = self._paces[key] = WorkerPace(max(rate, LEAST_RATE) / slow, most, took_s * slow, saves)
        return pace

    def answers(self, osl: float) -> None:
        """Take the length of short answers in tokens: a part of it bounds what decodes may save."""
        osl = 2 ** (round(4 * math.log2(max(osl, 1.0))) / 4)
        self._answers = osl, LONG_PAYS if osl >= LONG else PAYS

    def pays(self, averaged: float, within: float) -> bool:
        """Tell whether to save time: `averaged` and `within` are the prompt tokens a second with it and without."""
        return averaged >= self._answers[1] * within

    def most_saved_s(self, alone_s: float, target_s: float) -> float:
        """Return the most seconds that decodes may have saved: what they save in a part of a short answer.

        :param alone_s: seconds of their step without prompts.
        :param target_s: seconds that a step may take in the mean.
        """
        return self._saved_share * self._answers[0] * max(target_s - alone_s, 0.0)

    def gathered_s(self, alone_s: float, target_s: float) -> float:
        """Return the seconds that decodes save for one chunk while its prompts come together."""
        if alone_s >= target_s:
            return 0.0
        return min(self.most_saved_s(alone_s, target_s), self.gather_s * (1 - alone_s / target_s))

    def averaged(self, tokens: float, alone_s: float, took_s: float, target_s: float) -> float:
        """Return the prompt tokens a second of chunks in steps of `took_s`, with saving steps between them."""
        return tokens * (target_s - alone_s) / max((took_s - alone_s) * target_s, 1e-12)

    def _beside(self, decodes: int, mean_context: int, step_s: float, done: int) -> tuple[float, int, float, bool]:
        """Return tokens a second, the largest chunk, seconds of its step, and whether time is saved for it."""
        if not decodes:
            took_s = max(self.prefill_s(self.chunk), 1e-9)
            return self.chunk / took_s, self.chunk, took_s, False
        step = Step(self._table, BatchView((), decodes, decodes * mean_context), step_s)
        alone_s = step.predicted_s()

        def largest(saved_s: float) -> int:
            step.slo_s = step_s + saved_s
            return step.max_prefill_allowed(done, self.most_tokens)

        def takes_s(tokens: int) -> float:
            return alone_s + self._table.steps.added(tokens, done, 0, decodes)

        within = largest(0.0)
        rate = within / max(step_s, 1e-9)
        gathered_s = self.gathered_s(alone_s, step_s)
        if gathered_s and within < self.most_tokens:
            took_s = takes_s(tokens := largest(gathered_s))
            averaged = self.averaged(tokens, alone_s, took_s, step_s)
            if took_s > step_s and self.pays(averaged, rate):
                most = largest(self.most_saved_s(alone_s, step_s))
                return averaged, most, takes_s(most), True
        return rate, within, step_s, False


class WorkerPace(NamedTuple):
    """How fast a worker prefills beside its decodes."""

    rate: float
    """Prompt tokens a second, in the mean over many steps."""
    most: int
    """Prompt tokens of its largest step."""
    step_s: float
    """Seconds of that step."""
    saves: bool
    """Whether decodes save time for such steps: see `pdplugins.policies.fusion.saved`."""

    def takes_s(self, tokens: float) -> float:
        """Return the seconds until so many prompt tokens are done."""
        if tokens <= self.most:
            return min(tokens / self.rate, self.step_s)
        return self.step_s + (tokens - self.most) / self.rate


def decodes_of(worker: WorkerView) -> tuple[int, int]:
    """Return how many requests decode on a worker, and their context in all, as far as the host says."""
    load = worker.load
    requests, context = load.decode_requests, load.decode_tokens
    if requests is None:
        requests = load.running_requests
    if context is None:
        context = load.running_tokens
    return int(requests) if 0 <= requests <= LARGEST else 0, int(context) if 0 <= context <= LARGEST else 0


def ahead_tokens(worker: WorkerView) -> float:
    """Return the prompt tokens that wait or run on a worker."""
    queued, running = worker.load.queued_tokens, worker.load.prefill_tokens
    ahead = queued if 0 <= queued <= LARGEST else 0.0
    return ahead + running if running is not None and 0 <= running <= LARGEST else ahead
