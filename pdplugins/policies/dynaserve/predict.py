"""The execution predictor of the global scheduler (section 4.1): the time that a worker needs for its work.

The paper simulates virtual batches. Each pass takes a prompt chunk and one token of each decode, within the limits of
the hardware, until all work is done. The time of all passes has a closed form: each token costs what it adds to its
pass, and each pass reads the weights once. The phase that needs more passes decides how many there are. Prompts need
passes with chunks that just keep the TBT SLO. Decodes need batches as large as that SLO, KV cache and engine allow.

    time = prompt_s + decode_s + max(prompt_passes_s, decode_passes_s)

Where nothing decodes, no SLO limits the chunks. They are large then, and the weight reads of their passes are left out.
So a probe of the search costs a few table look-ups, however much work there is.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache, partial

from pdplugins.contracts.deployment import Deployment
from pdplugins.policies._common import largest_within
from pdplugins.policies.dynaserve.steps import shared_tp

CONTEXTS = tuple(64.0 * 1.25**power for power in range(37))
"""Contexts, 64 to about 200,000 tokens, at which the cost of a decode token is tabulated."""


@dataclass(slots=True)
class Work:
    """Work of one worker, in seconds of its time."""

    prompt_s: float = 0.0
    """Time that prompt tokens add to their passes."""
    decode_s: float = 0.0
    """Time that decode tokens add to their passes."""
    prompt_passes_s: float = 0.0
    """Weight reads of the passes that the prompts need."""
    decode_passes_s: float = 0.0
    """Weight reads of the passes that the decodes need."""

    def with_s(self, more: Work) -> float:
        """Return the seconds that this work and `more` take together."""
        prompt, decode = self.prompt_passes_s + more.prompt_passes_s, self.decode_passes_s + more.decode_passes_s
        added = self.prompt_s + self.decode_s + more.prompt_s + more.decode_s
        if not decode:
            return added
        return added + (prompt if prompt > decode else decode)

    def add(self, more: Work) -> None:
        """Add `more` to this work."""
        self.prompt_s += more.prompt_s
        self.decode_s += more.decode_s
        self.prompt_passes_s += more.prompt_passes_s
        self.decode_passes_s += more.decode_passes_s

    def scale(self, share: float) -> None:
        """Keep `share` of this work."""
        self.prompt_s *= share
        self.decode_s *= share
        self.prompt_passes_s *= share
        self.decode_passes_s *= share


NONE = Work()


class ExecutionPredictor:
    """Turns spans of tokens into work, by the profile. It assumes that all workers of the pool are equally fast."""

    def __init__(self, deployment: Deployment) -> None:
        perf, tp, slo_s = deployment.perf, shared_tp(deployment), deployment.slo.tpot_s
        self._prefill_s = lru_cache(4096)(partial(perf.prefill_s, tp=tp))
        self._weights_s = min(perf.prefill_s(0, tp), perf.decode_step_s(1, 0, deployment.decode_tp))
        chunk_tokens = largest_within(slo_s, 1 << 20, lambda tokens: perf.prefill_s(tokens, tp))
        self._pass_s = self._weights_s / max(chunk_tokens, 1)
        """Seconds of weight reads for one prompt token."""
        self._token_s = [self._full_batch(context, deployment) for context in CONTEXTS]
        """At each of CONTEXTS: seconds that one decode token adds, and its seconds of weight reads."""

    def _full_batch(self, context: float, deployment: Deployment) -> tuple[float, float]:
        perf, tp = deployment.perf, deployment.decode_tp
        kv_tokens = deployment.kv_tokens or perf.kv_capacity_tokens(tp)
        most = max(min(deployment.max_batch, int(kv_tokens / context)), 1)
        fits = largest_within(deployment.slo.tpot_s, most, lambda size: perf.decode_step_s(size, context, tp))
        batch = max(fits, 1)
        added_s = max(perf.decode_step_s(batch, context, tp) - self._weights_s, 0.0)
        return added_s / batch, self._weights_s / batch

    def span(self, prompt: int, start: int, end: int) -> Work:
        """Return the work of tokens [start, end) of a request whose first `prompt` tokens are its prompt."""
        work = Work()
        if start < prompt:
            stop = min(end, prompt)
            work.prompt_s = self._prompt_s(stop) - self._prompt_s(start)
            work.prompt_passes_s = (stop - start) * self._pass_s
            start = stop
        if start < end:
            added_s, reads_s = self._decode_token((start + end) / 2)
            work.decode_s = (end - start) * added_s
            work.decode_passes_s = (end - start) * reads_s
        return work

    def _prompt_s(self, tokens: int) -> float:
        return max(self._prefill_s(tokens) - self._weights_s, 0.0) if tokens else 0.0

    def _decode_token(self, context: float) -> tuple[float, float]:
        index = min(max(bisect_right(CONTEXTS, context) - 1, 0), len(CONTEXTS) - 2)
        start = CONTEXTS[index]
        share = (context - start) / (CONTEXTS[index + 1] - start)
        share = 0.0 if share < 0 else share
        (low, low_reads), (high, high_reads) = self._token_s[index], self._token_s[index + 1]
        return low + share * (high - low), low_reads + share * (high_reads - low_reads)
