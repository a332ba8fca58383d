"""Turns a checked config into the node that a power controller works on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pdplugins.config import Config, NodeConfig, settings_of
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.power import Device, DeviceError, PowerBackend
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError, HostError, one_line
from pdplugins.power.calls import LIST_S, DeviceThreads, finished
from pdplugins.power.node import Patience, PowerNode
from pdplugins.power.saved import SavedCaps
from pdplugins.registry import default_registry

FIRST_CALLS = 10
"""Patience with the first calls to a driver, in multiples of ``node.call_s``: one that was just loaded is slow."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker of the node."""

    worker: str
    gpus: tuple[int, ...]
    """Indices of its GPUs, by which power controllers call them."""
    role: Role


@dataclass(frozen=True, slots=True)
class Equipment:
    """The devices of a node, and who speaks with them."""

    backend: PowerBackend
    devices: tuple[Device, ...]
    threads: DeviceThreads


def equip(wanted: NodeConfig) -> Equipment:
    """Find the devices that take part.

    Raises HostError without a driver, ConfigError when a GPU is not there, DeviceError when one that takes part cannot
    be read.
    """
    found = _found(wanted)
    there = {device.uuid: device for device in found.devices}
    check_readable(wanted.gpus, there, unreadable(found.backend))
    devices = tuple(there[uuid] for uuid in wanted.gpus) if wanted.gpus else found.devices
    if not devices:
        raise _none_here(wanted)
    return replace(found, devices=devices)


def equip_those_there(wanted: NodeConfig, uuids: Collection[str]) -> tuple[Equipment, dict[str, str]]:
    """Find those of some devices that are there and can be read. Return them, and why the others cannot take part.

    Raises HostError without a driver, and where there is no device at all.

    :param uuids: of the devices; all without any.
    """
    found = _found(wanted)
    there = {device.uuid: device for device in found.devices}
    broken = unreadable(found.backend)
    uuids = uuids or (*there, *broken)
    if not uuids:
        raise _none_here(wanted)
    left = {uuid: str(broken.get(uuid, "it is not there any more")) for uuid in uuids if uuid not in there}
    return replace(found, devices=tuple(there[uuid] for uuid in uuids if uuid in there)), left


def _none_here(wanted: NodeConfig) -> HostError:
    return HostError(f"power backend {wanted.backend.name}: this machine has no GPU that it knows")


def _found(wanted: NodeConfig) -> Equipment:
    """Return every device that can be read."""
    registration = default_registry().get("power_backend", wanted.backend.name)
    settings = settings_of("power_backend", wanted.backend)
    threads = DeviceThreads()
    within_s = FIRST_CALLS * wanted.call_s
    backend: PowerBackend = finished(threads("", lambda: registration.factory(settings)), within_s)
    return Equipment(backend, listed(backend, threads, within_s + LIST_S), threads)


def listed(backend: PowerBackend, threads: DeviceThreads, within_s: float) -> tuple[Device, ...]:
    """Return every device that can be read. Raises DeviceError when the driver does not list them in time."""
    return tuple(finished(threads("", backend.devices), within_s, late="it does not list its GPUs"))


def unreadable(backend: PowerBackend) -> Mapping[str, DeviceError]:
    """Return what was wrong with the GPUs that the last `devices` passed over; nothing where a backend does not say."""
    told: Mapping[str, DeviceError] = getattr(backend, "unreadable", {})
    return told


def check_readable(uuids: Collection[str], found: Collection[str], broken: Mapping[str, DeviceError]) -> None:
    """Raise DeviceError for a GPU that takes part and cannot be read, ConfigError for one that is not there.

    :param uuids: those that take part; all without any.
    """
    if not uuids and broken:
        raise next(iter(broken.values()))
    for uuid in uuids:
        if uuid in broken:
            raise broken[uuid]
        if uuid not in found:
            there = ", ".join(found) or "none"
            rest = "".join(f"; {error}" for error in broken.values())
            raise ConfigError(f"node.gpus: there is no {one_line(uuid)} here; there are {there}{rest}")


def patience(wanted: NodeConfig) -> Patience:
    """Return how long a node waits for its devices."""
    return Patience(wanted.settle_s, wanted.obey_s, wanted.rest_s, wanted.call_s, wanted.poll_s, wanted.tolerance_w)


