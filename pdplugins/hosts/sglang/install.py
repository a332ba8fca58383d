"""Hooks the features that a config asks for into one process of SGLang."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from pdplugins.config import Config, find, load
from pdplugins.contracts.batching import BatchScheduler
from pdplugins.errors import PdpluginsError
from pdplugins.files import check_outputs
from pdplugins.gateway.terms import carried_by
from pdplugins.hosts.sglang import nixl
from pdplugins.hosts.sglang.batching import BatchHooks
from pdplugins.hosts.sglang.dual import DualRole
from pdplugins.hosts.sglang.hooking import Hook, HookInstaller, broken_seams, chained
from pdplugins.hosts.sglang.limits import refused_ranks
from pdplugins.hosts.sglang.names import CHECK_ARGUMENTS, SCHEDULER
from pdplugins.resources import DECISION_LOG_VARIABLE
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.journal import StandardJournal, build_journal
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
        if (build := batch_schedulers(config)) is not None:
            build(config.deployment.mixed_steps)  # what cannot be built is refused now, not at the first prompt
            asked = lru_cache(MOST_KNOWN)(partial(carried_by, config=config.terms))
            burst = None if config.sglang.dual_role else config.sglang.prefill_burst
            hooks = BatchHooks(build, asked=asked, journal=journal_of(config), burst=burst).hooks()
            hooks[CHECK_ARGUMENTS] = checked_ranks(installer)
            hooks[SCHEDULER + "init_disaggregation"] = checked_engine(installer)
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


def batch_schedulers(config: Config) -> Callable[[bool], BatchScheduler] | None:
    """Return what makes a batch scheduler, from whether prefill shares steps with decodes; None when none is picked.

    Raises ConfigError.
    """

    @cache
    def of(mixes: bool) -> Callable[[], BatchScheduler] | None:
        deployment = config.deployment.model_copy(update={"mixed_steps": mixes})
        return _policies(config.model_copy(update={"deployment": deployment})).batch_scheduler()

    said = config.deployment.mixed_steps
    if (usual := of(said)) is None:
        return None

    def build(mixes: bool) -> BatchScheduler:
        if mixes is not said:
            does = "shares steps" if mixes else "never shares a step"
            log.info("pdplugins: prefill %s with decodes here, unlike deployment.mixed_steps; steps fit that", does)
        return (of(mixes) or usual)()

    return build


def checked_ranks(installer: HookInstaller) -> Hook:
    """Return the hook that refuses a batch scheduler on ranks that it does not decide for."""

    def check(original: Callable[..., Any], arguments: Any) -> Any:
        result = original(arguments)
        _refuse_ranks(installer, arguments)
        return result

    return check


def checked_engine(installer: HookInstaller) -> Hook:
    """Return the hook that does so where an engine starts: in a process of its own, which checks no options."""

    def check(original: Callable[..., Any], scheduler: Any) -> Any:
        result = original(scheduler)
        _refuse_ranks(installer, scheduler.server_args)
        return result

    return check


def _refuse_ranks(installer: HookInstaller, arguments: Any) -> None:
    if reasons := list(refused_ranks(arguments)):
        installer.refuse("; ".join(reasons))


def wanted(config: Config) -> list[str]:
    """Return the names of the features that `config` switches on."""
    scheduler = config.batch_scheduler or (config.bundle if _bundle_schedules(config) else None)
    names = {"dual_role": config.sglang.dual_role, f"batch_scheduler {scheduler and scheduler.name}": scheduler}
    return [name for name, on in names.items() if on]


def journal_of(config: Config) -> Callable[[], StandardJournal | None]:
    """Return what opens the decision log of this process. Raises ConfigError where none can be written there.

    It opens at the first step: of SGLang's processes only those that run an engine take any.
    """
    name = os.environ.get(DECISION_LOG_VARIABLE)
    if not name:
        return lambda: None

    def own() -> Path:
        return Path(name).with_stem(f"{Path(name).stem}-{os.getpid()}")

    check_outputs(own())  # many processes start at once, and each tries a file of its own

    @cache
    def opened() -> StandardJournal | None:
        try:
            return build_journal(config, build_deployment(config), decision_log=own())
        except PdpluginsError as error:
            log.warning("pdplugins: %s; serving goes on without it", error)
            return None

    return opened


def _bundle_schedules(config: Config) -> bool:
    """Tell whether the bundle of `config` has a batch scheduler; one that cannot be built counts, and is refused."""
    if config.bundle is None:
        return False
    try:
        return _policies(config).batch_scheduler() is not None
    except Exception:
        return True


def _policies(config: Config) -> Policies:
    return build_policies(config, build_deployment(config))
