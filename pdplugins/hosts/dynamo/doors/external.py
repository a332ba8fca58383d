"""Door (c): a planner in its own process, plugged into a running Dynamo planner over gRPC.

It serves Dynamo's ProposePlugin and PluginLifecycle, and with a gateway registers itself: again and again until the
planner opens its gateway, and once more whenever the planner has restarted. The protocol is byte-identical from Dynamo
1.4.2 to 1.6.1, so this process may run beside a newer planner.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from dynamo.planner.plugins.proto.v1 import plugin_pb2 as pb
from dynamo.planner.plugins.proto.v1 import plugin_pb2_grpc as pbg

import pdplugins
from pdplugins.config import find, load
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError, HostError, cannot_listen, one_line
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.doors.guard import Guard, Network
from pdplugins.hosts.dynamo.doors.proposer import Proposer, door_planner
from pdplugins.processes.addresses import host_and_port, is_loopback
from pdplugins.processes.ending import on_stop
from pdplugins.redaction import redact_logs
from pdplugins.runtime.decision_log import none_of_refused
from pdplugins.runtime.metrics import Metrics, process_metrics
from pdplugins.runtime.signals import build_board

log = logging.getLogger("pdplugins.dynamo")

PLUGIN_ID = "pdplugins"
PRIORITY = 1
"""Before Dynamo's own load (10) and throughput (20) proposals; among final answers the smallest number wins."""
PROTOCOL = "1.0"
HEARTBEAT_S = 5.0
"""Dynamo expects one within 15 s; its answer is how we learn that the planner has restarted."""
RETRY_S = (0.5, 10.0)
"""First and longest wait between two attempts to register."""
CALL_S = 5.0
"""How long one call to the gateway may take."""
GRACE_S = 2.0
"""How long a call in progress may go on after the stop."""
STOP_S = 10.0
"""How long all of the stop may take."""
UNIX = "unix://"
EVERYWHERE = ("grpc://0.0.0.0:", "grpc://[::]:")
NO_PROXY = (("grpc.enable_http_proxy", 0),)
"""gRPC would send the token through the proxy that the environment names, even to this machine."""
LIMITS = (
    ("grpc.max_receive_message_length", 10 * 2**20), ("grpc.max_concurrent_streams", 16), ("grpc.so_reuseport", 0)
)  # fmt: skip
"""Dynamo's planner sends at most 10 MiB, one call at a time. Two planners on one port would share its calls."""

FIXES = {
    "auth_failed": "give the token with --token-file or PDPLUGINS_TOKEN; the planner's are in plugin_registration.auth",
    "transport_build_failed": "set plugin_registration.transport.allow_insecure_grpc: true in the planner's config",
    "observation_window": "make scheduling.scale_interval_seconds a divisor of the planner's interval",
    "protocol_version": "this pdplugins speaks 1.0; check the planner's plugin_registration.protocol_version_…",
}
"""What to do next, by how the planner's reason for refusing us begins."""


class ProposeService(pbg.ProposePluginServicer):  # type: ignore[misc]
    """Dynamo's PROPOSE stage, and its lifecycle, over one `Proposer`.

    :param guard: who may call.
    """

    def __init__(self, build: Callable[[], Proposer], guard: Guard | None = None) -> None:
        self._build = build
        self._guard = guard or Guard()
        self.proposer = build()

    async def Propose(self, request: Any, context: Any) -> Any:  # noqa: N802 - Dynamo's name
        """Answer one tick."""
        await self._guard.check(context)
        decision = await self.proposer.propose(request.context)
        response = pb.ProposeStageResponse()
        if decision is None:
            response.accept.SetInParent()
            return response
        response.final = True
        response.override.reason = one_line(decision.answer.reason)
        for role, count in (("prefill", decision.answer.prefill), ("decode", decision.answer.decode)):
            response.override.targets.add(sub_component_type=role, replicas=count, type=pb.OverrideType.SET)
        return response

    async def Bootstrap(self, request: Any, context: Any) -> Any:  # noqa: N802 - Dynamo's name
        """Get ready for the first tick."""
        await self._guard.check(context)
        await self.proposer.begin()
        return pb.BootstrapResponse(ok=True)

    async def Reset(self, request: Any, context: Any) -> Any:  # noqa: N802 - Dynamo's name
        """Begin anew, from what is kept between runs. A config that is no good any more changes nothing."""
        await self._guard.check(context)
        self.proposer.keep()
        fresh = self._build()
        self.proposer.close()
        self.proposer = fresh
        return pb.ResetResponse(ok=True)


