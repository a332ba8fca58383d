"""The config file: one YAML file for all hosts, which picks plugins by name and describes the deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError, meant, one_line, shown
from pdplugins.limits import GatewayConfig, TermsConfig
from pdplugins.registry import BUNDLE, Registration, Registry, default_registry
from pdplugins.resources import data_dir
from pdplugins.safe_yaml import read_yaml

LONGEST_S = 1e9
"""The longest time, thirty years: clocks can tell it, also that of the simulator."""
MOST_GPUS = 2**16
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Pause = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
Watts = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MOST_NAME = 250
"""Characters of the longest name or path."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SloConfig(_Section):
    """The objectives of each request."""

    ttft_s: Seconds = Field(2.0, description="time to first token")
    tpot_s: Seconds = Field(0.08, description="time per output token after the first")


class PoolConfig(_Section):
    """The workers of one role at start."""

    replicas: int = Field(1, ge=0, description="workers at start; 0 where those of the other role do both phases")
    tp: int | Literal["auto"] = Field(1, description="GPUs per worker, or auto: DOPD's choice (Eq. 11-16)")

    @model_validator(mode="after")
    def _positive(self) -> PoolConfig:
        if self.tp != "auto" and self.tp < 1:
            raise ValueError("tp must be at least 1, or auto")
        return self


class DeploymentConfig(_Section):
    """The model, the GPUs and the pools."""

    profile: str = Field(
        "h100/llama-3.1-70b-fp8", max_length=MOST_NAME, description="performance profile, <gpu>/<model>"
    )
    gpu_budget: int = Field(8, ge=2, le=MOST_GPUS, description="GPUs that all workers may use together")
    startup_s: Pause = Field(30.0, description="seconds until a new worker serves")
    max_batch: int = Field(256, ge=1, description="largest decode batch of a worker (its CUDA graphs)")
    kv_tokens: int | None = Field(
        None, ge=1, description="KV cache of a decode worker that its engine states; else Eq. 11"
    )
    isl_tokens: int = Field(1024, ge=1, description="prompt length to choose tp: auto for")
    osl_tokens: int = Field(256, ge=1, description="output length to choose tp: auto for")
    prefill: PoolConfig = PoolConfig(tp=1)
    decode: PoolConfig = PoolConfig(tp=2)


class ExtraWorkers(_Section):
    """More workers at start, on GPUs of another kind."""

    role: Role
    count: int = Field(1, ge=1, le=MOST_GPUS)
    tp: int = Field(1, ge=1, description="GPUs per worker")
    profile: str | None = Field(
        None, max_length=MOST_NAME, description="their performance profile; the deployment's when absent"
    )


class Death(_Section):
    """A worker that dies. The simulator calls workers p0, p1, ... and d0, d1, ... in the order of their start."""

    at_s: Pause
    worker: str = Field(max_length=MOST_NAME)


class SimulationConfig(_Section):
    """Settings that only the simulator reads: how engines and workers behave. docs/simulator.md explains every key."""

    order: Literal["decode_first", "prefill_first"] = Field(
        "decode_first", description="decodes take part in steps with prefill (vLLM), or wait for them (SGLang)"
    )
    step_tokens: int = Field(8192, ge=1, description="most tokens of one step: prompts are cut into chunks to fit")
    whole_prompts: bool = Field(
        False, description="a prompt that does not fit into what is left of a step waits for the next one"
    )
    watermark: float = Field(0.01, ge=0, lt=1, description="share of the KV cache kept free when a request is let in")
    block_tokens: int = Field(512, ge=1, description="tokens of one prefix block of the trace")
    mixed_step_scale: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="factor on the time that prefill adds to a step with decodes"
    )
    kv_tokens: int | None = Field(None, ge=2, description="KV cache of every worker; what its profile says when absent")
    frontend_s: Pause = Field(0.0, description="work of a frontend on each request, one after the other")
    first_token: Literal["prefill", "transfer", "decode"] = Field(
        "decode", description="who gives the first token of a request that decodes on another worker, and when"
    )
    overlap: bool = Field(False, description="send the KV cache chunk by chunk, while the next one computes")
    history: Literal["transfer", "recompute"] = Field(
        "transfer", description="how a worker gets the history of a session that is cached on another one"
    )
    flip: Literal["drain", "label"] = Field(
        "drain", description="a worker drains before it changes its role, or only its label changes"
    )
    flip_s: Pause = Field(0.0, description="time that a drained worker needs for the change")
    drain_deadline_s: Seconds | None = Field(
        None, description="a change of role whose worker has not drained by then is rolled back"
    )
    when_full: Literal["stay", "wait"] = Field(
        "stay", description="a request that decodes and whose second worker is full decodes on where it is, or waits"
    )
    handoff_timeout_s: Seconds = Field(300.0, description="how often to look for a deadlock over KV capacity")
    retries: int = Field(3, ge=0, description="how often a request starts anew when its worker dies")
    deaths: tuple[Death, ...] = Field((), description="workers that die, and when")
    predict: Literal["nothing", "true_length"] = Field(
        "nothing", description="what routers are told of the length of the answer"
    )
    prefill_profile: str | None = Field(
        None, max_length=MOST_NAME, description="profile of prefill workers, on GPUs of their own kind"
    )
    decode_profile: str | None = Field(
        None, max_length=MOST_NAME, description="profile of decode workers, on GPUs of their own kind"
    )
    extra: tuple[ExtraWorkers, ...] = Field((), description="more workers at start, each on GPUs of its own kind")


