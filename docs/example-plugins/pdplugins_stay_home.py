"""A router that keeps each session on one worker, and spreads new sessions over the least loaded ones."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

import pdplugins
from pdplugins.types import Deployment, Placement, Register, Request, Role, WorkerView


class StayHomeSettings(BaseModel, extra="forbid"):
    """The keys that users may write under ``router:``, beside ``name: stay_home``."""

    longest_move_tokens: int = Field(8192, ge=0, description="prompts up to this length may leave a busy home")


class StayHomeRouter:
    """Prefills where the fewest prompt tokens wait, decodes where the session's KV cache is."""

    def __init__(self, settings: StayHomeSettings, deployment: Deployment) -> None:
        self._longest = settings.longest_move_tokens
        self._ttft_s = deployment.slo.ttft_s

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request: on the worker that holds its session, or on the two that have the least to do."""
        home = next((worker for worker in workers if worker.id == request.bound_worker), None)
        if home is not None and not self._too_slow(home, request):
            return Placement(home.id, home.id, request.prompt_tokens, "the session's KV cache is here")
        first = min(_of(Role.PREFILL, workers), key=lambda worker: worker.load.queued_tokens)
        second = min(_of(Role.DECODE, workers), key=lambda worker: worker.load.running_requests)
        return Placement(first.id, second.id, request.prompt_tokens, "no home, or it is too busy")

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return `placement`: nothing was left open."""
        return placement

    def _too_slow(self, home: WorkerView, request: Request) -> bool:
        """Whether prompts have waited longer than the SLO there, and this one is cheap to compute elsewhere."""
        recent_s = home.load.recent_ttft_s  # None where the host does not say
        return recent_s is not None and recent_s > self._ttft_s and request.prompt_tokens <= self._longest


def _of(role: Role, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
    """Return the workers of `role`; all of them where there is none."""
    return [worker for worker in workers if worker.role is role] or workers


@pdplugins.hookimpl
def pd_register_routers(register: Register) -> None:
    """Make ``router: stay_home`` a valid choice."""
    register("stay_home", StayHomeRouter, StayHomeSettings)
