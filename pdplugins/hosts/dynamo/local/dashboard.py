"""What the dashboard of ``dynamo serve`` shows: the same as its screen, over the last minutes."""

from __future__ import annotations

from pdplugins.contracts.request import Slo
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.local.status import PoolStatus, Snapshot
from pdplugins.report.address import Address
from pdplugins.report.live import Gauge, Live, Now, by_role
from pdplugins.report.server import Dashboard
from pdplugins.results import Scaling


class Board:
    """The dashboard of one stack. It learns from what the screen shows, and nothing else."""

    def __init__(self, options: Options, slo: Slo, address: Address) -> None:
        self._options = options
        self._slo = slo
        self.live = Live()
        self._dashboard = Dashboard(self.live, address)
        self._reason = ""
        self._changed: Scaling | None = None
        self._changes = 0

    @property
    def url(self) -> str:
        """Its address, once it has been started."""
        return self._dashboard.url

    async def start(self) -> None:
        """Listen. Raises HostError when the port cannot be had."""
        await self._dashboard.start()

    async def stop(self) -> None:
        """Close all connections."""
        await self._dashboard.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Take in how things are now."""
        changed = snapshot.changed
        if changed is not None and changed is not self._changed:
            self._changed, self._changes = changed, self._changes + 1
            self.live.decided(changed.at_s, f"to {changed.prefill}P{changed.decode}D", changed.reason)
        elif snapshot.reason and snapshot.reason != self._reason:
            wanted = f"{snapshot.prefill.wanted}P{snapshot.decode.wanted}D"
            self.live.decided(snapshot.elapsed_s, f"keeps {wanted}", snapshot.reason)
        self._reason = snapshot.reason
        self.live.show(snapshot.elapsed_s, self._now(snapshot))

    def _now(self, snapshot: Snapshot) -> Now:
        pulse, options = snapshot.pulse, self._options
        config = options.config
        name = config.planner.name if config.planner else "no planner"
        return Now(
            f"{name}: {snapshot.slo(self._slo)}",
            lines=[
                f"Planner {snapshot.planner}; forecast: {snapshot.forecast()}; last change: {snapshot.last_change()}"
            ],
            facts={
                "requests/s": _digits(pulse.requests_per_s, 1),
                "in flight": _digits(pulse.in_flight),
                "queued": _digits(pulse.queued),
                "TTFT mean, s": _digits(pulse.ttft_s, 3),
                "TPOT mean, ms": _digits(_ms(pulse.tpot_s), 1),
                "errors": pulse.errors,
                "GPUs held": f"{snapshot.gpus_held} of {snapshot.gpu_budget}",
                "GPU-hours": f"{snapshot.gpu_hours:.3f}",
                "changes of the pools": self._changes,
            },
            gauges=self._gauges(snapshot),
            workers=[(one["name"], one["phase"], one["pid"]) for one in snapshot.workers],
            worker_titles=("worker", "state", "process"),
            settings={
                "model": options.model,
                "endpoint": f"{options.url}/v1",
                "profile": config.deployment.profile,
                "SLO": f"TTFT {self._slo.ttft_s:g} s, TPOT {self._slo.tpot_s:g} s",
                "command": options.command,
            },
        )

    def _gauges(self, snapshot: Snapshot) -> list[Gauge]:
        pulse, prefill, decode = snapshot.pulse, snapshot.prefill, snapshot.decode
        met = {"TTFT": _percent(pulse.ttft_attainment), "TPOT": _percent(pulse.tpot_attainment)}
        if snapshot.total is not None:
            met = {"both, of the replay so far": _percent(snapshot.attainment)}
        tpot = Gauge("Time per output token", "ms, mean", {"": _ms(pulse.tpot_s)}, 1e3 * self._slo.tpot_s, step=False)
        return [
            Gauge("Inside the objectives", "% of requests", met, share=True, step=False),
            Gauge("Requests that wait for a worker", "requests", {"": pulse.queued}),
            Gauge("Time to first token", "s, mean", {"": pulse.ttft_s}, self._slo.ttft_s, step=False),
            tpot,
            Gauge("Workers that serve", "workers", by_role(prefill.ready, decode.ready)),
            Gauge("Workers with start-up and draining", "workers", by_role(_held(prefill), _held(decode))),
            Gauge("Requests in flight", "requests", {"": pulse.in_flight}),
            Gauge("First tokens", "requests/s", {"": pulse.requests_per_s}, step=False),
            Gauge("GPUs held", "GPUs", {"": snapshot.gpus_held}),
        ]


def _held(pool: PoolStatus) -> int:
    return pool.ready + pool.starting + pool.draining


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _digits(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