class SglangConfig(_Section):
    """Settings that only the SGLang plugin reads. docs/sglang.md explains every key."""

    dual_role: bool = Field(False, description="serve the prefill, the decode and the local role in one server")
    strict: bool = Field(True, description="do not start when a feature cannot work; else stock SGLang serves")
    prefill_burst: int = Field(1, ge=1, description="prefill steps in a row while requests decode")
    prefill_reserve: float = Field(
        0.1, ge=0, lt=1, description="share of KV cache and request slots that transfers leave free for prefill"
    )
    own_hosts: tuple[str, ...] = Field((), description="further names by which routers call this server")
    nixl_poll_us: int = Field(
        200, ge=0, description="shortest pause between polls for transfers, in µs; 0 lets threads spin, as in stock"
    )


CHOICES = (*Kind, BUNDLE)
"""Keys of a config that pick a plugin by name."""


class DecisionLogConfig(_Section):
    """The contents of decision logs. docs/explain.md explains them."""

    sample: int = Field(100, ge=1, description="routers, flow policies and batch schedulers: keep one in this many")
    most_per_s: int = Field(50, ge=1, description="most lines of these a second")
    most_mb: int = Field(256, ge=1, description="size in MiB at which the file becomes FILE.1 and a new one begins")


class SignalsConfig(_Section):
    """How the parts of one policy exchange signals. docs/explain.md explains it."""

    folder: Path | None = Field(
        None, description="folder shared by processes on one node; absent: within a process only"
    )
    fresh_s: Seconds = Field(10.0, description="age from which a signal is ignored")


class Choice(BaseModel):
    """One plugin, picked by name. Every other key is a setting of that plugin."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The plugin's own keys."""
        return dict(self.model_extra or {})


class NodeWorker(_Section):
    """One worker of the node, and its GPUs."""

    worker: str = Field(max_length=MOST_NAME, description="its name; beside a gateway its host:port there")
    gpus: tuple[str, ...] = Field(min_length=1, description="UUIDs of its GPUs")
    role: Role = Field(Role.PREFILL, description="its role at start, where the host does not tell it")


