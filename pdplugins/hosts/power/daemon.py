"""``pdplugins power run``: from the start, which puts right what a killed process left, to the end, which restores."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from pdplugins.config import Config, NodeConfig, find, load
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.power import Device, DeviceError, DeviceFault, GpuView, PowerController, PowerPlan
from pdplugins.contracts.workers import Pool, Role
from pdplugins.errors import ConfigError, HostError, PdpluginsError
from pdplugins.hosts.power import assembly
from pdplugins.hosts.power.beside import Frontend, Gateway, Watch
from pdplugins.hosts.power.kept import KeptRoles
from pdplugins.hosts.power.loop import PowerLoop
from pdplugins.hosts.power.metrics import NodeMetrics
from pdplugins.hosts.power.roles import (
    ActedRoles,
    FixedRoles,
    GatewayRoles,
    Roles,
    command_step,
    role_switch_step,
)
from pdplugins.power.calls import finished
from pdplugins.power.node import PowerNode, nearest_w
from pdplugins.power.saved import SavedCaps
from pdplugins.processes.ending import end_within
from pdplugins.processes.keys import read_secret
from pdplugins.redaction import redact_logs
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.decision_log import none_of_refused
from pdplugins.runtime.journal import StandardJournal, build_journal
from pdplugins.runtime.metrics import Metrics
from pdplugins.runtime.policies import build_policies
from pdplugins.runtime.power import SafePowerController

log = logging.getLogger("pdplugins.power")

PAUSE_S = 0.02
"""Between two steps of the loop."""
START_S = 30.0
"""Longest time until every GPU has told its cap."""
ROLES_S = 5.0
"""Time at the end in which workers that drain are to serve again."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    config: str
    shadow: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    decision_log: Path | None = None


@dataclass(slots=True)
class Asked:
    """What signals have asked for. No events: a handler may find the main thread inside of one, holding its lock."""

    stop: bool = False
    reload: bool = False


def heed(within_s: float) -> Asked:
    """Note signals from now on. The first that asks for the end gives this process so many seconds for it.

    Call it before the first change: a signal that comes while the caps of a killed process are put right ends nothing.
    """
    asked = Asked()

    def end(*_: object) -> None:
        asked.stop = True
        end_within(within_s)

    def reload(*_: object) -> None:
        asked.reload = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.signal(signal.SIGHUP, reload)
    return asked


def run(options: Options) -> None:
    """Keep a node within its budget until SIGTERM or SIGINT. Raises PdpluginsError."""
    logging.basicConfig(level=logging.INFO)
    redact_logs(logging.root.handlers, "%(asctime)s %(name)s %(levelname)s %(message)s")
    config = load(find(options.config))
    asked = heed(config.node.restore_s + 10.0)
    with none_of_refused(options.decision_log), ExitStack() as stack:
        equipment = assembly.equip(config.node)
        seats = check(config, equipment)
        deployment = build_deployment(config)
        saved = None if options.shadow else SavedCaps(config.node.state)
        if saved is not None:
            stack.callback(saved.close)
            restore_others(config, equipment, saved)
        registry = CollectorRegistry()
        metrics, policy_metrics = NodeMetrics(registry), Metrics(Kind.POWER, registry)
        if options.metrics_port is not None:
            stack.callback(policy_metrics.serve(options.metrics_port, options.metrics_host))
        log_to, shadow = options.decision_log, options.shadow
        journal = build_journal(config, deployment, decision_log=log_to, metrics=[policy_metrics], shadow=shadow)
        stack.callback(journal.close)
        node = assembly.build_node(config, equipment, saved)
        kept = KeptRoles(config.node.state, seats, [device.uuid for device in equipment.devices])
        watch, roles = build_beside(config, seats, kept, build_controller(config, deployment).interval_s)
        controller = build_safe(config, deployment, journal)
        loop = PowerLoop(
            node, seats, roles, watch, controller, metrics, stale_s=config.node.stale_s, shadow=options.shadow
        )
        mode = "looks on (shadow)" if options.shadow else "keeps"
        log.info(
            "%s %s %d GPUs within %g W", config.power and config.power.name, mode, len(node.gpus), node.caps.budget_w
        )
        try:
            keep(loop, node, asked, lambda: _reload(options, config, loop, node, journal, asked))
        finally:
            try:
                roles.close(ROLES_S)
            finally:
                if saved is not None:
                    give_back(node, saved, config.node.restore_s)


