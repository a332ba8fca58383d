"""Hooks the features that a config asks for into one process of SGLang."""

from __future__ import annotations

import logging

from pdplugins.config import Config, find, load
from pdplugins.errors import PdpluginsError
from pdplugins.hosts.sglang import nixl
from pdplugins.hosts.sglang.batching import BatchHooks
from pdplugins.hosts.sglang.dual import DualRole
from pdplugins.hosts.sglang.hooking import Hook, HookInstaller, broken_seams, chained
from pdplugins.hosts.sglang.policy import scheduler_factory
from pdplugins.runtime.assembly import build_deployment

log = logging.getLogger(__name__)


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
        if config.batch_scheduler is not None:
            hooks = BatchHooks(scheduler_factory(config, build_deployment(config))).hooks()
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
    scheduler = config.batch_scheduler
    names = {"dual_role": config.sglang.dual_role, f"batch_scheduler {scheduler and scheduler.name}": scheduler}
    return [name for name, on in names.items() if on]