class NodeConfig(_Section):
    """The GPUs of one node, whose caps and roles `pdplugins power run` moves. docs/power.md explains every key."""

    backend: Choice = Field(Choice(name="nvml"), description="who speaks with the GPUs: nvml, amdsmi, simulated")
    gpus: tuple[str, ...] = Field((), description="UUIDs of those that take part; all when empty")
    workers: tuple[NodeWorker, ...] = Field((), description="which GPUs serve which worker")
    budget_w: Watts | None = Field(
        None, description="watts that all caps may sum to; the power policy's own budget_w when absent"
    )
    floor_w: float = Field(100.0, ge=0, allow_inf_nan=False, description="no cap is below this, whatever the GPU takes")
    beside: Literal["nothing", "gateway", "dynamo"] = Field("nothing", description="who tells traffic and loads")
    url: str | None = Field(None, max_length=MOST_NAME, description="admin address of a gateway, or Dynamo's frontend")
    key_file: Path | None = Field(None, description="file with a key of the gateway's admin listener")
    actuator: Literal["host", "role_switch", "command", "nothing"] = Field(
        "host", description="who changes roles: the gateway, SGLang's /pd_role_switch, a program of yours, nobody"
    )
    command: tuple[str, ...] = Field((), description="the program of actuator command, with its first arguments")
    graph_gb: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GB that role_switch must find free for a decode worker's CUDA graphs",
    )
    drain_s: Seconds = Field(60.0, description="time in which a worker must drain, else it keeps its role")
    stale_s: Seconds = Field(5.0, description="age from which what the host told last counts no more")
    settle_s: Pause = Field(0.3, description="from a new cap until the draw below it counts")
    obey_s: Seconds = Field(3.0, description="time in which the draw must follow a lower cap, else all is rolled back")
    rest_s: Seconds = Field(5.0, description="pause after a change that failed")
    call_s: Seconds = Field(1.0, description="time of a driver call after which the GPU counts as hung")
    poll_s: Seconds = Field(0.1, description="pause between two readings of a GPU")
    tolerance_w: float = Field(
        15.0, ge=0, allow_inf_nan=False, description="by which a GPU that keeps its cap may exceed it"
    )
    restore_s: Seconds = Field(10.0, description="time in which the caps from before are put back at the end")
    state: Path = Field(Path("/var/lib/pdplugins/power"), description="folder of the lock and of the caps from before")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept ``backend: nvml`` for ``backend: {name: nvml}``."""
        if isinstance(data, dict) and isinstance(data.get("backend"), str):
            return data | {"backend": {"name": data["backend"]}}
        return data

    @model_validator(mode="after")
    def _complete(self) -> NodeConfig:
        if self.beside != "nothing" and self.url is None:
            raise ValueError(f"url: say where the {self.beside} is, for example http://127.0.0.1:8001")
        if self.actuator == "command" and not self.command:
            raise ValueError("command: name the program that changes roles")
        return self


class Config(_Section):
    """A whole config file."""

    slo: SloConfig = SloConfig()
    deployment: DeploymentConfig = DeploymentConfig()
    planner: Choice | None = Field(None, description="how many workers of each role")
    router: Choice | None = Field(None, description="where each request runs; the host's own when absent")
    batch_scheduler: Choice | None = Field(None, description="what an instance runs next; the host's own when absent")
    flow: Choice | None = Field(None, description="what waits before the workers; nothing waits when absent")
    power: Choice | None = Field(None, description="watts per GPU; untouched when absent")
    bundle: Choice | None = Field(None, description="provides the policies that no key above picks")
    decision_log: DecisionLogConfig = DecisionLogConfig()
    signals: SignalsConfig = SignalsConfig()
    simulation: SimulationConfig = SimulationConfig()
    sglang: SglangConfig = SglangConfig()
    gateway: GatewayConfig = GatewayConfig()
    terms: TermsConfig = TermsConfig()
    node: NodeConfig = NodeConfig()

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept ``planner: dopd`` for ``planner: {name: dopd}``."""
        if not isinstance(data, dict):
            return data
        return {k: {"name": v} if k in CHOICES and isinstance(v, str) else v for k, v in data.items()}

    @model_validator(mode="after")
    def _a_worker_of_each_role(self) -> Config:
        """Refuse pools that leave a phase without a worker."""
        pools = {Role.PREFILL: self.deployment.prefill, Role.DECODE: self.deployment.decode}
        for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            if pools[role].replicas or (self.any_role and pools[other].replicas):
                continue
            raise ValueError(
                f"deployment.{role}.replicas: 0 leaves nobody to {role}; let it be at least 1, or 0 where {other} "
                "workers do both phases (simulation.flip: label, or sglang.dual_role: true)"
            )
        return self

    @property
    def any_role(self) -> bool:
        """Whether every worker can do both phases."""
        return self.simulation.flip == "label" or self.sglang.dual_role

    def choice(self, kind: Kind) -> Choice | None:
        """Return the policy that the key `kind` names; None where it is absent, even if a bundle has such a policy."""
        chosen: Choice | None = getattr(self, kind)
        return chosen


