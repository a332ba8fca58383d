"""The engine that ``dynamo serve --engine`` names."""

from __future__ import annotations

from pathlib import Path

from pdplugins.contracts.deployment import Deployment
from pdplugins.hosts.dynamo.local.engine import Engine, Mocker
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.local.sglang_engine import Sglang


def make_engine(options: Options, folder: Path, deployment: Deployment, broker_url: str) -> Engine:
    """Return the engine that the options mean.

    :param folder: of the stack.
    :param broker_url: of the broker of the workers' events.
    """
    if options.sglang is None:
        return Mocker(folder, options.model, deployment, options.delay_s, broker_url)
    return Sglang(folder, options.model, options.config, options.delay_s, broker_url, options.sglang)
