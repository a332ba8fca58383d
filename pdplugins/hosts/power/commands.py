"""``pdplugins power``: look at the watts of this node, keep them within a budget, set caps once, put them back."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pdplugins.config import Choice, NodeConfig, find, load
from pdplugins.contracts.power import Device, DeviceError, Reading
from pdplugins.errors import ConfigError, HostError, shown
from pdplugins.files import check_apart
from pdplugins.hosts.power import assembly, daemon
from pdplugins.power.calls import each_finished
from pdplugins.power.node import GRAIN_W, PowerNode, nearest_w
from pdplugins.power.saved import SavedCaps, saved_caps
from pdplugins.runtime.decision_log import outputs_of

MOST_W = 1e6
"""Watts of the largest cap that anybody may mean."""

app = typer.Typer(
    no_args_is_help=True,
    help="Keep the GPUs of this node within a power budget. Read docs/power.md first: it names the dangers.",
)

CHANGE_S = 30.0
"""Longest time of one change of caps."""

ConfigName = Annotated[str | None, typer.Option("--config", help="Take the section node of this config.")]
Backend = Annotated[str | None, typer.Option(help="Driver library of the GPUs: nvml, amdsmi, simulated.")]
State = Annotated[Path | None, typer.Option(help="Folder for the lock and the original caps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def status(config: ConfigName = None, backend: Backend = None, state: State = None, as_json: AsJson = False) -> None:
    """Show every GPU: its limits, its cap, its draw, and the cap that `restore` would put back."""
    wanted, _ = _wanted(config, backend, state)
    equipment, left = assembly.equip_those_there(wanted, wanted.gpus)
    before_w = saved_caps(wanted.state)
    told = _readings(equipment, equipment.devices, wanted.call_s)
    rows = [_row(device, told[device.uuid], before_w.get(device.uuid)) for device in equipment.devices]
    rows += [_row_of_unreadable(uuid, why, before_w.get(uuid)) for uuid, why in left.items()]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("GPU", "name", "limits W", "cap W", "draw W", "energy kJ", "before W", box=None, header_style="bold")
    for row in rows:
        energy_j = row["energy_j"]
        table.add_row(
            row["uuid"], row["name"], _limits(row), _watts(row["cap_w"]), _watts(row["draw_w"]),
            "" if energy_j is None else f"{energy_j / 1e3:.1f}", _watts(row["before_w"]),
        )  # fmt: skip
    Console(highlight=False, soft_wrap=True).print(table)
    for row in rows:
        for line in (*row["warnings"], *filter(None, [row["error"]])):
            typer.echo(f"{row['uuid']}: {line.removeprefix(row['uuid'] + ': ')}", err=True)


@app.command()
def run(
    config: Annotated[str, typer.Option("--config", help="A config file, or the name of a shipped one.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show the first caps, and leave.")
    ] = False,
    shadow: Annotated[bool, typer.Option("--shadow", help="Decide, log and count, and change nothing.")] = False,
    metrics_port: Annotated[int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics here.")] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of the metrics.")] = "127.0.0.1",
    decision_log: Annotated[Path | None, typer.Option(help="File to append decisions to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Keep the GPUs of this node within a power budget, as the power policy of a config wants, until Ctrl-C.

    SIGHUP reads the config again. At the end, the caps from before are put back.
    """
    if dry_run:
        _dry_run(config, as_json)
        return
    check_apart(outputs_of("--decision-log", decision_log), {"--config": find(config)})
    daemon.run(daemon.Options(config, shadow, metrics_port, metrics_host, decision_log))


@app.command()
def restore(config: ConfigName = None, backend: Backend = None, state: State = None) -> None:
    """Put back the caps from before, which a process that was killed could not, or `cap` has changed."""
    wanted, _ = _wanted(config, backend, state)
    saved = SavedCaps(wanted.state)
    try:
        if not (before_w := saved.load()):
            typer.echo(f"nothing to put back: {wanted.state} holds no caps from before this start of the machine")
            return
        equipment, left = assembly.equip_those_there(wanted, before_w)
        missing = _missing(left, before_w, wanted.state)
        if equipment.devices:
            allowed_w = _allowed_w(equipment, before_w, wanted.floor_w)
            node = _node(wanted, saved, equipment, allowed_w)
            try:
                daemon.give_back(node, saved, wanted.restore_s, allowed_w)
            except HostError as error:
                raise HostError(f"{error}; {missing}" if missing else str(error)) from None
            typer.echo(f"{len(equipment.devices)} GPUs have the caps from before")
        if missing:
            raise HostError(missing)
    finally:
        saved.close()