async def serve(
    service: ProposeService,
    *,
    listen: str,
    advertise: str | None = None,
    gateway: str | None = None,
    token: str = "",
    stop: asyncio.Event | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until `stop` is set, or SIGTERM or SIGINT come; then unregister and finish the call in progress.

    :param listen: ``host:port`` for the planner's calls, port 0 takes a free one; or ``unix:///path``.
    :param advertise: ``host:port`` at which the planner reaches us, when that is not `listen`.
    :param gateway: the planner's registration gateway, ``unix:///path`` or ``grpc://host:port``; without one the
        planner must list us under ``scheduling.external_plugins``.
    :param token: one of the planner's ``plugin_registration.auth.static_secrets``.
    :param ready: called with our endpoint once it answers.

    Raises HostError when the port is taken or the planner refuses us.
    """
    server = grpc.aio.server(options=LIMITS)
    pbg.add_ProposePluginServicer_to_server(service, server)
    pbg.add_PluginLifecycleServicer_to_server(service, server)
    endpoint = f"grpc://{_bind(server, listen)}"
    if advertise is not None:
        host_and_port(advertise, "--advertise")
        endpoint = f"grpc://{advertise}"
    elif gateway is not None and endpoint.startswith(EVERYWHERE):
        raise ConfigError(f"--listen {listen} does not say where the planner finds us; add --advertise HOST:PORT")
    stop = stop or _stop_on_signals()
    await server.start()
    try:
        ready(endpoint)
        if gateway is None:
            await stop.wait()
        else:
            await Registration(service, gateway, endpoint, token).keep(stop)
    finally:
        await server.stop(GRACE_S)
        service.proposer.close()


class Registration:
    """Keeps us registered with one planner."""

    def __init__(self, service: ProposeService, gateway: str, endpoint: str, token: str) -> None:
        self._target = _target(gateway)
        self._gateway = gateway
        self._token = token
        self._request = pb.RegisterRequest(
            plugin_id=PLUGIN_ID,
            plugin_type="propose",
            priority=PRIORITY,
            endpoint=endpoint,
            version=pdplugins.__version__,
            protocol_version=PROTOCOL,
            auth_token=token,
            execution_interval_seconds=service.proposer.interval_s,
            hold_policy=pb.HoldPolicy.HOLD_LAST,
            needs=service.proposer.needs,
        )

    async def keep(self, stop: asyncio.Event) -> None:
        """Register, and again whenever the planner forgot us, until `stop` is set; then unregister."""
        known = False
        while not stop.is_set():
            async with grpc.aio.insecure_channel(self._target, NO_PROXY) as channel:
                stub = pbg.PluginRegistryStub(channel)
                if known or await self._registered(stub, stop):
                    known = await self._while_known(stub, stop)

    async def _registered(self, stub: Any, stop: asyncio.Event) -> bool:
        """Try until the gateway accepts us; False when `stop` came first."""
        logged = False
        for wait_s in _backoff():
            try:
                answer = await stub.Register(self._request, timeout=CALL_S)
                if answer.accepted:
                    log.info("registered with the planner at %s", self._gateway)
                    return True
                if not answer.reject_reason.startswith("duplicate_plugin_id"):
                    raise HostError(self._refusal(answer.reject_reason))
                # An earlier process of ours that was killed still has the name; Dynamo never evicts it.
                await self._unregister(stub, "replaced by a new process")
            except grpc.aio.AioRpcError as error:
                self._check(error)
                if not logged:
                    log.info("not registered yet at %s (%s), trying on", self._gateway, error.code().name)
                    logged = True
            if await _sleep(stop, wait_s):
                return False
        return False

    async def _while_known(self, stub: Any, stop: asyncio.Event) -> bool:
        """Return when the planner no longer knows us, or unregister when `stop` is set.

        True: it did not answer in time, be it that it is busy or that the connection is dead, and may know us still.
        Who registers again in the middle of its tick takes our answer out of it.
        """
        heartbeat = pb.HeartbeatRequest(plugin_id=PLUGIN_ID, auth_token=self._token)
        while not await _sleep(stop, HEARTBEAT_S):
            try:
                await stub.Heartbeat(heartbeat, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                self._check(error)
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    log.warning("the planner at %s has not answered for %g s", self._gateway, CALL_S)
                    return True
                log.warning("the planner at %s is gone or restarted (%s)", self._gateway, error.code().name)
                return False
        try:
            await self._unregister(stub, "graceful_shutdown")
        except grpc.aio.AioRpcError as error:
            log.info("not unregistered, the planner is gone (%s)", error.code().name)
        return False

    async def _unregister(self, stub: Any, reason: str) -> None:
        request = pb.UnregisterRequest(plugin_id=PLUGIN_ID, reason=reason, auth_token=self._token)
        await stub.Unregister(request, timeout=CALL_S)

    def _check(self, error: grpc.aio.AioRpcError) -> None:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise HostError(self._refusal("auth_failed")) from None

    def _refusal(self, reason: str) -> str:
        fix = next((fix for start, fix in FIXES.items() if reason.startswith(start)), "see the planner's log")
        return f"the planner at {self._gateway} refused us: {reason}; {fix}"


def _bind(server: Any, listen: str) -> str:
    """Listen, and return gRPC's spelling of where. Raises HostError or ConfigError."""
    if listen.startswith(UNIX):
        where, old_umask = f"unix:{listen.removeprefix(UNIX)}", os.umask(0o177)  # the socket is for this user only
    else:
        host, port = host_and_port(listen, "--listen")
        where, old_umask = f"[{host}]:{port}" if ":" in host else f"{host}:{port}", None
    try:
        bound = int(server.add_insecure_port(where))
    except RuntimeError:
        bound = 0
    finally:
        if old_umask is not None:
            os.umask(old_umask)
    if bound == 0:
        if old_umask is None:
            _check_address(host, port)
        raise HostError(f"cannot listen on {listen}; give a free --listen HOST:PORT (port 0 takes any free one)")
    return where if old_umask is not None else f"{where.rpartition(':')[0]}:{bound}"


def _check_address(host: str, port: int) -> None:
    """Raise HostError where no port of `host` can be listened on: gRPC does not say why it cannot."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:
        raise cannot_listen("--listen", host, port, error) from None


def _target(gateway: str) -> str:
    """Return gRPC's own spelling of `gateway`. Raises HostError or ConfigError."""
    if gateway.startswith("unix:") and gateway != "unix:":
        return gateway
    if gateway.startswith("grpc://"):
        target = gateway.removeprefix("grpc://")
        host_and_port(target, "--gateway")
        return target
    raise HostError(f"--gateway {gateway}: give unix:///path/to/registry.sock or grpc://host:port")


def _backoff() -> Iterator[float]:
    wait_s, longest_s = RETRY_S
    while True:
        yield wait_s
        wait_s = min(wait_s * 1.5, longest_s)


async def _sleep(stop: asyncio.Event, seconds: float) -> bool:
    """Wait; True as soon as `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    on_stop(lambda _: stop.set(), STOP_S)
    return stop


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command was asked for."""

    config: str
    listen: str
    advertise: str | None = None
    gateway: str | None = None
    token: str = ""
    key: str | None = None
    allow_from: tuple[Network, ...] = ()
    frontend_url: str | None = None
    model: str | None = None
    decision_log: Path | None = None
    state: Path | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    shadow: bool = False


def run(options: Options) -> None:
    """Build the planner that the config names and serve it until SIGTERM or SIGINT. Raises PdpluginsError."""
    logging.basicConfig(level=logging.INFO)
    redact_logs(logging.root.handlers, "%(asctime)s %(name)s: %(message)s")
    metrics = process_metrics(Kind.PLANNER)
    if open_to_all(options):
        raise ConfigError(
            f"--listen {options.listen}: whoever reaches it may ask and reset this planner; say who may call with "
            "--allow-from or --key-file, or listen on loopback or a Unix socket"
        )
    gateway = options.gateway
    if gateway:
        _target(gateway)  # before anything listens
    if gateway and options.token and beyond_loopback(gateway):
        log.warning("the token goes to %s in plain text: Dynamo's gateway has no TLS, a service mesh has", gateway)

    def say(endpoint: str) -> None:
        log.info("planner of %s%s answers at %s", options.config, " in shadow" if options.shadow else "", endpoint)

    with none_of_refused(options.decision_log), served(metrics, options):
        service = ProposeService(partial(build, options), Guard(options.key, options.allow_from))
        asyncio.run(
            serve(
                service,
                listen=options.listen,
                advertise=options.advertise,
                gateway=options.gateway,
                token=options.token,
                ready=say,
            )
        )


def build(options: Options) -> Proposer:
    """Build the planner that the config names. Raises ConfigError."""
    chosen = load(find(options.config))
    frontend = FrontendMetrics(options.frontend_url, options.model) if options.frontend_url else None
    board = build_board(chosen)
    # Last, as it begins a run in the decision log: that of a planner which goes on may not end there.
    planner = door_planner(chosen, options.decision_log, shadow=options.shadow, state=options.state)
    return Proposer(planner, frontend=frontend, board=board, shadow=options.shadow)


def open_to_all(options: Options) -> bool:
    """Tell whether other machines may call and nothing is checked."""
    if options.key is not None or options.allow_from or options.listen.startswith(UNIX):
        return False
    return not is_loopback(host_and_port(options.listen, "--listen")[0])


def beyond_loopback(gateway: str) -> bool:
    """Tell whether what is sent to a gateway leaves this machine."""
    target = _target(gateway)
    return not (target.startswith("unix:") or is_loopback(host_and_port(target, "--gateway")[0]))


@contextmanager
def served(metrics: Metrics, options: Options) -> Iterator[None]:
    """Serve the metrics, if that is wanted."""
    if options.metrics_port is None:
        yield
        return
    stop = metrics.serve(options.metrics_port, options.metrics_host)
    try:
        yield
    finally:
        stop()