def budget_w(config: Config) -> float:
    """Return the budget of the node. Raises ConfigError when nobody names one, or the policy's is larger."""
    own, named = _policy_setting(config, "budget_w"), named_budget_w(config)
    if named is None:
        raise ConfigError("node.budget_w: say how many watts the caps of all GPUs may sum to")
    if own is not None and own > named:
        raise ConfigError(f"power {_name(config)}: budget_w {own:g} is more than node.budget_w {named:g}; lower it")
    return named


def named_budget_w(config: Config) -> float | None:
    """Return the budget that a config names in its section node, else in its power policy; None where neither does."""
    return _policy_setting(config, "budget_w") if config.node.budget_w is None else config.node.budget_w


def check_limits(config: Config, devices: tuple[Device, ...]) -> None:
    """Raise ConfigError when the policy may ask for caps that a device does not take."""
    least, most = (_policy_setting(config, name) for name in ("min_w", "max_w"))
    for device in devices:
        low_w, high_w = max(device.min_w, config.node.floor_w), device.max_w
        for name, watts, fits in (
            ("min_w", least, least is None or least >= low_w),
            ("max_w", most, most is None or most <= high_w),
        ):
            if not fits:
                raise ConfigError(
                    f"power {_name(config)}: {name} {watts:g} is outside the limits of {device.uuid}, {low_w:g} to "
                    f"{high_w:g} W; change {name}"
                )
    least_w = sum(max(device.min_w, config.node.floor_w) for device in devices)
    if least_w > budget_w(config):
        raise ConfigError(
            f"node: {len(devices)} GPUs draw {least_w:g} W at their lowest caps, the budget is "
            f"{budget_w(config):g} W; raise budget_w or leave GPUs out of node.gpus"
        )


def seats(config: Config, devices: tuple[Device, ...]) -> tuple[Seat, ...]:
    """Return the workers of the node: those of the config, or as many as its deployment has. Raises ConfigError."""
    indices = {device.uuid: index for index, device in enumerate(devices)}
    if config.node.workers:
        given = tuple(
            Seat(one.worker, tuple(_index(indices, one.worker, uuid) for uuid in one.gpus), one.role)
            for one in config.node.workers
        )
        used = [index for seat in given for index in seat.gpus]
        if len(set(used)) < len(used) or len({seat.worker for seat in given}) < len(given):
            raise ConfigError("node.workers: a GPU or a worker is there twice; name each one once")
        return given
    wanted, made = config.deployment, []
    free = list(indices.values())
    for role, pool in ((Role.PREFILL, wanted.prefill), (Role.DECODE, wanted.decode)):
        for _ in range(pool.replicas):
            count = pool.tp if isinstance(pool.tp, int) else 1
            if len(free) < count:
                raise ConfigError(
                    f"node: {len(devices)} GPUs are fewer than the workers of the deployment need; name node.workers"
                )
            made.append(Seat(f"gpu{free[0]}", tuple(free[:count]), role))
            del free[:count]
    return tuple(made)


def build_node(config: Config, equipment: Equipment, saved: SavedCaps | None) -> PowerNode:
    """Return the node. Without `saved` it only looks on."""
    return PowerNode(
        equipment.backend,
        equipment.devices,
        budget_w(config),
        equipment.threads,
        saved=saved,
        patience=patience(config.node),
        floor_w=config.node.floor_w,
    )


def until(node: PowerNode, done: Callable[[], bool], within_s: float) -> bool:
    """Let a node work until `done`; False when that takes too long."""
    end_s = time.monotonic() + within_s
    while not done():
        if (now_s := time.monotonic()) > end_s:
            return False
        node.tick(now_s)
        time.sleep(0.005)
    return True


def _index(indices: dict[str, int], worker: str, uuid: str) -> int:
    if uuid not in indices:
        raise ConfigError(f"node.workers: {one_line(worker)} has {one_line(uuid)}, which does not take part")
    return indices[uuid]


def _name(config: Config) -> str:
    return config.power.name if config.power is not None else "?"


def _policy_setting(config: Config, name: str) -> float | None:
    """Return a number that the settings of the power policy have under a name; None where they have none."""
    if config.power is None:
        return None
    value = getattr(settings_of(Kind.POWER, config.power), name, None)
    return float(value) if isinstance(value, int | float) else None