@app.command()
def cap(
    caps: Annotated[list[str], typer.Argument(metavar="UUID=WATTS...", help="The caps; all=WATTS for every GPU.")],
    config: ConfigName = None,
    backend: Backend = None,
    state: State = None,
) -> None:
    """Set caps once, those that fall first, and leave them. `restore` puts the caps from before back.

    No cap rises where all together would exceed the budget that the config names. A GPU that is not asked for stays as
    it is, and may be lost.
    """
    wanted, budget_w = _wanted(config, backend, state)
    asked = dict(map(_cap, caps))
    if len(asked) < len(caps):
        raise ConfigError("power cap: a GPU is named twice; give it one cap")
    equipment, left = assembly.equip_those_there(wanted, wanted.gpus)
    uuids = [device.uuid for device in equipment.devices]
    every = asked.pop("all", None)
    caps_w = ({} if every is None else dict.fromkeys([*uuids, *left], every)) | asked
    if lost := [uuid for uuid in caps_w if uuid in left]:
        raise HostError(f"{_named(lost[0], left[lost[0]])}; nothing was changed")
    if unknown := [uuid for uuid in caps_w if uuid not in uuids]:
        raise ConfigError(f"there is no GPU {shown(unknown[0])}; there are {', '.join(uuids)}")
    if low := [uuid for uuid, watts in caps_w.items() if watts < wanted.floor_w]:
        raise ConfigError(f"{low[0]}: {caps_w[low[0]]:g} W is below node.floor_w, {wanted.floor_w:g} W")
    saved = SavedCaps(wanted.state)
    try:
        others = [device for device in equipment.devices if device.uuid not in caps_w]
        asked_for = [device for device in equipment.devices if device.uuid in caps_w]
        node = _ready(wanted, saved, replace(equipment, devices=tuple(asked_for)))
        others_w = 0.0 if budget_w is None else _others_w(equipment, others, len(left), wanted.call_s)
        node.caps.budget_w = _budget_of_cap(node, caps_w, budget_w, others_w)
        node.check(caps_w)
        noted = bool(saved.load())
        node.keep_before()
        node.aim(caps_w, -math.inf)
        if not assembly.until(node, lambda: node.caps.complete, CHANGE_S) or node.counts["rollback"]:
            if not noted:
                node.forget()  # else caps that somebody sets by other means later would count as set by us
            raise HostError(_why_not(node))
        restore = shlex.join(["pdplugins", "power", "restore", *_same_options(config, backend, state)])
        typer.echo(f"{len(caps_w)} GPUs have new caps; {restore} puts the old ones back")
    finally:
        saved.close()


def _dry_run(name: str, as_json: bool) -> None:
    config = load(find(name))
    equipment = assembly.equip(config.node)
    seats, first = daemon.check(config, equipment), daemon.first_plan(config, equipment.devices)
    rows = [
        {
            "uuid": equipment.devices[gpu].uuid,
            "worker": seat.worker,
            "role": str(seat.role),
            "cap_w": first.caps_w.get(gpu),
        }
        for seat in seats
        for gpu in seat.gpus
    ]
    if as_json:
        typer.echo(json.dumps({"budget_w": assembly.budget_w(config), "gpus": rows}, indent=1))
        return
    table = Table("GPU", "worker", "role", "first cap W", box=None, header_style="bold")
    for row in rows:
        table.add_row(str(row["uuid"]), str(row["worker"]), str(row["role"]), _watts(row["cap_w"]))
    Console(highlight=False, soft_wrap=True).print(table)
    typer.echo(f"budget {assembly.budget_w(config):g} W; nothing was changed")


def _others_w(equipment: assembly.Equipment, devices: Sequence[Device], left: int, within_s: float) -> float:
    """Return the watts of the caps of some devices. One that does not tell its cap counts at the highest it takes.

    :param left: how many more cannot be read at all. Nobody knows their limits: they count at the highest of any.
    """
    told = _readings(equipment, devices, within_s)
    caps_w = [
        device.max_w if isinstance(one, DeviceError) else one.cap_w
        for device, one in ((device, told[device.uuid]) for device in devices)
    ]
    return math.fsum(caps_w) + left * max(device.max_w for device in equipment.devices)


def _budget_of_cap(node: PowerNode, caps_w: Mapping[str, float], budget_w: float | None, others_w: float) -> float:
    """Return what the GPUs of a node may draw while these caps are set. Raises ConfigError for rises above the budget.

    :param budget_w: that the config names. Without it, they may draw what the old caps allow, or the new ones.
    :param others_w: what the GPUs outside the node may draw of it.
    """
    told_w = {uuid: account.told_w for uuid, account in node.caps.accounts.items()}
    new_w = math.fsum(caps_w.values())
    if budget_w is None:
        return max(math.fsum(told_w.values()), new_w)
    if new_w + others_w > budget_w + GRAIN_W and any(watts > told_w[uuid] for uuid, watts in caps_w.items()):
        raise ConfigError(
            f"all caps would sum to {new_w + others_w:g} W, the config names a budget of {budget_w:g} W; ask for lower "
            "caps, or raise the budget in the config"
        )
    return max(budget_w - others_w, new_w)


