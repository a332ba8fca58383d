"""Installs hooks into SGLang, all or none. A server with some of them would compute wrong answers.

Every seam is checked before the hooks are registered, and every hook after SGLang has applied them. SGLang's hook
registry only logs a failure, and serves. Strict mode raises SystemExit instead, which the registry lets through.
Lenient mode turns every hook into a call of the original, and says so in the log and in a metric.
"""

from __future__ import annotations

import functools
import logging
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

from pdplugins.hosts import seams
from pdplugins.resources import data_dir

log = logging.getLogger(__name__)

Hook = Callable[..., Any]
"""``hook(original, *arguments)`` runs in place of ``original(*arguments)``."""


def broken_seams() -> list[str]:
    """Return a line for each seam of the SGLang that is installed which is not as ``hooks/sglang.toml`` lists it."""
    manifest = tomllib.loads((data_dir("hooks") / "sglang.toml").read_text(encoding="utf-8"))
    return [f"{check.name}: {check.detail}" for check in seams.examine_host(manifest) if check.state != "ok"]


class HookInstaller:
    """Puts hooks into SGLang, all or none."""

    def __init__(self, features: Sequence[str], *, strict: bool) -> None:
        self._features = features
        self._strict = strict
        self.active = True

    def refuse(self, why: str) -> None:
        """Give up: raise SystemExit in strict mode, else let SGLang serve as if nothing had been hooked."""
        message = f"pdplugins: {' and '.join(self._features)} refused: {why}"
        self.active = False
        if self._strict:
            log.critical("%s; not starting, because sglang.strict holds", message)
            raise SystemExit(message)
        log.error("%s; stock SGLang serves, because sglang.strict is off", message)
        self.report()

    def report(self) -> None:
        """Set the metric ``pdplugins_sglang_feature``, where SGLang collects the metrics of its processes."""
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            for feature in self._features:
                _gauge().labels(feature).set(int(self.active))

    def install(self, hooks: Mapping[str, Hook]) -> None:
        """Register `hooks`, by the dotted name of what each one wraps, and check them once SGLang has applied them."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only inside SGLang

        for target, hook in hooks.items():
            HookRegistry.register(target, self._switchable(hook), HookType.AROUND)
        apply = HookRegistry.apply_hooks

        def apply_and_check() -> None:
            apply()
            if self.active and (missing := unwrapped(hooks)):
                self.refuse(f"SGLang did not apply the hooks on {', '.join(missing)}")

        HookRegistry.apply_hooks = apply_and_check

    def _switchable(self, hook: Hook) -> Hook:
        @functools.wraps(hook)
        def switchable(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            if not self.active:
                return original(*arguments, **keywords)
            return hook(original, *arguments, **keywords)

        return switchable


@functools.cache
def _gauge() -> Any:
    from prometheus_client import Gauge  # noqa: PLC0415 - reads SGLang's variable when imported

    text = "1: serves; 0: refused, stock SGLang serves"
    return Gauge("pdplugins_sglang_feature", text, ["feature"], multiprocess_mode="min")


def unwrapped(targets: Mapping[str, Hook]) -> list[str]:
    """Return those of `targets` that nobody has wrapped."""
    return [target for target in targets if not hasattr(resolve_name(target), "__wrapped__")]


def chained(outer: Mapping[str, Hook], inner: Mapping[str, Hook]) -> dict[str, Hook]:
    """Return the hooks of both; where both wrap the same target, `outer` gets `inner` as its original."""
    both = {**inner, **outer}
    for target in outer.keys() & inner.keys():
        both[target] = _nested(outer[target], inner[target])
    return both


def _nested(outer: Hook, inner: Hook) -> Hook:
    def nested(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return outer(functools.partial(inner, original), *arguments, **keywords)

    return nested
