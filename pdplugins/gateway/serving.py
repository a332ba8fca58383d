"""What all requests share, and each one from its arrival to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from pdplugins.contracts.router import Ending, Outcome
from pdplugins.gateway.account import Account
from pdplugins.gateway.admission import Admission, overloaded
from pdplugins.gateway.engine import Call, Executor, Started
from pdplugins.gateway.errors import FlowRefusedError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.prompts import Lengths
from pdplugins.gateway.queue import AdmissionQueue
from pdplugins.gateway.randomness import fresh_name
from pdplugins.gateway.retry import RetryBudget
from pdplugins.gateway.routing import Routing
from pdplugins.gateway.sessions import Sessions
from pdplugins.gateway.task import RequestTask
from pdplugins.gateway.workers import Workers

_KV_CAPACITY = attrgetter("kv_capacity_tokens")


class Serving:
    """What all requests share."""

    def __init__(
        self,
        routing: Routing,
        backends: Workers[Any],
        executor: Executor[Any, Any],
        admission: Admission,
        metrics: GatewayMetrics,
        queue: AdmissionQueue | None = None,
    ) -> None:
        self.routing = routing
        self.queue = queue
        """Where requests wait before the workers; None: they do not wait."""
        self.backends = backends
        self.executor = executor
        self.settings = admission.settings
        self.metrics = metrics
        self.sessions = Sessions(self.settings.max_sessions)
        backends.on_lost = self.sessions.lost
        self.lengths = Lengths()
        self.retries = RetryBudget(self.settings)
        self.admission = admission
        self.on_end: Callable[[Outcome], None] | None = None
        """Hears how each request ended."""
        self._ids: set[str] = set()

    def prompt_tokens(self, call: Call) -> int:
        """Return the length of the prompt, or of all prompts of a batch.

        That of text is a guess, which a client can make as long as it likes with bytes that are no prompt. So none is
        longer than the largest KV cache holds: policies may let pass first what no worker can serve.
        """
        tokens = self.lengths.prompt_tokens(call)
        if call.prompt is not None and not isinstance(call.prompt, str):
            return tokens
        held = max(map(_KV_CAPACITY, self.backends.views.values()), default=0)
        return min(tokens, held - 1) if held > 1 else tokens

    async def serve(self, call: Call, client: Started, account: Account | None = None) -> None:
        """Answer one request. Raises GatewayError, RefusedError, or TimeoutError when its time is over.

        The router, where it was asked, and the flow policy hear of its end exactly once, whatever it is; so does
        `account`, where there is one.
        """
        self.routing.check(call)
        name = call.rid if call.rid not in self._ids else fresh_name()  # clients may give a name twice
        self._ids.add(name)
        try:
            task = RequestTask(self, name, call, client)
        except BaseException:  # a field that it looks at cannot be read
            self._ids.discard(name)
            raise
        ending = Ending.FAILED
        try:
            with self.admission.serving.within(self.settings.timeout_s):
                if self.queue is not None:
                    await self.worker_there()
                    await self.queue.admit(task.arrival)
                await task.run()
            ending = Ending.FINISHED
        except FlowRefusedError:
            ending = Ending.REFUSED
            raise
        except (asyncio.CancelledError, ConnectionResetError):
            ending = Ending.CANCELLED
            raise
        except TimeoutError:
            ending = Ending.CANCELLED if self.admission.closed else Ending.FAILED
            raise
        finally:
            self._ids.discard(name)
            outcome = Outcome(ending, task.output_tokens, *task.latencies())
            self.metrics.ended(outcome, task.age_s, task.prompt_tokens)
            if account is not None:
                account.end(outcome, task.prompt_tokens, task.workers)
            self.routing.ended(task.arrival, outcome)
            if self.queue is not None:
                self.queue.ended(task.arrival, outcome)
            if self.on_end is not None:
                self.on_end(outcome)

    async def worker_there(self) -> None:
        """Return once the workers can serve a request. Raises GatewayError when that takes too long."""
        if self.backends.serves.is_set():
            return
        with self.admission.waiting():
            try:
                async with asyncio.timeout(self.settings.worker_wait_s):
                    await self.backends.serves.wait()
            except TimeoutError:
                raise overloaded("no worker is there") from None