def _allowed_w(equipment: assembly.Equipment, before_w: Mapping[str, float], floor_w: float) -> float:
    """Return the watts within which GPUs that can be read get their caps from before.

    That is the sum of those caps, also where a budget is more: GPUs that are not noted have the rest of it. What a GPU
    that cannot be read may draw is taken off: nobody knows its limits, so it counts at the highest of the others.

    :param before_w: of all GPUs that are noted.
    """
    devices = {device.uuid: device for device in equipment.devices}
    hidden = [uuid for uuid in before_w if uuid not in devices] if assembly.unreadable(equipment.backend) else []
    highest_w = max(device.max_w for device in equipment.devices)
    back_w = [nearest_w(device, floor_w, before_w[uuid]) for uuid, device in devices.items()]
    hidden_w = [min(before_w[uuid], highest_w) for uuid in hidden]
    return math.fsum(back_w + hidden_w) - highest_w * len(hidden)


def _missing(left: Mapping[str, str], before_w: Mapping[str, float], state: Path) -> str:
    """Return what to say of GPUs that take no part in `restore`; nothing without any."""
    if not left:
        return ""
    uuid, why = next(iter(left.items()))
    more = f", as do those of {len(left) - 1} more GPUs" if len(left) > 1 else ""
    return f"{_named(uuid, why)}; its cap of {before_w[uuid]:g} W from before stays noted in {state}{more}"


def _wanted(config: str | None, backend: str | None, state: Path | None) -> tuple[NodeConfig, float | None]:
    """Return the section node of a config, or the default one, with the options given; and the budget it names."""
    loaded = None if config is None else load(find(config))
    wanted = NodeConfig() if loaded is None else loaded.node
    given: dict[str, Any] = {}
    if backend is not None:
        given["backend"] = Choice(name=backend)
    if state is not None:
        given["state"] = state
    return wanted.model_copy(update=given), None if loaded is None else assembly.named_budget_w(loaded)


def _ready(wanted: NodeConfig, saved: SavedCaps, equipment: assembly.Equipment) -> PowerNode:
    """Return a node of these GPUs, once each has told its cap. Raises HostError for one that does not."""
    node = _node(wanted, saved, equipment, math.inf)
    if not assembly.until(node, lambda: node.ready, daemon.START_S):
        silent = next(gpu for gpu in node.gpus.values() if gpu.reading is None)
        raise HostError(f"{silent.why or silent.device.uuid + ' does not answer'}; nothing was changed")
    return node


def _node(wanted: NodeConfig, saved: SavedCaps, equipment: assembly.Equipment, budget_w: float) -> PowerNode:
    return PowerNode(
        equipment.backend,
        equipment.devices,
        budget_w,
        equipment.threads,
        saved=saved,
        patience=assembly.patience(wanted),
        floor_w=wanted.floor_w,
    )


def _same_options(config: str | None, backend: str | None, state: Path | None) -> list[str]:
    """Return the options that name the same GPUs and the same folder for another command."""
    given = {"--config": config, "--backend": backend, "--state": state}
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]


def _why_not(node: PowerNode) -> str:
    wrong = next((gpu.refusal for gpu in node.gpus.values() if gpu.refusal), "the draw of a GPU did not follow its cap")
    return f"the caps were not changed, or were changed back: {wrong}"


def _cap(text: str) -> tuple[str, float]:
    uuid, _, watts = text.rpartition("=")
    try:
        cap_w = float(watts)
    except ValueError:
        cap_w = math.nan
    if not uuid or not abs(cap_w) <= MOST_W:
        raise ConfigError(f"{shown(text)}: say UUID=WATTS, for example all=500")
    return uuid, cap_w


def _named(uuid: str, why: str) -> str:
    """Return what is wrong with a GPU, and its name before that: most errors of drivers begin with it."""
    return f"{uuid}: {why.removeprefix(uuid + ': ')}"


def _readings(
    equipment: assembly.Equipment, devices: Sequence[Device], within_s: float
) -> dict[str, Reading | DeviceError]:
    """Read some devices at once. Return what each one tells, or what is wrong with it."""
    works = {one.uuid: partial(equipment.backend.read, one.uuid) for one in devices}
    return each_finished(equipment.threads, works, within_s)


def _row(device: Device, told: Reading | DeviceError, before_w: float | None) -> dict[str, Any]:
    reading, why = (None, str(told)) if isinstance(told, DeviceError) else (told, "")
    return {
        "uuid": device.uuid,
        "name": device.name,
        "min_w": device.min_w,
        "max_w": device.max_w,
        "default_w": device.default_w,
        "cap_w": reading and reading.cap_w,
        "draw_w": reading and reading.draw_w,
        "energy_j": reading and reading.energy_j,
        "before_w": before_w,
        "warnings": list(device.warnings),
        "error": why,
    }


def _row_of_unreadable(uuid: str, why: str, before_w: float | None) -> dict[str, Any]:
    nothing = dict.fromkeys(("name", "min_w", "max_w", "default_w", "cap_w", "draw_w", "energy_j"))
    return {"uuid": uuid, **nothing, "before_w": before_w, "warnings": [], "error": why}


def _limits(row: dict[str, Any]) -> str:
    return "" if row["min_w"] is None else f"{row['min_w']:g}-{row['max_w']:g}"


def _watts(value: Any) -> str:
    return "" if value is None else f"{value:.0f}"
