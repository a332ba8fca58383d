"""What the slim installation leaves out: it runs the simulator and the gateway, and says what anything else needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from pdplugins.errors import HostError

DISTRIBUTIONS = ("pdplugins", "pdplugins-slim")
"""Our distributions: the same code with different requirements. One of them is installed."""
ANALYSIS = ("matplotlib", "pandas", "plotly", "scipy", "statsmodels")
DYNAMO = (
    "dynamo",
    "filterpy",
    "google",
    "grpc",
    "pmdarima",
    "prometheus_api_client",
    "prophet",
    "sklearn",
    "tokenizers",
)
PLUGINS = {("router", "arrow"): "scipy"}
"""Policies that cannot decide without a module of an extra: hosts would replace each decision by their own."""


def installed() -> str:
    """Return the name of the distribution that is installed."""
    found = [name for name in DISTRIBUTIONS if any(importlib.metadata.distributions(name=name))]
    return found[0] if found else DISTRIBUTIONS[0]


def whole() -> bool:
    """Tell whether the installation is to have everything, Dynamo included."""
    return installed() == DISTRIBUTIONS[0]


def has(module: str) -> bool:
    """Tell whether a module can be imported."""
    return importlib.util.find_spec(module) is not None


def how(extra: str) -> str:
    """Say how to get an extra. No package index has pdplugins, so a name of it would not be found."""
    return f"pip install '.[{extra}]' in a checkout of pdplugins"


def advice(module: str) -> str | None:
    """Say in one line how to get a module of an extra; None where none has it."""
    extras = {"analysis": ANALYSIS, "dynamo": DYNAMO}
    top = module.partition(".")[0]
    extra = next((extra for extra, modules in extras.items() if top in modules), None)
    if extra is None:
        return None
    return f"it needs {top}, which is not installed; pip install '{DISTRIBUTIONS[1]}[{extra}]', or {DISTRIBUTIONS[0]}"


def need(what: str, module: str) -> None:
    """Raise HostError, which says what to install, if `what` cannot run because `module` is not there."""
    if not has(module):
        raise HostError(f"{what}: {advice(module)}")