def keep(loop: PowerLoop, node: PowerNode, asked: Asked, between: Callable[[], None]) -> None:
    """Step until asked to stop. Raises HostError when a GPU tells no cap at the start, or no cap can be set."""
    begun_s = time.monotonic()
    while not asked.stop:
        now_s = time.monotonic()
        loop.step(now_s)
        if not node.ready and now_s - begun_s > START_S:
            silent = next(gpu for gpu in node.gpus.values() if gpu.reading is None)
            raise HostError(f"{silent.why or silent.device.uuid + ' does not tell its cap'}; nothing was changed")
        if (refusal := forbidden(node)) is not None:
            raise HostError(refusal)
        between()
        time.sleep(PAUSE_S)


def forbidden(node: PowerNode) -> str | None:
    """Return why no cap can be set here at all; None once one was, or while none was tried."""
    if node.counts["write"] or not (node.counts[DeviceFault.PERMISSION] or node.counts[DeviceFault.NOT_SUPPORTED]):
        return None
    return next((gpu.refusal for gpu in node.gpus.values() if gpu.refusal), None)


def give_back(node: PowerNode, saved: SavedCaps, within_s: float, allowed_w: float | None = None) -> None:
    """Put the caps from before back. Raises HostError when that cannot be done; then they stay saved.

    Those of a process that was killed are put back also when this one ends before it has changed anything itself.

    :param within_s: for all of it. Half of that is for GPUs that have not told their caps yet.
    :param allowed_w: as for `PowerNode.give_back`.
    """
    end_s = time.monotonic() + within_s
    if not node.before_w:
        if not saved.load():
            return
        assembly.until(node, lambda: node.ready, within_s / 2)
        node.keep_before()
    node.give_back(allowed_w)
    for uuid, watts in node.before_w.items():
        _tell_moved(uuid, watts, node.back_w(uuid))
    if not assembly.until(node, lambda: not node.not_back, end_s - time.monotonic()):
        left = ", ".join(node.not_back[:1])
        raise HostError(
            f"after {within_s:g} s not all caps from before are back ({left}); "
            "run pdplugins power restore with the same options"
        )
    node.forget()
    log.info("the caps from before are back")


def _tell_moved(uuid: str, before_w: float, back_w: float) -> None:
    if back_w != before_w:
        log.warning("%s: its cap from before, %g W, is outside its limits; it gets %g W", uuid, before_w, back_w)


def restore_others(config: Config, equipment: assembly.Equipment, saved: SavedCaps) -> None:
    """Put right GPUs that a killed process changed and that take no part any more."""
    mine = {device.uuid for device in equipment.devices}
    others = {uuid: watts for uuid, watts in saved.load().items() if uuid not in mine}
    if not others:
        return
    backend, threads, within_s = equipment.backend, equipment.threads, START_S
    left: dict[str, float] = {}
    present = {device.uuid: device for device in assembly.listed(backend, threads, within_s)}
    for uuid, watts in others.items():
        if uuid not in present:
            why = assembly.unreadable(backend).get(uuid, "it is not there any more")
            log.warning("%s, whose cap was %g W, does not get it back now: %s", uuid, watts, why)
            left[uuid] = watts
            continue
        back_w = nearest_w(present[uuid], config.node.floor_w, watts)
        _tell_moved(uuid, watts, back_w)
        try:
            finished(threads(uuid, partial(backend.set_cap_w, uuid, back_w)), within_s, uuid)
        except DeviceError as error:
            log.warning("%s, whose cap was %g W, does not get it back now: %s", uuid, watts, error)
            left[uuid] = watts
        else:
            log.info("%s takes no part any more; it has its cap of %g W from before", uuid, back_w)
    saved.save({uuid: watts for uuid, watts in saved.load().items() if uuid in mine} | left)


def check(config: Config, equipment: assembly.Equipment) -> tuple[assembly.Seat, ...]:
    """Return the workers of the node. Raises ConfigError for whatever is wrong, before anything is touched."""
    if config.power is None:
        raise ConfigError("power: no policy chosen; add for example 'power: {name: rapid, budget_w: 4800}'")
    assembly.check_limits(config, equipment.devices)
    seats = assembly.seats(config, equipment.devices)
    seated = {gpu for seat in seats for gpu in seat.gpus}
    for index, device in enumerate(equipment.devices):
        if index not in seated:
            raise ConfigError(f"{device.uuid} serves no worker; name it in node.workers, or name node.gpus without it")
        for warning in device.warnings:
            log.warning("%s: %s", device.uuid, warning)
    check_first_plan(config, equipment.devices, first_plan(config, equipment.devices))
    return seats


