"""What work costs: seconds of prefill, and the prefill that a worker does beside its decodes within the TPOT SLO."""

from __future__ import annotations

from pdplugins.contracts.batching import BatchView
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import WorkerView
from pdplugins.policies._common import largest_within
from pdplugins.policies.dynaserve.batching import Step
from pdplugins.policies.dynaserve.table import ProfileTable
from pdplugins.policies.fusion.config import FusionSettings

CONTEXT_CELL = 128
BATCH_CELL = 4


class Costs:
    """Costs on one worker that does both phases."""

    def __init__(self, settings: FusionSettings, deployment: Deployment) -> None:
        self.step_s = deployment.slo.tpot_s * settings.tpot_share
        self.table = ProfileTable(deployment, settings.learning_rate)
        self._most = settings.step_tokens
        self._chunk = settings.prefill_only_tokens
        self._attention_at = self._chunk // 2
        self._rates: dict[tuple[int, int], float] = {}
        self.transfer_s = deployment.perf.transfer_s

    def prefill_s(self, tokens: int, done: int = 0) -> float:
        """Seconds that the rest of a prompt takes on a worker that does nothing else, chunk by chunk."""
        steps, left, total_s = self.table.steps, tokens - done, 0.0
        if left <= self._chunk:
            return steps.prefill([(left, done)]) if left > 0 else 0.0
        whole, rest = divmod(left, self._chunk)
        base_s = steps.prefill([(self._chunk, 0)]) * whole
        total_s = base_s + steps.attending(left, done) - whole * steps.attending(self._chunk, 0)
        return max(total_s, base_s) + (steps.prefill([(rest, 0)]) if rest else 0.0)

    def beside(self, decodes: int, context: int) -> float:
        """Prompt tokens a second that a worker prefills beside `decodes` requests of `context` tokens in all."""
        key = -(-decodes // BATCH_CELL), context // max(decodes, 1) // CONTEXT_CELL
        if (rate := self._rates.get(key)) is None:
            rate = self._rates[key] = self._beside(key[0] * BATCH_CELL, key[1] * CONTEXT_CELL)
        return rate

    def _beside(self, decodes: int, mean_context: int) -> float:
        if not decodes:
            return self._chunk / self.prefill_s(self._chunk)
        view = BatchView((), decodes, decodes * mean_context)
        tokens = Step(self.table, view, self.step_s).max_prefill_allowed(self._attention_at, self._most)
        return max(tokens / self.step_s, 1e-3)

    def most_decodes(self, mean_context: float, most: int) -> int:
        """Return the largest number of decodes whose step keeps the TPOT SLO; at least one."""
        return max(largest_within(self.step_s, most, lambda n: self.decode_s(n, mean_context)), 1)

    def decode_s(self, decodes: int, mean_context: float) -> float:
        """Seconds of a step that only decodes."""
        return self.table.decode_s(decodes, mean_context)


def decodes_of(worker: WorkerView) -> tuple[int, int]:
    """Return how many requests decode on a worker, and their context in all, as far as the host says."""
    load = worker.load
    requests = load.running_requests if load.decode_requests is None else load.decode_requests
    context = load.running_tokens if load.decode_tokens is None else load.decode_tokens
    return int(requests), int(context)
