"""Applies command-line options to a config before it is simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdplugins.config import CHOICES, Config, named, parse
from pdplugins.errors import ConfigError
from pdplugins.runtime.assembly import build_deployment
from pdplugins.settings import Setting, parse_setting, put

KINDS = ("planner", "router", "batch_scheduler", "power")


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options of `simulate` and `compare` that override a config file. None keeps the value of the file."""

    gpus: int | None = None
    profile: str | None = None
    prefill: int | None = None
    decode: int | None = None
    settings: Sequence[str] = field(default=())
    """Each is ``key=value``: a dotted path into the config, and a YAML value."""


def configured(name: str, overrides: Overrides) -> Config:
    """Load the config called `name` and apply `overrides`. Raises ConfigError, also if the pools do not fit.

    Settings apply first, then the profile, then the GPUs (`scale_pools`), then explicit numbers of workers.
    """
    data = changed(named(name), name, map(parse_setting, overrides.settings)).model_dump(mode="json")
    if overrides.profile is not None:
        data["deployment"]["profile"] = overrides.profile
    if overrides.gpus is not None:
        data = scale_pools(parse(data, name), overrides.gpus)
    for role, count in (("prefill", overrides.prefill), ("decode", overrides.decode)):
        if count is not None:
            data["deployment"][role]["replicas"] = count
    config = parse(data, name)
    try:
        build_deployment(config)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return config


def changed(config: Config, name: str, settings: Iterable[Setting]) -> Config:
    """Return `config` with `settings`, relative to the whole config. Raises ConfigError."""
    data = config.model_dump(mode="json")
    for setting in settings:
        kind, value = setting.path[0], setting.value
        short = len(setting.path) == 1 and kind in CHOICES and isinstance(value, str)
        put(data, Setting((kind,), {"name": value}) if short else setting)
    return parse(data, name)


def scale_pools(config: Config, gpus: int) -> dict[str, Any]:
    """Return the data of `config` on a budget of `gpus`. The pools at start keep their share of the budget.

    Of all pools within that share, the ones with the largest throughput are chosen, then the ones that use the most
    GPUs, then the ones nearest to the old ratio. Throughput comes first because workers of one role help only if the
    other role keeps up. So fixed pools that fill their budget fill the new one, and a planner that starts with a small
    share of the budget still does.
    """
    data = config.model_dump(mode="json")
    section = data["deployment"]
    prefill, decode = section["prefill"]["replicas"], section["decode"]["replicas"]
    known = build_deployment(config)  # resolves tp: auto
    used, factor = known.gpus(prefill, decode), gpus / config.deployment.gpu_budget
    share = max(used * gpus // config.deployment.gpu_budget, known.gpus(1, 1))
    wish = prefill * factor, decode * factor

    def worth(pools: tuple[int, int]) -> tuple[float, int, float]:
        served = pools[0] / wish[0], pools[1] / wish[1]
        return min(served), known.gpus(*pools), -max(served)

    if prefill and decode:
        splits = ((share - count * known.decode_tp, count) for count in range(1, share // known.decode_tp + 1))
        pools = max(
            ((left // known.prefill_tp, count) for left, count in splits if left >= known.prefill_tp), key=worth
        )
    else:  # one pool serves both phases
        pools = (share // known.prefill_tp, 0) if prefill else (0, share // known.decode_tp)
    section["gpu_budget"] = gpus
    section["prefill"]["replicas"], section["decode"]["replicas"] = pools
    return data