def load(path: Path, registry: Registry | None = None) -> Config:
    """Read and check a config file. Raises ConfigError with one line for the first error."""
    try:
        data = read_yaml(path)
    except OSError as error:
        hint = meant(path.stem, shipped())
        raise ConfigError(
            f"{one_line(path)}: {error.strerror}; shipped configs are {', '.join(shipped())}{hint}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse(data, str(path), registry)


def parse(data: Any, where: str = "config", registry: Registry | None = None) -> Config:
    """Check a config that is given as plain data. `where` names it in errors."""
    try:
        config = Config.model_validate({} if data is None else data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_error(error, Config)}") from None
    chosen = {key: choice for key in CHOICES if (choice := getattr(config, key)) is not None}
    for key, choice in chosen.items():
        settings_of(key, choice, where, registry)
    for name in {choice.name for key, choice in chosen.items() if in_bundle(key, choice, registry)}:
        bundle_settings(config, name, where, registry)
    return config


def settings_of(kind: str, choice: Choice, where: str = "config", registry: Registry | None = None) -> BaseModel:
    """Check the settings of one plugin against the model that it registered."""
    try:
        registration = _registration(kind, choice, registry)
        return registration.settings.model_validate(choice.settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except ValidationError as error:
        detail = first_error(error, registration.settings)
        raise ConfigError(f"{where}: {kind} {choice.name}: {detail}") from None


def in_bundle(key: str, choice: Choice, registry: Registry | None = None) -> bool:
    """Return whether the choice at `key` is a bundle, or a part of one."""
    return _registration(key, choice, registry).kind == BUNDLE


def bundle_settings(config: Config, name: str, where: str = "config", registry: Registry | None = None) -> BaseModel:
    """Return the settings of the bundle `name`. Any key that picks the bundle or a part of it may give them.

    Raises ConfigError when two keys give different settings, because there is only one bundle.
    """
    picks = [
        (key, choice)
        for key in CHOICES
        if (choice := getattr(config, key)) is not None and choice.name == name and in_bundle(key, choice, registry)
    ]
    given = [(key, settings_of(key, choice, where, registry)) for key, choice in picks if choice.settings]
    for key, settings in given[1:]:
        if settings != given[0][1]:
            raise ConfigError(
                f"{where}: {given[0][0]} and {key} give the bundle '{name}' different settings; give them once"
            )
    return given[0][1] if given else settings_of(*picks[0], where, registry)


def _registration(kind: str, choice: Choice, registry: Registry | None) -> Registration:
    known = registry or default_registry()
    return known.policy(Kind(kind), choice.name) if kind in tuple(Kind) else known.get(kind, choice.name)


def with_defaults(config: Config, key: str, choice: Choice, registry: Registry | None = None) -> Choice:
    """Return `choice`, the value of `key` in `config`, with all its settings."""
    if in_bundle(key, choice, registry):
        settings = bundle_settings(config, choice.name, registry=registry)
    else:
        settings = settings_of(key, choice, registry=registry)
    return Choice(name=choice.name, **settings.model_dump(mode="json"))


def resolved(checked: Config) -> dict[str, Any]:
    """Return `checked` as plain data with the defaults of the chosen plugins filled in."""
    data = checked.model_dump(mode="json")
    for kind in CHOICES:
        if (choice := getattr(checked, kind)) is not None:
            data[kind] = with_defaults(checked, kind, choice).model_dump(mode="json")
    return data


def find(name: str) -> Path:
    """Return the config file called `name`: a path, or the name of a shipped one, also beside a folder of that name."""
    path = Path(name)
    return path if path.suffix in {".yaml", ".yml"} or _is_there(path) else data_dir("configs") / f"{name}.yaml"


def named(name: str) -> Config:
    """Return the config called `name`: a path, a shipped one, or a policy that an installed package has registered.

    Raises ConfigError.
    """
    if not find(name).is_file():
        registry = default_registry()
        kinds = (kind for kind in CHOICES if name in registry.names(kind))
        if (kind := next(kinds, None)) is not None:
            return parse({str(kind): name}, name)
    return load(find(name))


def _is_there(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # a name that is too long, or a folder that may not be read
        return False


def shipped() -> list[str]:
    """Return the names of the shipped configs."""
    return sorted(path.stem for path in data_dir("configs").glob("*.yaml"))


def first_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first error of `error` in one line, with the valid choices where there are any."""
    first = error.errors()[0]
    if (
        first["type"] == "value_error" and not first["loc"]
    ):  # an error of several keys together, whose message names them
        return one_line(first["ctx"]["error"])
    key = one_line(".".join(str(part) for part in first["loc"])) or "file"
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'; valid keys here are {', '.join(_keys_at(model, first['loc'][:-1]))}"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"]
        return f"{key}: say {tag} too, as it tells which keys there are (got {shown(first['input'])})"
    return f"{key}: {one_line(first['msg'])} (got {shown(first['input'])})"


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the valid keys at `loc`, which also contains list indexes and the kind of a union."""
    here = [model]
    for part in loc:
        if annotations := [m.model_fields[str(part)].annotation for m in here if part in m.model_fields]:
            here = [m for annotation in annotations for m in _models(annotation)]
        else:
            here = [m for m in here if any(part == field.default for field in m.model_fields.values())] or here
    return sorted({key for m in here for key in m.model_fields})


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation: itself, or the ones within its list, union or Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
