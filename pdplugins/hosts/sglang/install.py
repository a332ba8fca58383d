"""Hooks the features that a config asks for into one process of SGLang."""

from __future__ import annotations

import logging
from functools import lru_cache, partial

from pdplugins.config import Config, find, load
from pdplugins.errors import PdpluginsError
from pdplugins.gateway.terms import carried_by
from pdplugins.hosts.sglang import nixl
from pdplugins.hosts.sglang.batching import BatchHooks
from pdplugins.hosts.sglang.dual import DualRole
from pdplugins.hosts.sglang.hooking import Hook, HookInstaller, broken_seams, chained
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import Policies, build_policies

log = logging.getLogger(__name__)

MOST_KNOWN = 4096
"""Requests whose terms are remembered: each one that decodes is looked at before every step."""


def install(name: str) -> None:
    """Install what the config called `name` asks for. Raises SystemExit when it is no config, or `strict` refuses."""
    try:
        config = load(find(name))
    except PdpluginsError as error:
        raise SystemExit(f"pdplugins: PDPLUGINS_CONFIG: {error}") from None
    features = wanted(config)
    if not features:
        log.info("pdplugins: config %s asks for nothing of SGLang", name)
        return
    installer = HookInstaller(features, strict=config.sglang.strict)
    try:
        if broken := broken_seams():
            installer.refuse("; ".join(broken))
            return
        hooks: dict[str, Hook] = {}
        if (build := _policies(config).batch_scheduler()) is not None:
            asked = lru_cache(MOST_KNOWN)(partial(carried_by, config=config.terms))
            hooks = BatchHooks(build, asked=asked).hooks()
        if config.sglang.dual_role:
            nixl.pause_progress_threads(config.sglang.nixl_poll_us)
            clock = nixl.pause_transfer_threads(config.sglang.nixl_poll_us)
            hooks = chained(DualRole(config.sglang, installer, clock).hooks(), hooks)
        installer.install(hooks)
    except PdpluginsError as error:
        installer.refuse(str(error))
    except Exception as error:  # the hook registry would only log it, and serve
        log.exception("pdplugins: cannot install")
        installer.refuse(f"{type(error).__name__}: {error}")


def wanted(config: Config) -> list[str]:
    """Return the names of the features that `config` switches on."""
    scheduler = config.batch_scheduler or (config.bundle if _bundle_schedules(config) else None)
    names = {"dual_role": config.sglang.dual_role, f"batch_scheduler {scheduler and scheduler.name}": scheduler}
    return [name for name, on in names.items() if on]


def _bundle_schedules(config: Config) -> bool:
    """Tell whether the bundle of `config` has a batch scheduler; one that cannot be built counts, and is refused."""
    if config.bundle is None:
        return False
    try:
        return _policies(config).batch_scheduler() is not None
    except PdpluginsError:
        return True


def _policies(config: Config) -> Policies:
    return build_policies(config, build_deployment(config))
