"""Dynamo's parts on three hosts, over etcd and NATS, while links are cut and healed.

    python benchmarks/several_hosts.py [--seed 1] [--logs DIR] [--result several-hosts]

The hosts are network namespaces of this machine (Linux, root), on a bridge. The parts are started by the commands of
docs/hosts.md: Dynamo's frontend, our router component and mocker workers on them, and Dynamo's own planner with our
plugin. What has ended is started again a second later. An operator, which is on none of the hosts, does what the
planner publishes in etcd: it is the fleet of `dynamo serve`, and it starts workers where there are fewest.

| host | what runs there |
|---|---|
| one | etcd, NATS, the planner, a frontend, a router, workers |
| two | a frontend, a router, workers |
| three | workers |

On hosts one and two a client asks the frontend of its own host, all the time. One link after the other is cut: that of
host three (workers), of host two (a router) twice, and of host one (etcd). That of host three and the second one of
host two last longer than Dynamo's lease in etcd, after which Dynamo's processes end by themselves; the others take
a quarter of it, and then nothing may be lost. What must hold, or the exit status is 1, is in `rig/verdict.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import manifest
import uvloop

from benchmarks.rig.cluster import INSIDE, Etcd, Hosts, Kept, isolate, lacking
from benchmarks.rig.verdict import BRIEF_S, LEASE_S, SLOW_S, complaints, longest_gap_s, told
from pdplugins.config import Config
from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.answering import answers
from pdplugins.hosts.dynamo.local.engine import Mocker
from pdplugins.hosts.dynamo.local.fleet import Fleet, Limits
from pdplugins.hosts.dynamo.local.options import pick_config
from pdplugins.hosts.dynamo.router.places import FRONT, NAMESPACE, ROUTER, first
from pdplugins.processes.process import Process, python, stop_all
from pdplugins.provenance import command_line, record
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.roster import Life
from pdplugins.settings import parse_setting

ONE, TWO, THREE = HOSTS = ("one", "two", "three")
FRONTS = (ONE, TWO)
"""Hosts with a frontend, a router and a client."""
MODEL = "tiny"
PORT = 8000
GPUS = 12
"""GPU budget; a worker has two."""
SETTINGS = (
    "planner.interval_s=2", "planner.hold_s=6", "planner.predictor=last-value",
    "gateway.first_token_s=4", "gateway.silence_s=4", "gateway.rest_s=4",
)  # fmt: skip
RATE = 4.0
"""Highest rate of each client, in requests/s."""
READY_S = 90.0
"""Within which the parts serve after the start, and again after the healing of a link."""
AFTER_S = 8.0
"""How long the load goes on after a healing, once everything is back."""
STEP_S, LOOK_S = 0.2, 0.5
SEEN = re.compile(r"pdplugins\.router: (?P<here>\S+) is there|pdplugins\.gateway: (?P<gone>\S+) is gone")
"""What a router logs of its workers."""


@dataclass(frozen=True)
class Cut:
    """One link that is cut."""

    of: str
    """What is behind it."""
    host: str
    lasts_s: float


LONG_S = LEASE_S + 6.0
CUTS = (
    Cut("worker", THREE, LONG_S),
    Cut("router, briefly", TWO, BRIEF_S),
    Cut("router", TWO, LONG_S),
    Cut("etcd", ONE, BRIEF_S),
)


@dataclass
class Cluster:
    """The parts, on their hosts."""

    hosts: Hosts
    folder: Path
    logs: Path
    config: Config
    kept: dict[str, Kept] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    """Host of each worker that was ever started."""
    decisions: list[tuple[int, int, int]] = field(default_factory=list)
    """What the planner published: number, prefill workers, decode workers."""
    most_gpus: int = 0

    def __post_init__(self) -> None:
        deployment = build_deployment(self.config)
        self._mocker = Mocker(self.folder, MODEL, deployment, 0.0, "")
        self._mocker.prepare()
        self._tp = deployment.prefill_tp
        self.etcd = Etcd(f"http://{self.hosts.address(ONE)}:2379")
        self.fleet = Fleet(
            self._start_worker,
            self.etcd,
            gpus=dict.fromkeys(Role, self._tp),
            gpu_budget=GPUS,
            limits=Limits(ready_s=10 * READY_S, silent_s=10 * READY_S),
        )
        self.config_file = self.folder / "config.json"
        self.config_file.write_text(json.dumps(self.config.model_dump(mode="json")))

    def environment(self, host: str, name: str) -> dict[str, str]:
        """Return what a process of Dynamo is told on a host: docs/hosts.md has it."""
        address = self.hosts.address(host)
        env = self._mocker.environment(name)
        for key in ("DYN_FILE_KV", "DYN_ZMQ_BROKER_URL"):
            del env[key]
        return env | {
            "DYN_DISCOVERY_BACKEND": "etcd",
            "DYN_EVENT_PLANE": "nats",
            "ETCD_ENDPOINTS": f"http://{self.hosts.address(ONE)}:2379",
            "ETCD_LEASE_TTL": str(LEASE_S),
            "NATS_SERVER": f"nats://{self.hosts.address(ONE)}:4222",
            "DYN_TCP_RPC_HOST": address,
            "DYN_TCP_RESPONSE_STREAM_HOST": "eth0",
            "DYN_SYSTEM_HOST": address,
            "SCALING_CHECK_INTERVAL": "1",
        }

    def keep(self, host: str, name: str, command: Sequence[str]) -> None:
        on = self.hosts.on(host, command)
        self.kept[name] = Kept(name, on, self.environment(host, name), self.logs)

    def start(self) -> None:
        """Start everything but the clients."""
        self._start_stores()
        for host in FRONTS:
            where = ("--http-host", "0.0.0.0", "--http-port", str(PORT))  # noqa: S104 - of a namespace
            frontend = python("dynamo.frontend", *where, "--namespace", FRONT, "--migration-limit", "3")
            self.keep(host, f"frontend-{host}", frontend)
            options = ("--config", str(self.config_file), *self._mocker.model_options)
            self.keep(host, f"router-{host}", python("pdplugins.hosts.dynamo.router", *options))
        pools = self.config.deployment
        self.fleet.want(Role.PREFILL, pools.prefill.replicas)
        self.fleet.want(Role.DECODE, pools.decode.replicas)
        path = self.folder / "planner.json"
        path.write_text(json.dumps(self._planner_settings()))
        self.keep(ONE, "planner", python("dynamo.planner", "--config", str(path)))

    def _start_stores(self) -> None:
        client, peer = self.etcd.url, f"http://{self.hosts.address(ONE)}:2380"
        urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        cluster = ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self.keep(ONE, "etcd", ["etcd", "--data-dir", str(self.folder / "etcd"), *urls, *cluster])
        self.keep(ONE, "nats", ["nats-server", "-a", self.hosts.address(ONE), "-js", "-sd", str(self.folder / "nats")])

    def _planner_settings(self) -> dict[str, Any]:
        """Return the config of Dynamo's planner, with our plugin in it: docs/hosts.md, door (b)."""
        entry = {
            "module": "pdplugins.hosts.dynamo.doors.inprocess",
            "class": "PdPlanner",
            "plugin_id": "pdplugins",
            "plugin_type": "propose",
            "priority": 1,
            "execution_interval_seconds": 2,
            "hold_policy": "HOLD_LAST",
            "needs": ["observations.fpm", "observations.workers"],
            "kwargs": {
                "config": str(self.config_file),
                "frontend_url": ",".join(f"http://{self.hosts.address(host)}:{PORT}" for host in FRONTS),
                "decision_log": str(self.decision_log),
            },
        }
        return {
            "environment": "virtual",
            "namespace": NAMESPACE,
            "backend": "mocker",
            "mode": "disagg",
            "model_name": MODEL,
            "optimization_target": "load",
            "prefill_scale_up_queue_tokens": 10**9,
            "prefill_scale_down_queue_tokens": 0,
            "decode_scale_up_kv_rate": 1.0,
            "decode_scale_down_kv_rate": 0.0,
            "enable_load_scaling": True,
            "enable_throughput_scaling": False,
            "load_adjustment_interval_seconds": 2,
            "throughput_adjustment_interval_seconds": 60,
            "pre_deployment_sweeping_mode": "none",
            "prefill_engine_num_gpu": self._tp,
            "decode_engine_num_gpu": self._tp,
            "max_gpu_budget": GPUS,
            "report_interval_hours": None,
            "live_dashboard_port": 0,
            "metric_reporting_prometheus_port": 0,
            "scheduling": {"scale_interval_seconds": 2},
            "plugin_registration": {"in_process_plugins": [entry]},
        }

    @property
    def decision_log(self) -> Path:
        return self.folder / "decisions.jsonl"

    def _start_worker(self, role: Role, name: str, on_exit: Callable[[Process], None]) -> Process:
        """Start a worker on the host with the fewest."""
        running = [self.where[worker.name] for worker in self.fleet.workers]
        host = self.where[name] = min(HOSTS[::-1], key=running.count)
        command = self.hosts.on(host, self._mocker.worker(role, at_once=True, both=True))
        env = self.environment(host, name)
        return Process.start(name, command, env=env, log=self.logs / f"{name}.log", on_exit=on_exit)

    # --- the operator ------------------------------------------------------------------------------------------------

    async def operate(self) -> None:
        """Do what the planner publishes, as far as etcd can be reached."""
        from dynamo._core import VirtualConnectorClient  # noqa: PLC0415 - slow
        from dynamo.runtime import DistributedRuntime  # noqa: PLC0415

        os.environ |= {"ETCD_ENDPOINTS": self.etcd.url, "DYN_FILE_KV": str(self.folder / "none"), "DYN_LOG": "error"}
        runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
        client = VirtualConnectorClient(runtime, NAMESPACE)
        while True:
            with contextlib.suppress(Exception):  # of whatever kind: etcd is out of reach
                decision = await asyncio.wait_for(client.get(), 3.0)
                number, *counts = decision.decision_id, decision.num_prefill_workers, decision.num_decode_workers
                if number >= 0:
                    # Dynamo writes the number last: counts under the number of before are of a decision half written.
                    if number != (self.decisions[-1][0] if self.decisions else None):
                        self.decisions.append((number, *counts))
                        for role, count in zip((Role.PREFILL, Role.DECODE), counts, strict=True):
                            self.fleet.want(role, count)
                    if self.fleet.settled:
                        await asyncio.wait_for(client.complete(decision), 3.0)
            await asyncio.sleep(LOOK_S)

    async def step(self) -> None:
        """Bring what runs closer to what is wanted, for ever."""
        while True:
            self.fleet.step()
            self.most_gpus = max(self.most_gpus, self.fleet.gpus_held)
            await asyncio.sleep(STEP_S)

    @property
    def settled(self) -> bool:
        """Whether routers and wanted workers are registered, each once and no others, and each router knows of them."""
        ready = {worker.name for worker in self.fleet.workers if worker.life is Life.READY}
        once = all(len(self.etcd.names.get(name, ())) == 1 for name in ready)
        no_others = all(self.registered(first(role).path) == self.fleet.wanted(role) for role in Role)
        routed = self.registered(ROUTER) == len(FRONTS) and self.known == ready
        return self.fleet.settled and once and no_others and routed

    def registered(self, endpoint: str) -> int:
        """Return how many instances serve an endpoint, as etcd has it."""
        path = endpoint.replace(".", "/")
        return sum(path in of for of in self.etcd.instances.values())

    @property
    def known(self) -> set[str]:
        """Return the workers that every router says are there."""
        return set.intersection(*(self._known_to(host) for host in FRONTS))

    def _known_to(self, host: str) -> set[str]:
        known: set[str] = set()
        for found in SEEN.finditer(self.kept[f"router-{host}"].said()):
            if found["here"]:
                known.add(found["here"])
            known.discard(found["gone"])
        return known

    def answer(self) -> bool:
        """Tell whether every frontend answers."""
        try:
            return all(answers(f"http://{self.hosts.address(host)}:{PORT}", MODEL) for host in FRONTS)
        except OSError:
            return False