def first_plan(config: Config, devices: tuple[Device, ...]) -> PowerPlan:
    """Return what the policy wants before there is any traffic."""
    seats = assembly.seats(config, devices)
    gpus = [GpuView(gpu, seat.role, 0.0, devices[gpu].max_w) for seat in seats for gpu in seat.gpus]
    pools = (Pool(sum(seat.role is role for seat in seats)) for role in Role)
    controller = build_controller(config, build_deployment(config))
    return controller.control(tuple(sorted(gpus, key=lambda gpu: gpu.index)), PlannerView(0.0, None, *pools))


def check_first_plan(config: Config, devices: tuple[Device, ...], plan: PowerPlan) -> None:
    """Raise ConfigError when these caps may not be set."""
    name, budget_w = config.power and config.power.name, assembly.budget_w(config)
    for index, cap_w in plan.caps_w.items():
        device = devices[index]
        low_w = max(device.min_w, config.node.floor_w)
        if not low_w <= cap_w <= device.max_w:
            raise ConfigError(
                f"power {name}: its first cap for {device.uuid}, {cap_w:g} W, is outside the limits, {low_w:g} to "
                f"{device.max_w:g} W; change its settings"
            )
    if (total_w := sum(plan.caps_w.values())) > budget_w:
        raise ConfigError(f"power {name}: its first caps sum to {total_w:g} W, the budget is {budget_w:g} W")


def build_controller(config: Config, deployment: Deployment) -> PowerController:
    """Return the policy. Raises ConfigError without one."""
    if (controller := build_policies(config, deployment).power()) is None:
        raise ConfigError("power: no policy chosen; add for example 'power: {name: rapid, budget_w: 4800}'")
    return controller


def build_safe(config: Config, deployment: Deployment, journal: Journal) -> SafePowerController:
    """Return the policy in its safe wrapper."""
    controller = build_controller(config, deployment)
    return SafePowerController(controller, deployment, budget_w=assembly.budget_w(config), journal=journal)


def build_beside(
    config: Config, seats: tuple[assembly.Seat, ...], kept: KeptRoles, interval_s: float
) -> tuple[Watch | None, Roles]:
    """Return who tells, and who changes roles. Raises ConfigError for an address that is none."""
    wanted = config.node
    key = _key(wanted)
    watch: Watch | None = None
    roles: Roles | None = None
    if wanted.beside == "gateway":
        gateway = Gateway(wanted.url or "", key)
        watch = Watch(gateway, interval_s)
        if wanted.actuator == "host":
            roles = GatewayRoles(seats, gateway)
    elif wanted.beside == "dynamo":
        watch = Watch(Frontend(wanted.url or ""), interval_s)
    if wanted.actuator == "command":
        roles = ActedRoles(kept.seats(), command_step(wanted.command, wanted.drain_s), wanted.drain_s, kept.keep)
    elif wanted.actuator == "role_switch":
        roles = ActedRoles(kept.seats(), role_switch_step(key, wanted.graph_gb), wanted.drain_s, kept.keep)
    return watch, roles or FixedRoles(seats)


def _key(wanted: NodeConfig) -> str | None:
    if wanted.key_file is None:
        return None
    return read_secret(wanted.key_file, "node.key_file", "")


def _reload(
    options: Options,
    config: Config,
    loop: PowerLoop,
    node: PowerNode,
    journal: StandardJournal,
    asked: Asked,
) -> None:
    """Read the config again, if that is wanted: the policy, its settings, the SLOs and the budget."""
    if not asked.reload:
        return
    asked.reload = False
    try:
        new, controller, budget_w = _reread(options, config, node, journal)
    except PdpluginsError as error:
        log.error("not reloaded, the old config goes on: %s", error)  # noqa: TRY400 - one line, as for users
        return
    except Exception:  # a policy may raise anything; with this process the caps would go
        log.exception("not reloaded, the old config goes on")
        return
    journal.begin(new, build_deployment(new))
    loop.controller, node.caps.budget_w = controller, budget_w
    node.fit()
    log.info("reloaded: %s within %g W", new.power and new.power.name, budget_w)


def _reread(
    options: Options, config: Config, node: PowerNode, journal: Journal
) -> tuple[Config, SafePowerController, float]:
    """Return what the config says now, the policy, and the budget. Raises ConfigError."""
    new = load(find(options.config))
    fixed = {"budget_w"}
    if new.node.model_dump(exclude=fixed) != config.node.model_dump(exclude=fixed):
        raise ConfigError("the section node has changed; restart for anything but node.budget_w")
    assembly.check_limits(new, tuple(gpu.device for gpu in node.gpus.values()))
    return new, build_safe(new, build_deployment(new), journal), assembly.budget_w(new)
