"""What the daemon stands beside: who tells traffic, loads and roles. It is asked in a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from prometheus_client.parser import text_string_to_metric_families

from pdplugins.contracts.planner import Traffic
from pdplugins.contracts.workers import Pool, Role, WorkerLoad
from pdplugins.errors import one_line
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.processes.addresses import check_url

TIMEOUT_S = 2.0
MOST_BYTES = 2**24
LOAD_FIELDS = ("queued_requests", "queued_tokens", "running_requests", "running_tokens")
TTFT_SUM, TTFT_COUNT = "pdplugins_gateway_ttft_seconds_sum", "pdplugins_gateway_ttft_seconds_count"
ENDED = "pdplugins_gateway_requests_total"
_OPENER = build_opener(ProxyHandler({}))  # pages of this machine or network, whatever proxy the environment names


@dataclass(frozen=True, slots=True)
class Seen:
    """What the host told."""

    traffic: Traffic | None
    roles: Mapping[str, Role]
    """By worker; only those that serve, and none where the host does not tell."""
    loads: Mapping[Role, tuple[WorkerLoad, ...]]

    def pool(self, role: Role, ready: int) -> Pool:
        """Return the workers of a role."""
        return Pool(ready, loads=self.loads.get(role, ()))


class Host(Protocol):
    """Who tells. May block, and raises OSError or ValueError."""

    def look(self) -> Seen:
        """Ask."""
        ...


class Gateway:
    """A gateway of this package, by its admin listener."""

    def __init__(self, url: str, key: str | None = None) -> None:
        check_url(url, "node.url")
        self._url = url.rstrip("/")
        self._key = key
        self._before: tuple[float, Counter[str]] | None = None

    def look(self) -> Seen:
        """Ask for the workers, and for the requests and the TTFT of streams since the last look."""
        workers = json.loads(self._ask("/workers"))
        alive = [one for one in workers if one["alive"]]
        roles = {str(one["id"]): Role(one["role"]) for one in alive}
        loads = {role: tuple(_load(one, role) for one in alive if roles[one["id"]] is role) for role in Role}
        return Seen(self._traffic(self._ask("/metrics")), roles, loads)

    def move(self, worker: str, role: Role, reason: str) -> None:
        """Propose another role for a worker."""
        self._ask("/roles", {"moves": [{"worker": worker, "role": role, "reason": reason}]})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        return ask(self._url + path, body, self._key)

    def _traffic(self, page: str) -> Traffic | None:
        lines = [line for line in page.splitlines() if line.startswith((TTFT_SUM, TTFT_COUNT, ENDED))]
        totals: Counter[str] = Counter()
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                totals[sample.name] += sample.value  # type: ignore[assignment]
        now_s = time.monotonic()
        before, self._before = self._before, (now_s, totals)
        if before is None or totals[TTFT_COUNT] < before[1][TTFT_COUNT] or now_s <= before[0]:
            return None
        since, streams = before[1], totals[TTFT_COUNT] - before[1][TTFT_COUNT]
        ttft_s = (totals[TTFT_SUM] - since[TTFT_SUM]) / streams if streams else None
        return Traffic(now_s - before[0], max(totals[ENDED] - since[ENDED], 0), ttft_s=ttft_s)


def ask(url: str, body: dict[str, Any] | None = None, key: str | None = None, within_s: float = TIMEOUT_S) -> str:
    """Return a page, or the answer to a JSON body. Raises OSError.

    :param within_s: the longest time without a byte of it.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    try:
        with _OPENER.open(Request(url, data, headers), timeout=within_s) as answer:  # noqa: S310 - checked to be HTTP
            return str(answer.read(MOST_BYTES).decode())
    except HTTPError as error:
        said = one_line(error.read(1000).decode(errors="replace"), 120)
        raise OSError(f"{url} answered with status {error.code}: {said}") from None


def _load(worker: Mapping[str, Any], role: Role) -> WorkerLoad:
    load = worker["load"]
    queued, queued_tokens, running, running_tokens = (float(load[name] or 0.0) for name in LOAD_FIELDS)
    if role is Role.PREFILL and queued:
        # To the gateway a prompt is queued until its first token. One of them is computed, and does not wait.
        one = queued_tokens / queued
        queued, running = queued - 1, running + 1
        queued_tokens, running_tokens = queued_tokens - one, running_tokens + one
    return WorkerLoad(
        str(worker["id"]),
        queued_requests=queued,
        queued_tokens=queued_tokens,
        running_requests=running,
        running_tokens=running_tokens,
        recent_ttft_s=load["recent_ttft_s"],
        recent_tbt_s=load["recent_tbt_s"],
    )


class Watch:
    """Looks at a host again and again, in a thread of its own.

    :param every_s: pause between two looks.
    """

    def __init__(self, host: Host, every_s: float) -> None:
        self._host = host
        self._every_s = every_s
        self._stopped = threading.Event()
        self.latest: tuple[float, Seen] | None = None
        """When the last look began that was answered, by the monotonic clock, and what it saw."""
        self.error = ""
        """Why the last look failed; empty when it did not."""
        self.failures = 0
        threading.Thread(target=self._run, name="power host", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            began_s = time.monotonic()
            try:
                self.latest = began_s, self._host.look()
                self.error = ""
            except Exception as error:  # whatever a host answers, it is asked again
                self.failures += 1
                self.error = f"{type(error).__name__}: {one_line(error, 160)}"


class Frontend:
    """Dynamo, by the metrics of its frontend. It does not tell roles."""

    def __init__(self, url: str) -> None:
        self._metrics = FrontendMetrics(url)

    def look(self) -> Seen:
        """Ask for the traffic since the last look, and for what waits for a first token."""
        traffic = self._metrics.collect()
        load = WorkerLoad("frontend", queued_requests=self._metrics.queued_requests)
        return Seen(traffic, {}, {Role.PREFILL: (load,)})
