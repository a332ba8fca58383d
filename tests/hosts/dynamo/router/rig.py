"""Our router in Dynamo's request path, within the process of the tests, on live mocker workers behind a live frontend.

One frontend and one runtime serve all tests of a session. Workers of a kind live in a namespace of their own, and stay
for the next test that asks for them; the router is made anew for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pdplugins.config import Config, find, load
from pdplugins.hosts.dynamo.answering import answers
from pdplugins.hosts.dynamo.fetching import in_thread
from pdplugins.hosts.dynamo.local.broker import Broker
from pdplugins.hosts.dynamo.local.engine import Engine, Mocker
from pdplugins.hosts.dynamo.router.__main__ import register
from pdplugins.hosts.dynamo.router.component import RouterComponent
from pdplugins.hosts.dynamo.router.places import FRONT, first
from pdplugins.processes.ports import free_ports
from pdplugins.runtime.assembly import build_deployment
from pdplugins.types import Deployment, Role

MODEL = "tiny"
PATIENCE_S = 60.0
"""A guard against what hangs."""
DEADLINES = {"first_token_s": 30.0, "rest_s": 0.5, "worker_wait_s": 20.0}
"""Of the router in these tests. A machine that is busy gives no token for seconds, and no test wants to see that."""
KV_BLOCKS = 128
"""KV cache of a worker: 8192 tokens."""
T = TypeVar("T")


async def until(what: Callable[[], Any], why: str | Callable[[], str] = "") -> Any:
    """Return what `what` returns once that is true. `why` says what is missing then; a function of it is asked late."""
    deadline_s = monotonic() + PATIENCE_S
    while not (seen := what()):
        assert monotonic() < deadline_s, f"not within {PATIENCE_S} s: {why() if callable(why) else why}"
        await asyncio.sleep(0.02)
    return seen


def seen(component: RouterComponent) -> dict[str, Any]:
    """What a router knows of its workers: which instances each client lists, and who is ready."""
    workers = component.workers
    listed = {f"{place.path} {place.phase}": client.instance_ids() for place, client in workers._clients.items()}
    return {"listed": listed, "ready": [worker.id for worker in workers.ready], "known": list(workers._known)}


def settings(name: str, *, any_role: bool, **gateway: Any) -> Config:
    """A shipped config, with workers that do one phase or both, and these deadlines."""
    config = load(find(name))
    flip = "label" if any_role else "drain"
    return config.model_copy(
        update={
            "simulation": config.simulation.model_copy(update={"flip": flip}),
            "sglang": config.sglang.model_copy(update={"dual_role": False}),
            "gateway": config.gateway.model_copy(update=DEADLINES | gateway),
        }
    )


class WorkerProcess:
    """One mocker worker."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        with log.open("ab") as output:
            env = environment | {"DYN_SYSTEM_PORT": str(self.port)}
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output)

    def served(self, metric: str = "requests_total") -> Counter[str]:
        """What the worker itself counted, by endpoint."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_S) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        counts: Counter[str] = Counter()
        for family in families:
            for sample in family.samples:
                if sample.name == f"dynamo_component_{metric}":
                    counts[f"{sample.labels['dynamo_component']}.{sample.labels['dynamo_endpoint']}"] += int(
                        sample.value
                    )
        return counts

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Rig:
    """See the module.

    What a runtime of Dynamo reads from the environment stays set for as long as the runtime lives. Its threads read it
    at any time, and getenv(3) may end the process while another thread adds or removes variables.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.deployment: Deployment = build_deployment(settings("arrow", any_role=True))
        self.engine = self.make_engine(Broker().url)
        self._workers: dict[str, dict[str, WorkerProcess]] = {}
        self._router: RouterComponent | None = None
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        port = int(self.url.rpartition(":")[2])
        self._frontend = subprocess.Popen(
            self.engine.frontend("127.0.0.1", port, routed=True),
            env=self.engine.environment(),
            stdout=(folder / "frontend.log").open("ab"),
            stderr=subprocess.STDOUT,
        )
        self._before = {name: os.environ.get(name) for name in self.engine.runtime_environment()}
        os.environ.update(self.engine.runtime_environment())
        self.run(self._start())

    def make_engine(self, broker_url: str) -> Engine:
        """Mocker engines, each with a KV cache that a test can fill."""
        engine = Mocker(self.folder, MODEL, self.deployment, 0.0, broker_url)
        engine.prepare()
        for role in Role:
            path = self.folder / f"{role}.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"num_gpu_blocks": KV_BLOCKS}))
        return engine

    async def _start(self) -> None:
        from dynamo.runtime import DistributedRuntime  # noqa: PLC0415 - may be missing

        self.runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
        self._odd: dict[str, list[Any]] = {}
        endpoint = self.runtime.endpoint(f"{FRONT}.router.route")  # endpoints of one process have different names
        await register(endpoint, str(self.engine.model_folder), MODEL)

        async def serve() -> None:
            await endpoint.serve_endpoint(self._generate)

        self._serving = asyncio.create_task(serve())
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S))
        deadline_s = monotonic() + PATIENCE_S
        while not await in_thread(self._answers):
            assert monotonic() < deadline_s, (self.folder / "frontend.log").read_text()[-2000:]
            await asyncio.sleep(0.05)

    def _answers(self) -> bool:
        with suppress(OSError):
            return answers(self.url, MODEL)
        return False

    async def _generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        assert self._router is not None
        async for chunk in self._router.generate(request, context):
            yield chunk

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 3 * PATIENCE_S))

    # --- workers -------------------------------------------------------------------------------------------------

    def workers(self, prefill: int, decode: int, *, both: bool) -> dict[str, WorkerProcess]:
        """Running workers by name; those that a test has killed start anew."""
        namespace = self.namespace(prefill, decode, both=both)
        there = self._workers.setdefault(namespace, {})
        for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
            for number in range(count):
                name = f"{namespace}-{role}-{number + 1}"
                if name not in there or there[name].process.poll() is not None:
                    there[name] = self.worker(name, role, namespace, both=both)
        return there

    def namespace(self, prefill: int, decode: int, *, both: bool) -> str:
        return f"{'both' if both else 'stock'}{prefill}{decode}"

    def worker(self, name: str, role: Role, namespace: str, *, both: bool) -> WorkerProcess:
        command = self.engine.worker(role, at_once=True, both=both)
        environment = self.engine.worker_environment(name, both=both) | {"DYN_NAMESPACE": namespace}
        return WorkerProcess(name, command, environment, self.folder / f"{name}.log")

    # --- the router ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def routed(
        self,
        config: Config,
        prefill: int,
        decode: int,
        *,
        router: Any = None,
        flow: Any = None,
        own: bool = False,
        more: int = 0,
    ) -> AsyncIterator[RouterComponent]:
        """The router over running workers, with the policies of the config, or else with its `own` that are given.

        :param more: workers that the test itself has started there.
        """
        namespace = self.namespace(prefill, decode, both=config.any_role)
        self.workers(prefill, decode, both=config.any_role)
        component = RouterComponent(config, self.deployment, namespace=namespace, kind=self.engine.kind)
        if own:
            component.use(router, flow)
        await component.start(self.runtime)
        self._router = component
        try:
            wanted = prefill + decode + more
            await until(
                lambda: len(component.workers.ready) == wanted, lambda: f"{wanted} workers of {seen(component)}"
            )
            yield component
            await until(lambda: not component.admission.requests, "the router is idle")
        finally:
            await component.stop(0.0)

    @asynccontextmanager
    async def odd_worker(self, namespace: str, answer: list[Any]) -> AsyncIterator[None]:
        """A decode worker of this process that gives the chunks of `answer`; one that is an exception it raises."""
        endpoint = self.runtime.endpoint(first(Role.DECODE, namespace).path)
        known = namespace in self._odd
        self._odd[namespace] = answer
        if known:
            await endpoint.register_endpoint_instance()
        else:
            await self._start_odd(endpoint, namespace)
        try:
            yield
        finally:
            await endpoint.unregister_endpoint_instance()

    async def _start_odd(self, endpoint: Any, namespace: str) -> None:
        from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model  # noqa: PLC0415

        async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
            for chunk in self._odd[namespace]:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk

        async def serve() -> None:
            await endpoint.serve_endpoint(generate)

        card = ModelRuntimeConfig()
        card.total_kv_blocks = 1000
        await register_model(
            model_input=ModelInput.Tokens,
            model_type=ModelType.Chat | ModelType.Completions,
            endpoint=endpoint,
            model_path=str(self.folder / "model"),
            model_name=MODEL,
            worker_type=WorkerType.Decode,
            needs=[[WorkerType.Prefill]],
            kv_cache_block_size=16,
            runtime_config=card,
        )
        self._serving_odd = asyncio.create_task(serve())

    async def ask(
        self,
        tokens: int = 100,
        osl: int = 5,
        *,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> tuple[int, dict[str, Any]]:
        """Send a completion of a prompt of so many tokens; return status and answer."""
        seed = fields.pop("seed", 0)
        prompt = [300 + (7 * n + seed) % 500 for n in range(tokens)]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": osl, "ignore_eos": True, **fields}
        sent = {**(headers or {}), **({} if session is None else {"x-dynamo-session-id": session})}
        async with self.client.post(f"{self.url}/v1/completions", json=body, headers=sent) as answer:
            return answer.status, await answer.json(content_type=None)

    async def chat(self, tokens: int, osl: int, *, stream: bool) -> tuple[int, bytes]:
        """Send a chat; return status and body."""
        messages = [{"role": "user", "content": "ab" * tokens}]
        body = {"model": MODEL, "messages": messages, "max_tokens": osl, "stream": stream}
        async with self.client.post(f"{self.url}/v1/chat/completions", json=body | {"ignore_eos": True}) as answer:
            return answer.status, await answer.read()

    def close(self) -> None:
        async def end() -> None:
            await self.client.close()
            self.runtime.shutdown()
            await asyncio.gather(self._serving, return_exceptions=True)

        try:
            self.run(end())
        finally:
            for namespace in self._workers.values():
                for worker in namespace.values():
                    worker.end()
            self._frontend.kill()
            self._frontend.wait()
            self.loop.close()
            for name, value in self._before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
