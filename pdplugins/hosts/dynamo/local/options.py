"""What ``dynamo serve`` was asked for, checked before anything starts."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pdplugins.config import Choice, Config, find, load, parse, settings_of, shipped
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.roles import MovesRoles
from pdplugins.errors import ConfigError, HostError, cannot_listen, is_address_wrong, one_line
from pdplugins.files import STDOUT, is_folder
from pdplugins.hosts.dynamo.local.misses import Hindsight
from pdplugins.hosts.dynamo.local.sglang_options import SglangSpec
from pdplugins.hosts.dynamo.mocker import Engines
from pdplugins.processes.ports import free_ports
from pdplugins.registry import BUNDLE, default_registry
from pdplugins.report.address import Address
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.faults import implements
from pdplugins.runtime.policies import build_policies
from pdplugins.settings import Setting, put
from pdplugins.workloads import traces, transform
from pdplugins.workloads.trace import TraceRequest

ENGINES = ("mocker", "sglang")
_KNOWN_ENGINES = ("mocker", "sglang", "vllm", "trtllm")

Status = Literal["rich", "plain", "json-lines"]


@dataclass(frozen=True, slots=True)
class LiveReplay:
    """A trace to replay against the stack, read once, so that its errors show before anything starts."""

    trace: Path
    duration_s: float | None
    """Seconds of trace time to replay; None for the whole trace."""
    speed: float
    report: Path | None
    requests: Sequence[TraceRequest]
    """What the client sends: clipped, and at that speed."""
    page: Path | None = None
    """Where the report for people goes."""

    @property
    def total(self) -> int:
        """Count the requests, every round of a session as one."""
        return transform.total(self.requests)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything the launcher needs to know."""

    config: Config
    engine: str
    host: str
    port: int
    delay_s: float
    """Seconds that a worker which the planner adds waits before it starts its engine."""
    status: Status
    decision_log: Path | None
    metrics_port: int | None
    log_dir: Path | None
    replay: LiveReplay | None
    command: str
    """The command line, for the report."""
    hindsight: Hindsight | None = None
    """What says how fixed pools would have done; None where there is no simulator."""
    dashboard: Address | None = None
    """Where browsers see what goes on."""
    sglang: SglangSpec | None = None
    """What the workers run where the engine is SGLang."""
    routed: bool = False
    """Whether requests go through our router, and not where Dynamo's frontend sends them."""
    state: Path | None = None
    """Where what the planner learned is kept for the next run."""

    @property
    def url(self) -> str:
        """Root of the OpenAI endpoint, as a client on this machine reaches it."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def both(self) -> bool:
        """Whether each worker does both phases: only our router knows how to use such workers."""
        return self.routed and self.config.any_role

    @property
    def model(self) -> str:
        """Name of the served model: that of its folder, else of the profile, ``<gpu>/<model>`` or a ``.json`` file."""
        if self.sglang is not None:
            return self.sglang.model.name
        return self.config.deployment.profile.rpartition("/")[2].removesuffix(".json")


def pick_config(
    planner: str | None,
    path: str | None,
    prefill: int | None,
    decode: int | None,
    startup_s: float,
    router: str | None = None,
    *,
    settings: Sequence[Setting] = (),
    engine: str = "mocker",
) -> Config:
    """Load the config that the options mean, with the options on top.

    It is `path`, or the shipped one of `router`, or of `planner`. With a router and no planner the pools stay as they
    are. Raises ConfigError when there is no such file or plugin, or when nothing names a planner.
    """
    if planner is not None:
        default_registry().policy(Kind.PLANNER, planner)
    config = load(find(path)) if path else _config_of(planner, router)
    if planner is not None:
        config = _with_planner(config, planner)
    if router is not None:
        config = _with_router(config, router)
    if settings:
        config = _with_settings(config, settings)
    config = _planned(config)
    if config.planner is None and router is None:
        names = ", ".join(default_registry().names("planner"))
        raise ConfigError(f"serve: no planner; add --planner NAME ({names}) or 'planner: NAME' to the config file")
    pools = config.deployment
    changes: dict[str, object] = {"startup_s": startup_s}
    if prefill is not None:
        changes["prefill"] = pools.prefill.model_copy(update={"replicas": prefill})
    if decode is not None:
        changes["decode"] = pools.decode.model_copy(update={"replicas": decode})
    pools = pools.model_copy(update=changes)
    update: dict[str, object] = {"deployment": pools}
    if router is not None and config.planner in (None, Choice(name="static")):
        counts = {"prefill": pools.prefill.replicas, "decode": pools.decode.replicas}
        update["planner"] = Choice.model_validate({"name": "static", **counts})
    config = config.model_copy(update=update)
    return config if engine == "sglang" else Engines().told(config)  # SGLang's say what KV cache they have


def _with_settings(config: Config, settings: Sequence[Setting]) -> Config:
    """Return `config` with those settings. Raises ConfigError for a start-up time, which would be replaced unseen."""
    data = config.model_dump(mode="json")
    del data["deployment"]["startup_s"]
    for setting in settings:
        put(data, setting)
    changed = parse(data, "serve")
    if "startup_s" in data["deployment"]:
        asked_s = changed.deployment.startup_s
        raise ConfigError(f"serve: deployment.startup_s is what --startup says here; give --startup {asked_s:g}")
    return changed


def _with_planner(config: Config, planner: str) -> Config:
    """Return `config` with that planner. Its own settings of it stay; a bundle is told to scale."""
    if config.planner is not None and config.planner.name == planner:
        return config
    if default_registry().policy(Kind.PLANNER, planner).kind != BUNDLE:
        return config.model_copy(update={"planner": Choice(name=planner)})
    if config.bundle is not None and config.bundle.name == planner:
        return config.model_copy(update={"bundle": _scaling(config.bundle), "planner": Choice(name=planner)})
    return config.model_copy(update={"planner": _scaling(Choice(name=planner))})


def _scaling(bundle: Choice) -> Choice:
    """Return a bundle with its planner: where its settings have `scale`, it has one only with that."""
    if "scale" not in type(settings_of(BUNDLE, bundle)).model_fields:
        return bundle
    return Choice.model_validate({**bundle.model_dump(), "scale": True})


def _planned(config: Config) -> Config:
    """Return `config` with the planner of its bundle by name, where that has one."""
    if config.planner is not None or config.bundle is None:
        return config
    planner = build_policies(config, build_deployment(config)).planner()
    return config if planner is None else config.model_copy(update={"planner": Choice(name=config.bundle.name)})


def _with_router(config: Config, router: str) -> Config:
    """Return `config` with that router. Its own settings of it stay. Raises ConfigError when there is none."""
    kind = default_registry().policy(Kind.ROUTER, router).kind
    if kind == BUNDLE and config.router is None and config.bundle is not None and config.bundle.name == router:
        return config
    if config.router is not None and config.router.name == router:
        return config
    return config.model_copy(update={"router": Choice(name=router)})


def check_router(config: Config, deployment: Deployment) -> None:
    """Raise ConfigError when the workers cannot do what the router of `config` is made of."""
    router = build_policies(config, deployment).router()
    if router is None:
        raise ConfigError("router: none chosen; add for example --router dopd")
    if config.any_role and deployment.prefill_tp != deployment.decode_tp:
        raise ConfigError(
            f"deployment: workers that do both phases have one tp; prefill has {deployment.prefill_tp} and decode "
            f"{deployment.decode_tp}"
        )
    if not config.any_role and implements(router, MovesRoles):
        raise ConfigError(
            f"router {type(router).__name__}: it moves workers between roles, and these keep theirs; let workers do "
            "both phases with 'simulation: {flip: label}' in the config"
        )


def not_driven(config: Config, *, routed: bool = False, engine: str = "mocker") -> list[str]:
    """Return a line for each choice of `config` that this host leaves to Dynamo: one config file serves every host.

    :param routed: whether our router is in the path of requests.
    :param engine: of the workers; in SGLang's our plugin runs the batch scheduler.
    """
    lines = []
    if not routed:
        chosen = ((kind, config.choice(kind)) for kind in (Kind.ROUTER, Kind.FLOW))
        why = "Dynamo's own routing is used; --router NAME changes that"
        lines += [f"{kind} {choice.name}: {why}" for kind, choice in chosen if choice]
    left = (Kind.POWER,) if engine == "sglang" else (Kind.BATCH_SCHEDULER, Kind.POWER)
    chosen = ((kind, config.choice(kind)) for kind in left)
    return lines + [
        f"{kind} {c.name}: not driven by the local launcher; Dynamo's own is used" for kind, c in chosen if c
    ]


def _config_of(planner: str | None, router: str | None) -> Config:
    if router in shipped():
        return load(find(str(router)))
    if planner in shipped():
        return load(find(str(planner)))
    return Config(planner=Choice(name=planner)) if planner else load(find("dopd"))


def check_engine(engine: str) -> None:
    """Raise ConfigError unless the launcher can start `engine`."""
    if engine in ENGINES:
        return
    if engine in _KNOWN_ENGINES:
        raise ConfigError(f"--engine {engine}: the local launcher does not start it yet; choose {', '.join(ENGINES)}")
    raise ConfigError(f"--engine {engine}: unknown engine; choose from {', '.join(ENGINES)}")


def live_replay(
    trace: str | None, duration_s: float | None, speed: float, report: Path | None, page: Path | None = None
) -> LiveReplay | None:
    """Return what ``--trace`` and its options mean; None without a trace.

    Raises ConfigError for options that do not go together, TraceError for the trace.
    """
    if trace is None:
        given = {"--clip-s": duration_s, "--speed": speed if speed != 1 else None, "--json": report, "--html": page}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is about a replay; add --trace TRACE")
        return None
    requests = traces.read(Path(trace))
    if duration_s is not None:
        requests = transform.clip(requests, duration_s)
    return LiveReplay(Path(trace), duration_s, speed, report, transform.scale(requests, speed), page)


def check_writable(option: str, path: Path | None) -> None:
    """Raise ConfigError when a file that is to be written cannot be."""
    if path is None or path == STDOUT:
        return
    folder = path.absolute().parent
    if is_folder(path) or not is_folder(folder) or not os.access(folder, os.W_OK):
        raise ConfigError(f"{option} {path}: cannot write there; give a file in a folder that exists")


def pick_port(host: str, port: int, option: str = "--port") -> int:
    """Return `port`, or any free one for 0. Raises HostError when it cannot be listened on."""
    if not host:
        raise ConfigError("--host: say which address; 127.0.0.1 is this machine only, 0.0.0.0 every address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError, OverflowError) as error:
        if is_address_wrong(error):
            raise cannot_listen("--host", host, port, error) from None
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        what = "is in use" if taken else f"cannot be used ({getattr(error, 'strerror', None) or error})"
        where = f"port {port} on {one_line(host)}"
        raise HostError(f"{where} {what}; choose another with {option}, or 0 for any free one") from None
    return port or free_ports(1, host)[0]
