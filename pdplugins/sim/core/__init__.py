"""The event loop, the engines and everything else that happens in virtual time."""

from pdplugins.sim.core import clock

COMPILED = not clock.__file__.endswith(".py")
"""Whether the compiled kernel runs."""