@dataclass
class Client:
    """A client on a host, and what became of its requests."""

    host: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, cluster: Cluster, seed: int) -> None:
        """Ask the frontend of its host, for ever."""
        script = str(Path(__file__).parent / "rig" / "asker.py")
        url = f"http://{cluster.hosts.address(self.host)}:{PORT}"
        command = cluster.hosts.on(self.host, [sys.executable, script, url, MODEL, str(RATE), str(seed)])
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self.rows.append(json.loads(line))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def sent(self, from_s: float, to_s: float) -> list[dict[str, Any]]:
        """Return what was sent in that time."""
        return sorted((row for row in self.rows if from_s <= row["sent_s"] < to_s), key=lambda row: row["sent_s"])


async def until(what: Callable[[], bool], within_s: float, of: str) -> float:
    """Return the seconds until `what` is true. Raises TimeoutError when that takes too long."""
    began_s = time.monotonic()
    while not what():
        if time.monotonic() - began_s > within_s:
            raise TimeoutError(f"{of}: not within {within_s:.0f} s")
        await asyncio.sleep(STEP_S)
    return round(time.monotonic() - began_s, 1)


async def go_through(cluster: Cluster, clients: Sequence[Client], cut: Cut) -> dict[str, Any]:
    """Cut a link and heal it; return what came of it."""
    starts = {name: kept.starts for name, kept in cluster.kept.items()}
    began, since_s = len(cluster.where), time.time()
    cluster.hosts.cut(cut.host)
    cut_s = time.monotonic()
    await asyncio.sleep(cut.lasts_s)
    cluster.hosts.heal(cut.host)
    healed_s = time.monotonic()
    back_s = await until(lambda: cluster.settled and cluster.answer(), READY_S, f"after the cut of {cut.of}")
    await asyncio.sleep(AFTER_S)
    planless_s, end_s = longest_gap_s(plans_s(cluster), since_s, time.time()), time.monotonic() - SLOW_S
    # The planner may have asked for one worker more or less just now.
    await until(lambda: cluster.settled, READY_S, f"the last plan after the cut of {cut.of}")
    return {
        "cut": cut.of,
        "host": cut.host,
        "lasted_s": round(healed_s - cut_s, 1),
        "back_s": back_s,
        "clients": {
            client.host: {
                "cut": told(client.sent(cut_s - SLOW_S, healed_s), cut_s),
                "healed": told(client.sent(healed_s, end_s), healed_s),
            }
            for client in clients
        },
        "planless_s": round(planless_s, 1),
        "started_again": {n: k.starts - starts[n] for n, k in cluster.kept.items() if k.starts != starts[n]},
        "workers_started": len(cluster.where) - began,
        "wanted": {role.value: cluster.fleet.wanted(role) for role in Role},
        "registered": {role.value: cluster.registered(first(role).path) for role in Role},
        "registered_twice": [name for name, of in cluster.etcd.names.items() if len(of) > 1],
    }


