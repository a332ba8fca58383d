"""The contract: every hook that a plugin may implement.

A plugin is a module or object that an entry point of the group ``pdplugins`` names. Each hook gets a `register`
callback, so one plugin may register any number of things. A hook is called once, when plugins are loaded. If it raises,
the program stops with an error that names the plugin.

``register(name, factory, settings)`` takes the name that users write in a config file, a factory, and a pydantic model
of the settings. The factory gets an instance of that model as its first argument. See ``docs/writing-a-plugin.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import typer

    from pdplugins.contracts.register import Register

hookspec = pluggy.HookspecMarker("pdplugins")


@hookspec
def pd_register_planners(register: Register) -> None:
    """Add planners: how many workers of each role there should be.

    :param register: ``register(name, factory, settings)`` with
        ``factory(settings, deployment: Deployment) -> Planner``.
    """


@hookspec
def pd_register_routers(register: Register) -> None:
    """Add routers: where each token range of a request runs.

    :param register: ``register(name, factory, settings)`` with
        ``factory(settings, deployment: Deployment) -> Router``.
    """


@hookspec
def pd_register_flows(register: Register) -> None:
    """Add flow policies: which waiting request goes on next, which waits, which is refused.

    :param register: ``register(name, factory, settings)`` with
        ``factory(settings, deployment: Deployment) -> Flow``.
    """


@hookspec
def pd_register_batch_schedulers(register: Register) -> None:
    """Add batch schedulers: what one instance runs next.

    :param register: ``register(name, factory, settings)`` with
        ``factory(settings, deployment: Deployment) -> BatchScheduler``.
    """


@hookspec
def pd_register_power_controllers(register: Register) -> None:
    """Add power controllers: watts and roles of the GPUs of one node.

    :param register: ``register(name, factory, settings)`` with
        ``factory(settings, deployment: Deployment) -> PowerController``.
    """


@hookspec
def pd_register_bundles(register: Register) -> None:
    """Add bundles: policies of several kinds that share one core object where they run in one process.

    :param register: ``register(name, factory, settings)`` with
        ``factory(settings, deployment: Deployment) -> Bundle``.
    """


@hookspec
def pd_register_power_backends(register: Register) -> None:
    """Add power backends: the devices that caps are read from and written to.

    :param register: ``register(name, factory, settings)`` with ``factory(settings) -> PowerBackend``.
    """


@hookspec
def pd_register_profiles(register: Register) -> None:
    """Add performance profiles: how fast a model runs on a GPU.

    :param register: ``register(name, factory, settings)`` with ``factory(settings) -> PerfModel``.
    """


@hookspec
def pd_register_workloads(register: Register) -> None:
    """Add workloads: readers of trace formats, or generators.

    :param register: ``register(name, factory, settings)`` with
        ``factory(settings, path: Path) -> Iterable[TraceRequest]``. A reader raises
        :class:`pdplugins.errors.TraceError` when a file does not have its format.
    """


@hookspec
def pd_register_commands(app: typer.Typer) -> None:
    """Add commands to the ``pdplugins`` command line.

    :param app: the Typer application; add commands with ``app.command()`` or ``app.add_typer()``.
    """
