"""The configs that a command of this folder names, with the command's options applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pdplugins.files import check_apart, profiles_of
from pdplugins.sim.run.options import Overrides, configured

if TYPE_CHECKING:
    from pdplugins.config import Config


def chosen(names: Iterable[str], overrides: Overrides, outputs: Mapping[str, Path | None]) -> dict[str, Config]:
    """Return the configs by their names.

    :param outputs: the files that the command writes, by option. A config may name a file as its profile, and an output
        must not replace that.

    Raises ConfigError.
    """
    configs = {name: configured(name, overrides) for name in names}
    for name, config in configs.items():
        check_apart(outputs, profiles_of(name, config.profiles))
    return configs


def with_objectives(settings: list[str] | None, ttft: float | None, tpot: float | None) -> list[str]:
    """Return the values of --set, and the settings that --ttft and --tpot stand for."""
    slo = {"ttft_s": ttft, "tpot_s": tpot}
    return [*(settings or ()), *(f"slo.{key}={value}" for key, value in slo.items() if value is not None)]