def plans_s(cluster: Cluster) -> list[float]:
    """Return the wall-clock times of the decisions that our planner has logged."""
    runs = read(cluster.decision_log) if cluster.decision_log.exists() else ()
    return [datetime.fromisoformat(entry.at).timestamp() for run in runs for entry in run.entries]


@contextlib.asynccontextmanager
async def running(cluster: Cluster, seed: int) -> AsyncIterator[list[Client]]:
    """The cluster and its clients, once everything serves."""
    cluster.start()
    tasks = [asyncio.create_task(work) for work in (cluster.etcd.follow(LOOK_S), cluster.step())]
    clients = [Client(host) for host in FRONTS]
    try:
        await until(lambda: cluster.settled, READY_S, "the start")
        await until(cluster.answer, READY_S, "frontends")
        tasks.append(asyncio.create_task(cluster.operate()))
        tasks += [asyncio.create_task(client.ask(cluster, seed + n)) for n, client in enumerate(clients)]
        await until(lambda: bool(plans_s(cluster)), READY_S, "the planner's first plan")
        yield clients
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        processes = [kept.close() for kept in cluster.kept.values()]
        await stop_all((*processes, *cluster.fleet.close()), 3.0)


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    logs = Path(args.logs).absolute() if args.logs else folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    settings = [parse_setting(text) for text in (*SETTINGS, f"deployment.gpu_budget={GPUS}")]
    config = pick_config("dopd", None, 2, 2, 0.0, "arrow", settings=settings)
    cluster = Cluster(Hosts(HOSTS), folder, logs, config)
    rows = []
    began_s = time.monotonic()
    async with running(cluster, args.seed) as clients:
        ready_s = round(time.monotonic() - began_s, 1)
        await asyncio.sleep(5.0)
        for cut in CUTS:
            rows.append(await go_through(cluster, clients, cut))
            sys.stderr.write(f"{time.monotonic() - began_s:5.0f} s {json.dumps(rows[-1])}\n")
    return {
        "ready_s": ready_s,
        "seconds": round(time.monotonic() - began_s),
        "lease_s": LEASE_S,
        "cuts": rows,
        "gpu_budget": GPUS,
        "gpus_of_one": cluster.config.deployment.prefill.tp,
        "most_gpus": cluster.most_gpus,
        "decisions": cluster.decisions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", help="keep the logs of all processes in this folder")
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    if args.result:
        manifest.check_script(sys.argv[0])
    if INSIDE not in os.environ and (why := lacking()) is not None:
        sys.exit(f"several_hosts: {why}")
    isolate()
    with tempfile.TemporaryDirectory() as name:
        result = uvloop.run(measure(args, Path(name)))
    facts = {
        **record("measured", seed=args.seed, command=command_line("python", sys.argv), took_part=("ai-dynamo",)),
        **result,
    }
    print(json.dumps(facts, indent=1))
    wrong = list(complaints(facts))
    if args.result and not wrong:
        manifest.write(args.result, facts)
    if wrong:
        sys.exit("several_hosts: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
